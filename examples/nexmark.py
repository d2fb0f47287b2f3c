"""Nexmark: the 23 queries of a streaming benchmark that models an auction house.

Each query is a separate app, and `app` combines some of them:

    penstock run examples/nexmark.py:q5

When run as a script, this file generates people, auctions and bids for one query, or for `app`:

    python examples/nexmark.py --query q5 --rate 200 --seed 1
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from examples.nexmark_queries import auctions, single, statistics, windows
from examples.nexmark_queries.events import Streams, streams
from penstock import App

QUERIES: dict[str, Callable[[App, Streams], None]] = {
    "q0": single.q0,
    "q1": single.q1,
    "q2": single.q2,
    "q3": auctions.q3,
    "q4": auctions.q4,
    "q5": windows.q5,
    "q6": auctions.q6,
    "q7": windows.q7,
    "q8": windows.q8,
    "q9": auctions.q9,
    "q10": single.q10,
    "q11": windows.q11,
    "q12": windows.q12,
    "q13": single.q13,
    "q14": single.q14,
    "q15": statistics.q15,
    "q16": statistics.q16,
    "q17": statistics.q17,
    "q18": statistics.q18,
    "q19": statistics.q19,
    "q20": auctions.q20,
    "q21": single.q21,
    "q22": single.q22,
}
TOGETHER = ("q1", "q2", "q4", "q5", "q9")


def app_for(*names: str) -> App:
    """Return an app that contains the named queries."""
    app = App("-".join(["nexmark", *names]) if len(names) == 1 else "nexmark")
    declared = streams(app)
    for name in names:
        QUERIES[name](app, declared)
    return app


app = app_for(*TOGETHER)
every = app_for(*QUERIES)
globals().update({name: app_for(name) for name in QUERIES})


if __name__ == "__main__":
    from examples.nexmark_queries.demo import main

    sys.exit(main(__file__))
