"""Views on views with real files: the base views are written by a test, the derived ones by the engine's parts, and the
expected rows come from another database."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
from hypothesis import strategies as st

from penstock import App, Event
from penstock.app.declared import View
from penstock.app.graph import derived, derived_levels
from penstock.core import failpoints
from penstock.core.columns import event_rows
from penstock.core.contracts import Output
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from penstock.runtime.changes import ChangePublisher
from penstock.runtime.derivation import Derivation, DerivedQuery, DerivedView, Root
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.views import open_reader, view_spec
from penstock.store import ViewReader, ViewTable
from tests.clocks import ManualClock
from tests.store.support import START

COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])
KEYS = [f"{letter}{number}" for letter in "abc" for number in range(3)]
Rows = dict[str, int | None]
MakeQuery = Callable[[View], DerivedQuery]


class Item(Event):
    k: str
    n: int


@dataclass(frozen=True)
class Layer:
    """A derived view: a query in which {0} and {1} stand for its inputs, and the number of rows it serves."""

    query: str
    reads: tuple[int, ...]
    top: int | None = None


@dataclass(frozen=True)
class Step:
    """A change of a base view: rows are set and deleted, time passes; or the process dies at a point."""

    root: int
    sets: Rows = field(default_factory=dict)
    deletes: Sequence[str] = ()
    minutes: int = 0
    crash: str | None = None


QUERIES = {
    1: (
        "SELECT k, n FROM {0} WHERE n >= 2",
        "SELECT k, n FROM {0} WHERE n IS NULL OR k LIKE 'a%'",
        "SELECT k, 3 - 2 * n AS n FROM {0}",
        "SELECT substr(k, 1, 1) AS k, CAST(sum(n) AS BIGINT) AS n FROM {0} GROUP BY substr(k, 1, 1)",
        "SELECT substr(k, 1, 1) AS k, count(*) AS n FROM {0} GROUP BY substr(k, 1, 1)",
        "SELECT substr(k, 1, 1) AS k, min(n) AS n FROM {0} GROUP BY substr(k, 1, 1)",
        "SELECT substr(k, 1, 1) AS k, max(n) AS n FROM {0} GROUP BY substr(k, 1, 1) HAVING count(*) > 1",
        "SELECT DISTINCT CAST(n AS STRING) AS k, n FROM {0} WHERE n IS NOT NULL",
        "SELECT 'all' AS k, CAST(sum(n) AS BIGINT) AS n FROM {0}",
    ),
    2: (
        "SELECT a.k AS k, a.n + b.n AS n FROM {0} AS a JOIN {1} AS b ON a.k = b.k",
        "SELECT a.k AS k, coalesce(a.n, 0) - coalesce(b.n, 0) AS n FROM {0} AS a LEFT JOIN {1} AS b ON a.k = b.k",
        "SELECT k, n FROM {0} WHERE k NOT IN (SELECT k FROM {1})",
        "SELECT concat('x', k) AS k, n FROM {0} UNION ALL SELECT concat('y', k) AS k, n FROM {1}",
    ),
}
BY_ROW = re.compile(r"SELECT k, [^()]+ FROM v\d+( WHERE [^()]+)?")
"""Queries that compute each row from one row with the same key."""
POINTS = ("derived.before_commit", "derived.after_commit", "changes.after_append")
VALUES = st.none() | st.integers(-3, 5)


@st.composite
def layers(draw: st.DrawFn, roots: int = 2, most: int = 4) -> list[Layer]:
    """Return derived views, each on views before it: chains, and paths that split and join."""
    layers: list[Layer] = []
    for number in range(draw(st.integers(1, most))):
        count = draw(st.sampled_from([1, 1, 2]))
        reads = tuple(draw(st.integers(0, roots + number - 1)) for _ in range(count))
        layers.append(Layer(draw(st.sampled_from(QUERIES[count])), reads, draw(st.sampled_from([None, None, None, 2]))))
    return layers


STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, 1),
        st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
        st.lists(st.sampled_from(KEYS), max_size=2),
        st.sampled_from([0, 0, 1, 3]),
        st.sampled_from([None, None, None, *POINTS]),
    ),
    min_size=1,
    max_size=6,
)


def layered_app(layers: Sequence[Layer], top: int | None = None) -> App:
    """Return an app with two base views, v0 and v1, and the derived views above them. `top` is that of the first."""
    app = App("layers")
    app.stream("items", Item, key="k")
    by = None if top is None else "n"
    app.sql("v0", "SELECT k, n FROM items", key="k", keep=timedelta(minutes=2), top=top, by=by)
    app.sql("v1", "SELECT k, n FROM items", key="k")
    for number, layer in enumerate(layers, 2):
        query = layer.query.format(*(f"v{index}" for index in layer.reads))
        app.sql(f"v{number}", query, key="k", top=layer.top, by=None if layer.top is None else "n")
    return app


class InDuck:
    """A view's query, run by DuckDB."""

    def __init__(self, view: View, connection: Any) -> None:
        self.view, self.connection = view, connection.cursor()  # views may be computed in parallel
        self.by_row = BY_ROW.fullmatch(view.query or "") is not None

    def compute(self, inputs: Sequence[pa.Table]) -> pa.Table:
        for name, table in zip(self.view.reads, inputs, strict=True):
            self.connection.register(name, table)
        rows = self.connection.sql(self.view.query).to_arrow_table()
        return rows.select(["k", "n"]).cast(COLUMNS)


