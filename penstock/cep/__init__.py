"""Patterns: sequences of events to look for, in order of event time. Plain Python, deterministic, no Spark.

    probe = cep.on("probe", Payment, lambda p, m: p.amount < 1)
    spend = cep.on("spend", Payment, lambda p, m: p.amount > 500)
    cep.find(probe.then(spend), payments, within=timedelta(minutes=10))

`find` runs a pattern over a list; `@app.match` makes a handler of one.
"""

from penstock.cep import skip
from penstock.cep.finding import find
from penstock.cep.handling import Missed
from penstock.cep.match import Match
from penstock.cep.memory import Bounds
from penstock.cep.pattern import Pattern, absent, all_of, any_of, every, on

__all__ = ["Bounds", "Match", "Missed", "Pattern", "absent", "all_of", "any_of", "every", "find", "on", "skip"]
