"""Random views on views in a running app, in which a process dies at each point that it passes."""

from __future__ import annotations

import os
import runpy
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import httpx
import pytest

from penstock import App
from penstock.app.graph import derived
from penstock.queue import EmbeddedLog
from tests.derived.layers import QUERIES, Rows, changes_in, expected
from tests.harness import RunningApp, running, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.soak]
POINTS = (
    "derived.before_commit", "derived.after_commit", "changes.after_append",
    "engine.before_commit", "engine.after_commit", "ledger.before_commit", "ledger.after_commit",
    "handler.before_delta", "handler.after_delta", "handler.after_append",
    "queue.before_commit", "queue.after_commit",
)  # fmt: skip
"""The failpoints of the engine, its workers, and the streams, which the gateway writes too.

Those of a rebuild, such as checkpoint.*, are not passed.
"""
KEYS = [f"{letter}{number}" for letter in "abc" for number in range(3)]
LAYERS = 6
SENT_FIRST = 10
"""The number of times that events are sent without waiting for the views: they are processed in few passes."""
SENT_MOST = 60
RIGHT_S = 240.0
APP = """
from datetime import timedelta

from penstock import App, Context, Event, State, gone


class Item(Event, id="id"):
    id: str
    k: str
    n: int


class Row(Event):
    k: str
    n: int


class Sum(State):
    n: int = 0


app = App("layers")
items = app.stream("items", Item, key="k")
app.sql("v0", "SELECT k, sum(n) AS n FROM items GROUP BY k", key="k", keep=timedelta(seconds=15))


@app.handler("v1", reads=items, key="k", state=Sum, emits=Row, view="k")
def v1(sum: Sum, event: Item, ctx: Context):
    sum.n += event.n
    yield Row(k=event.k, n=sum.n) if sum.n >= 0 else gone(Row, k=event.k)


"""
"""Rows of v0 expire; those of v1 are deleted when they fall below zero."""


def app_text(random: Random) -> str:
    """Return an app with random derived views, and a view that reads the changes of all of them."""
    lines = []
    for number in range(2, 2 + LAYERS):
        reads = [random.randrange(number) for _ in range(random.choice([1, 1, 2]))]
        query = random.choice(QUERIES[len(reads)]).format(*(f"v{index}" for index in reads))
        top = random.choice([None, None, None, 2])
        lines.append(f"app.sql('v{number}', {query!r}, key='k', top={top}, by={top and 'n'!r})\n")
    changes = " UNION ALL ".join(f"SELECT k FROM `v{number}.changes`" for number in range(2 + LAYERS))
    return (
        APP + "".join(lines) + f"app.sql('told', {f'SELECT k, count(*) AS n FROM ({changes}) GROUP BY k'!r}, key='k')\n"
    )


class Items:
    """The running app, the events sent to it, and the expected rows of its views."""

    def __init__(self, app: RunningApp, declared: App) -> None:
        self.app, self.declared = app, declared
        self.names = ["v0", "v1", *(view.name for view in derived(declared))]
        self.sums: dict[str, int] = {}
        self._ids = count()

    def send(self, events: list[tuple[str, int]]) -> None:
        """Retry until they are accepted: the gateway may die meanwhile, and an event with a known id counts once."""
        listed = [{"id": str(next(self._ids)), "k": key, "n": n} for key, n in events]
        wait_for(lambda: self._taken(listed), RIGHT_S, "an answer to events")
        for key, n in events:
            self.sums[key] = self.sums.get(key, 0) + n

    def _taken(self, listed: list[dict[str, Any]]) -> bool:
        try:
            answer = self.app.post("items", listed)
        except httpx.TransportError:
            return False
        return answer.status_code < 300 and answer.json()["accepted"] + answer.json()["duplicates"] == len(listed)

    def rows(self) -> dict[str, Rows]:
        return {name: {row["k"]: row["n"] for row in self.app.view(name)} for name in self.names}

    def is_right(self) -> bool:
        """Return whether v1 has all events, v0 some of the sums, and each derived view the result of its query on
        these."""
        try:
            before, rows = self.rows(), self.rows()
        except (httpx.TransportError, KeyError):  # the gateway is dead, or has just started
            return False
        with duckdb.connect() as duck:
            above = expected(self.declared, {name: rows[name] for name in ("v0", "v1")}, duck)
        return (
            before == rows
            and rows["v1"] == {key: n for key, n in self.sums.items() if n >= 0}
            and rows["v0"].items() <= self.sums.items()
            and all(rows[name] == expected_rows for name, expected_rows in above.items())
        )


@pytest.mark.parametrize("point", POINTS)
def test_derived_views_are_right_whenever_a_process_dies(tmp_path: Path, point: str) -> None:
    random = Random(seed := f"{os.environ['TEST_SEED']} {point}")
    file, mark = tmp_path / "app.py", tmp_path / "died"
    file.write_text(app_text(random))
    print(f"seed {seed}\n{file.read_text()[len(APP) :]}")
    trap = f"{point}@{random.choice([1, 2, 3, 5])}=kill:{mark}"
    with running(file, tmp_path / "data", PENSTOCK_FAILPOINTS=trap) as app:
        items = Items(app.ready() if point.startswith("derived") else app, runpy.run_path(str(file))["app"])
        for sent in range(SENT_MOST):
            items.send([(random.choice(KEYS), random.randint(-6, 8)) for _ in range(random.randint(1, 5))])
            if sent >= SENT_FIRST:
                wait_for(items.is_right, RIGHT_S, f"the rows of what was sent {sent}. {app.log_tail()}")
                if mark.exists():
                    break
        assert mark.exists(), f"{trap} was not reached"
        items.send([(key, random.randint(-9, 9)) for key in KEYS])
        wait_for(items.is_right, RIGHT_S, "the rows after it")
        wait_for(lambda: app.view("v0") == [] and items.is_right(), RIGHT_S, "the rows once all of v0 has expired")
        rows = items.rows()
        assert app.stop() == 0
    log = EmbeddedLog(tmp_path / "data/streams", read_only=True)
    assert {name: changes_in(log, f"{name}.changes") for name in items.names} == rows
    log.close()