class Layers:
    """The views of an app in a folder: files, streams of changes, and the derivation, which can be restarted."""

    def __init__(self, root: Path, app: App, make_query: MakeQuery | None = None) -> None:
        self.app, self.duck = app, duckdb.connect(config={"threads": 1})
        self.make_query = make_query or partial(InDuck, connection=self.duck)
        self.clock, self.settings = ManualClock(START), Settings()
        self.directory = DataDirectory(root)
        self.directory.make()
        self.batches = {"v0": 0, "v1": 0}
        self.epoch = 0
        self.open()

    def open(self) -> None:
        """Start, as the engine does after a crash."""
        self.epoch += 1
        self.log = EmbeddedLog(self.directory.streams)
        self.tables: dict[str, ViewTable] = {}
        self.publishers: dict[str, ChangePublisher] = {}
        for view in self.app.views:
            path, spec = self.directory.view_file(view.name), view_spec(view, self.settings)
            table = self.tables[view.name] = ViewTable(path, spec, clock=self.clock)
            table.describe(COLUMNS)
            reader = open_reader(view, EmbeddedStorage(self.directory), self.settings)
            assert reader is not None
            self.publishers[view.name] = ChangePublisher(view, COLUMNS, reader, self.log)
            self.publishers[view.name].publish()
        bottom = [view for view in self.app.views if view.name in self.batches]
        above = derived(self.app)
        roots = [
            Root(view, partial(open_reader, view, EmbeddedStorage(self.directory), self.settings)) for view in bottom
        ]
        self.derivation = Derivation(derived_levels(self.app), roots, lambda name: False)
        for view in above:
            query = self.make_query(view)
            arguments = query, self.tables[view.name], self.epoch, self.publishers[view.name]
            self.derivation.add(DerivedView(view, *arguments, longest_s=1, by_row=query.by_row))  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close everything for good."""
        self.duck.close()
        self.end()

    def end(self) -> None:
        """End as a process does that dies: its memory is lost."""
        self.derivation.stop()
        for publisher in self.publishers.values():
            publisher.close()
        for table in self.tables.values():
            table.close()
        self.log.close()

    def take(self, step: Step) -> None:
        """Apply a step, and bring the derived views up to date, whatever happens meanwhile."""
        self.clock.time += timedelta(minutes=step.minutes)
        name = f"v{step.root}"
        self._commit(name, step)
        if self.tables["v0"].expire():
            self.publishers["v0"].publish()
        if step.crash is not None:
            failpoints._traps[step.crash] = failpoints._Trap("stop", 1, None)
        try:
            self.derivation.update()
        except failpoints.Interrupted:
            self.end()
            self.open()
        finally:
            failpoints._traps.clear()
        self.derivation.update()

    def _commit(self, name: str, step: Step) -> None:
        rows = pa.Table.from_pylist([{"k": key, "n": value} for key, value in step.sets.items()], schema=COLUMNS)
        gone = pa.table({"k": pa.array([key for key in step.deletes if key not in step.sets], pa.string())})
        number = self.batches[name]
        start, end = (msgspec.json.encode([{f"items/{name[1:]}": offset}]).decode() for offset in (number, number + 1))
        self.tables[name].commit(Output(number, start, end, self.epoch, rows, gone))
        self.batches[name] = number + 1
        self.publishers[name].publish()

    def served(self, name: str) -> Rows:
        """Return the rows that a reader of the view's file finds."""
        view = next(view for view in self.app.views if view.name == name)
        reader = ViewReader(self.directory.view_file(name), view_spec(view, self.settings))
        snapshot = reader.load()
        reader.close()
        assert snapshot is not None
        return _folded({"upserts": [msgspec.json.decode(row) for row in snapshot.rows.in_order()], "deletes": []}, {})

    def followed(self, name: str) -> Rows:
        """Return the rows of a client that follows the stream of the view's changes."""
        return changes_in(self.log, f"{name}.changes")

    def expected(self) -> dict[str, Rows]:
        """Return the expected rows of each derived view, by its query on the rows of the base views."""
        return expected(self.app, {name: self.served(name) for name in self.batches}, self.duck)

    def require_right(self) -> None:
        """Check that each derived view has the rows of its query, its stream of changes leads there, and nothing has
        failed."""
        for name, rows in self.expected().items():
            state = self.derivation.views[name]
            assert (state.state, state.error) == ("running", "")
            assert self.served(name) == rows, name
        for view in self.app.views:
            assert self.followed(view.name) == self.served(view.name), view.name


