"""Comparison with a model in plain Python: whatever the batches, the served rows follow the declaration."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store import ViewSpec
from tests.clocks import ManualClock
from tests.store.support import (
    PLAIN,
    START,
    by_key,
    changes,
    counts,
    fold,
    open_view,
    output,
    served,
    window_counts,
    windowed,
)

Row = tuple[int, str, int | None]
"""Minute of the window's end (or, without windows, nothing), key, count."""


@dataclass
class Step:
    """One thing that happens to a view."""

    rows: list[Row] = field(default_factory=list)
    minutes: int = 0
    idle: bool = False
    restart: bool = False


ROWS = st.tuples(st.integers(0, 8), st.sampled_from("abcdef"), st.none() | st.integers(-3, 3))
STEPS = st.lists(
    st.builds(Step, st.lists(ROWS, max_size=6), st.integers(0, 3), st.booleans(), st.booleans()),
    min_size=1,
    max_size=12,
)
SPECS = st.builds(
    lambda with_windows, keep, top: replace(
        windowed() if with_windows else PLAIN,
        keep=None if keep is None else timedelta(minutes=keep),
        top=top,
        by=None if top is None else "n",
    ),
    st.booleans(),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 4),
)


@dataclass
class Model:
    """A view, modelled as simply as possible."""

    spec: ViewSpec
    rows: dict[tuple[int, str], tuple[int | None, datetime]] = field(default_factory=dict)
    newest: int | None = None

    @property
    def windows(self) -> bool:
        return "window" in self.spec.key

    def take(self, batch: list[Row], now: datetime) -> None:
        for minute, key, number in batch:
            self.rows[minute if self.windows else 0, key] = (number, now)
            if self.windows:
                self.newest = max(minute, self.newest) if self.newest is not None else minute
        self.expire(now)

    def expire(self, now: datetime) -> None:
        if self.spec.keep is None:
            return
        reference = now if self.newest is None else START + timedelta(minutes=self.newest)
        self.rows = {
            (minute, key): (number, changed)
            for (minute, key), (number, changed) in self.rows.items()
            if (START + timedelta(minutes=minute) if self.windows else changed) >= reference - self.spec.keep
        }

    def served(self) -> list[Row]:
        rows = sorted((minute, key, number) for (minute, key), (number, _) in self.rows.items())
        if self.spec.top is None:
            return rows
        group = [row for row in rows if not self.windows or row[0] == self.newest]
        return sorted(group, key=lambda row: (row[2] is None, -(row[2] or 0), row[1]))[: self.spec.top]


def as_model(row: Any) -> Row:
    if "window" not in row:
        return 0, row["k"], row["n"]
    end = datetime.fromisoformat(row["window"]["end"])
    return (end - START) // timedelta(minutes=1), row["k"], row["n"]


@settings(max_examples=80, deadline=None, print_blob=True)
@given(spec=SPECS, steps=STEPS)
def test_rows_served_are_those_of_the_model_and_changes_lead_from_any_version_to_them(
    spec: ViewSpec, steps: list[Step]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        check(Path(directory) / "view.db", spec, steps)


def check(path: Path, spec: ViewSpec, steps: list[Step]) -> None:
    clock, model, batch_id = ManualClock(START), Model(spec), 0
    snapshots: dict[int, list[Any]] = {}
    with ExitStack() as stack:
        view = stack.enter_context(open_view(path, spec, clock))
        for step in steps:
            clock.time += timedelta(minutes=step.minutes)
            if step.restart:
                stack.close()
                view = stack.enter_context(open_view(path, spec, clock))
            if step.idle:
                view.expire()
                model.expire(clock.time)
            else:
                assert view.commit(output(batch_id, table_of(step.rows, model)))
                batch_id += 1
                model.take(step.rows, clock.time)
            snapshot = served(path, spec)
            assert [as_model(row) for row in snapshot.rows] == model.served()
            assert view.size == len(model.rows)
            assert snapshots.setdefault(snapshot.version, snapshot.rows) == snapshot.rows, (
                "served rows changed without a version"
            )
    for version, rows in snapshots.items():
        assert fold(rows, changes(path, spec, version), spec) == by_key(snapshot.rows, spec)


def table_of(rows: list[Row], model: Model) -> pa.Table:
    return window_counts(*rows) if model.windows else counts(*((key, number) for _, key, number in rows))


def test_the_model_itself_ranks_and_expires() -> None:
    """The model is not vacuous: a known case, worked out by hand."""
    model = Model(replace(windowed(), keep=timedelta(minutes=2), top=1, by="n"))
    model.take([(1, "a", 5), (1, "b", None)], START)
    assert model.served() == [(1, "a", 5)]
    model.take([(4, "c", 1)], START)
    assert json.dumps(model.served()) == '[[4, "c", 1]]'
    assert list(model.rows) == [(4, "c")]
