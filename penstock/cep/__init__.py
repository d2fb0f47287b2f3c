"""Patterns: sequences of events to find, in order of event time. Plain Python, deterministic, no Spark.

    probe = cep.on("probe", Payment, lambda p, m: p.amount < 1)
    spend = cep.on("spend", Payment, lambda p, m: p.amount > 500)
    cep.find(probe.then(spend), payments, within=timedelta(minutes=10))

`find` runs a pattern over a list; `@app.match` compiles a pattern into a handler.

`pattern` declares patterns, `search` adds time limits and skipping, and `problems` reports mistakes. `plan` compiles a
search into places and `transitions`. For each wait, `verdicts` creates a function that decides how an event affects a
partial match. The alternatives in an `any_of` share one wait; bits in the partial match mark the alternatives that have
been ruled out. `engine` runs the compiled search and `step` processes one event. A partial match consists of a wait and
the numbers of its steps and events. Each event that fits a step is stored once (`memory`, `automaton`); other events
are not stored. `runs` contains the stored list of a key's partial matches, and an index in memory by wait, due time and
start. `identity` computes the fingerprint that is stored with partial matches; when a pattern is edited, its old
partial matches are discarded. `handling` connects the engine to a handler: it sorts events by event time, advances
time, and deletes a key that has no partial match and has had no events for a long time.
"""

from penstock.cep import skip
from penstock.cep.finding import find
from penstock.cep.handling import Missed
from penstock.cep.match import Match
from penstock.cep.memory import Bounds
from penstock.cep.pattern import Pattern, absent, all_of, any_of, every, on

__all__ = ["Bounds", "Match", "Missed", "Pattern", "absent", "all_of", "any_of", "every", "find", "on", "skip"]