def changes_in(log: EmbeddedLog, stream: str) -> Rows:
    """The rows that the changes in a stream lead to."""
    rows: Rows = {}
    for batch in log.read(stream, 0, 0, log.ends(stream)[0]):
        for change in map(msgspec.json.decode, event_rows(batch)):
            if change["_change"] == "delete":
                del rows[change["k"]]
            else:
                rows[change["k"]] = change["n"]
    return rows


def expected(app: App, roots: Mapping[str, Rows], duck: Any) -> dict[str, Rows]:
    """Return the expected rows of each derived view, given the rows of the base views."""
    known = dict(roots)
    for view in derived(app):
        tables = [
            pa.table({"k": list(known[name]), "n": pa.array(known[name].values(), pa.int64())}, schema=COLUMNS)
            for name in view.reads
        ]
        rows = {row["k"]: row["n"] for row in InDuck(view, duck).compute(tables).to_pylist()}
        known[view.name] = rows if view.top is None else _best(rows, view.top)
    return {view.name: known[view.name] for view in derived(app)}


def _best(rows: Rows, top: int) -> Rows:
    """Return the rows with the highest n; of equal n those with the lower key, and null last."""
    order = sorted(rows, key=lambda key: ((-rows[key] if rows[key] is not None else 1 << 60), f'{{"k":"{key}"}}'))  # type: ignore[operator]
    return {key: rows[key] for key in order[:top]}


def _folded(change: dict[str, Any], rows: Rows) -> Rows:
    for row in change["upserts"]:
        rows[row["k"]] = row["n"]
    for key in change["deletes"]:
        rows.pop(key["k"], None)
    return rows
