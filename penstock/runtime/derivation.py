"""Keeping derived views up to date: they are recomputed, in order, from one set of rows of the views they read.

A *root* is a view that derived views read and that is not derived itself. A pass takes the rows of every root once and
computes all derived views from them, so two ways from a root to a view always carry the same version of it. Views that
do not read each other are computed side by side. What happens during a pass is seen by the next one: however fast roots
change, there is one pass at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from penstock.contracts import LedgerEntry
from penstock.cursor import Positions, source_positions
from penstock.declared import View
from penstock.errors import PenstockError, SyncFailed
from penstock.runtime.changes import ChangePublisher
from penstock.store import Change, KeyedTable, ServedTable, ViewReader, ViewTable, in_order

log = logging.getLogger("penstock.engine")
Stamp = tuple[int, int]
"""A generation and a version."""
Stamps = dict[str, Stamp]
"""Those of each input."""
LOOK_S = 0.5
"""Longest wait between two looks at the roots."""
SIDE_BY_SIDE = 2
"""Most views that are computed at a time: Spark's part of a small query waits more than it computes, and the queries of
streams want the processor too."""


@dataclass(frozen=True)
class Rows:
    """The served rows of a view at one version, and how far they have come in the log; and, where it is known, what has
    changed `since` another version."""

    key: tuple[str, ...]
    stamp: Stamp
    positions: Positions
    table: pa.Table
    since: Stamp | None = None
    change: Change | None = None

    @cached_property
    def ordered(self) -> pa.Table:
        """The rows in the order of their keys: whatever has happened to them, the same rows are the same table."""
        return in_order(self.table, self.key)

    @classmethod
    def of(cls, served: ServedTable, key: tuple[str, ...]) -> Rows:
        positions = source_positions(served.ledger.end) if served.ledger is not None else {}
        since = None if served.since is None else (served.generation, served.since)
        return cls(key, (served.generation, served.version), positions, served.table, since, served.change)


class Root:
    """A view that derived views read. One thread at a time."""

    def __init__(self, view: View, open_reader: Callable[[], ViewReader | None]) -> None:
        self.name, self.key = view.name, view.key
        self.error: str | None = None
        self._open = open_reader
        self._reader: ViewReader | None = None
        self._rows: Rows | None = None
        self._served: ServedTable | None = None

    def rows(self) -> Rows | None:
        """The rows as they are now; None if the view was never computed. The same value until they change."""
        if self._reader is not None and self._reader.replaced():
            self.close()
        if self._reader is None:
            self._reader = self._open()
        if self._reader is not None and self._reader.moved():
            found = self._reader.table(self._served)
            self._served = found
            if found is None:
                self._rows = None
            elif self._rows is None or self._rows.stamp != (found.generation, found.version):
                self._rows = Rows.of(found, self.key)
            else:
                self._rows = replace(self._rows, positions=Rows.of(found, self.key).positions)
        return self._rows

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._rows = self._served = None


class Query(Protocol):
    """Computes a derived view from tables, one for each view that it reads. The same tables, in the same order of rows,
    give the same result."""

    def compute(self, inputs: Sequence[pa.Table]) -> pa.Table: ...


@dataclass
class Retry:
    """When to compute again what failed though its inputs stay as they are. The wait doubles up to `longest_s`."""

    longest_s: float
    failures: int = 0
    at: float = float("inf")

    def schedule(self) -> None:
        self.at = time.monotonic() + min(self.longest_s, 2.0**self.failures)
        self.failures += 1

    def reset(self) -> None:
        self.failures, self.at = 0, float("inf")


class DerivedView:
    """One derived view: its query, its file, and what is known of the last computation. One thread at a time.

    If each row is made of one row (`by_row`), which has the same key, only those that have changed are computed.
    """

    def __init__(
        self,
        view: View,
        query: Query,
        table: ViewTable,
        epoch: int,
        publisher: ChangePublisher | None = None,
        *,
        longest_s: float,
        by_row: bool = False,
    ) -> None:
        self.view, self.table, self.publisher = view, table, publisher
        self.state, self.error = "starting", ""
        self.rows: Rows | None = None
        self.took_ms: float | None = None
        self._query, self._epoch = query, epoch
        self._tried: Stamps | None = None
        self._done: Stamps | None = None
        self._keyed: KeyedTable | None = None
        self._by_row = by_row and view.top is None
        self._retry = Retry(longest_s)

    def update(self, inputs: Mapping[str, Rows]) -> None:
        """Bring the view up to date with what it reads, unless it is. A failure is noted, with its reason, and nothing
        is written: the rows stay those of the last success."""
        stamps = {name: rows.stamp for name, rows in inputs.items()}
        try:
            if stamps == self._tried and time.monotonic() < self._retry.at:
                self._note(inputs, stamps)
            else:
                self._tried, self.rows = stamps, None
                began = time.monotonic()
                self.rows = self._compute(inputs, stamps)
                self.took_ms = (time.monotonic() - began) * 1000
                self._succeed()
        except SyncFailed:
            raise
        except PenstockError as error:
            self._fail(self.view.placed(error.message))

    def block(self, failed: str) -> None:
        """Note that it cannot be computed, since a view that it reads has failed."""
        self.rows = self._tried = None
        reason = self.view.placed(f"view {self.view.name}: it waits for {failed}, which failed")
        if reason != self.error:
            self._retry.reset()
            self._fail(reason)

    def _succeed(self) -> None:
        self._retry.reset()
        if self.state != "running":
            log.info("%s: running", self.view.name)
        self.state, self.error = "running", ""

    def _fail(self, reason: str) -> None:
        if reason != self.error:
            log.error("%s failed: %s", self.view.name, reason)
        self.state, self.error = "failed", reason
        self._retry.schedule()

    def _note(self, inputs: Mapping[str, Rows], stamps: Stamps) -> None:
        """Note how far the inputs have come in the log, if their rows are the same as before."""
        positions = merged(rows.positions for rows in inputs.values())
        if self.rows is not None and self.rows.positions != positions:
            self.table.advance(self._entry(positions, stamps))
            self.rows = replace(self.rows, positions=positions)
            self._succeed()

    def _compute(self, inputs: Mapping[str, Rows], stamps: Stamps) -> Rows:
        done, self._done, keyed, self._keyed = self._done, None, self._keyed, None  # until all of it is written
        before = self.table.generation, self.table.version
        positions = merged(rows.positions for rows in inputs.values())
        entry = self._entry(positions, stamps)
        read = [inputs[name] for name in self.view.reads]
        change = read[0].change
        by_row = self._by_row and read[0].key == self.view.key
        if by_row and keyed is not None and change is not None and done == {self.view.reads[0]: read[0].since}:
            written = self.table.amend(self._query.compute([change.rows]), change, entry)
            self._keyed, _ = keyed.changed([written])
            table = self._keyed.table
        else:
            whole = self._query.compute([rows.ordered for rows in read])
            written = self.table.assign(whole, entry)
            table = self.table.served(whole)
            if by_row:
                self._keyed = self.table.keyed(whole)
        if self.publisher is not None:
            self.publisher.publish()
        self._done = stamps
        known = self.view.top is None and done is not None
        stamp = self.table.generation, self.table.version
        return Rows(self.view.key, stamp, positions, table, before if known else None, written if known else None)

    def _entry(self, positions: Positions, stamps: Stamps) -> LedgerEntry:
        last = self.table.last()
        batch_id, start = (0, "[]") if last is None else (last.batch_id + 1, last.end)
        return LedgerEntry(batch_id, start, positions_text(positions), self._epoch, stamps)

    def describe(self) -> dict[str, Any]:
        """Return what `Runner.status` returns for a view of streams."""
        last = self.table.last()
        return {
            "state": self.state,
            "error": self.error or None,
            "batch_id": None if last is None else last.batch_id,
            "batch_ms": self.took_ms,
            "watermark": None,
            "late": 0,
            "positions": "[]" if last is None else last.end,
        }


def merged(positions: Iterable[Positions]) -> Positions:
    """Return the lowest offset of each partition: all of them have come that far."""
    found: Positions = {}
    for each in positions:
        for stream, offsets in each.items():
            known = found.setdefault(stream, {})
            for partition, offset in offsets.items():
                known[partition] = min(offset, known.get(partition, offset))
    return found


def positions_text(positions: Positions) -> str:
    """As a ledger has it: the inverse of `source_positions`."""
    offsets = {
        f"{stream}/{partition}": offset
        for stream, mine in sorted(positions.items())
        for partition, offset in sorted(mine.items())
    }
    return msgspec.json.encode([offsets]).decode()


class Derivation:
    """The thread that keeps derived views up to date, those of one of the `levels` after those of the levels before.
    `wake` and `add` may be called from any thread."""

    def __init__(
        self, levels: Sequence[Sequence[str]], roots: Iterable[Root], has_failed: Callable[[str], bool]
    ) -> None:
        """`has_failed` tells of a root that was never computed whether to wait for it."""
        self._levels, self._has_failed = levels, has_failed
        self._roots = {root.name: root for root in roots}
        self._views: dict[str, DerivedView] = {}
        self._news = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="derivation", daemon=True)
        self._beside = ThreadPoolExecutor(SIDE_BY_SIDE, "derivation")
        self.fatal: SyncFailed | None = None

    @property
    def views(self) -> Mapping[str, DerivedView]:
        return self._views

    def add(self, view: DerivedView) -> None:
        self._views = self._views | {view.view.name: view}
        self.wake()

    def start(self) -> None:
        """Begin, if there is anything to keep up to date."""
        if self._levels:
            self._thread.start()

    def wake(self) -> None:
        """Say that a root may have changed."""
        self._news.set()

    def stop(self) -> None:
        """Finish the pass under way, and let go of the roots' files. The views' own are their owner's to close."""
        self._stopping = True
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        self._beside.shutdown()
        for root in self._roots.values():
            root.close()

    def _run(self) -> None:
        while not self._stopping and self.fatal is None:
            try:
                self.update()
            except SyncFailed as error:
                self.fatal = error
            except Exception:
                log.exception("derived views were not computed")
            self._news.wait(LOOK_S)

    def update(self) -> None:
        """Make one pass: take the rows of every root, then compute what is not of these rows."""
        self._news.clear()
        known = {name: rows for name, root in self._roots.items() if (rows := _rows(root)) is not None}
        for level in self._levels:
            if not self._stopping:
                views = [self._views[name] for name in level if name in self._views]
                self._update_level(views, known)
                known |= {view.view.name: view.rows for view in views if view.rows is not None}

    def _update_level(self, views: Sequence[DerivedView], known: Mapping[str, Rows]) -> None:
        """Bring views that do not read each other up to date. Returns when all of them are done with."""
        if len(views) == 1:
            self._update(views[0], known)
        else:
            running = [self._beside.submit(self._update, view, known) for view in views]
            wait(running)
            for each in running:
                each.result()

    def _update(self, view: DerivedView, known: Mapping[str, Rows]) -> None:
        missing = [name for name in view.view.reads if name not in known]
        failed = [name for name in missing if self._failed(name)]
        if failed:
            view.block(failed[0])
        elif not missing:
            view.update({name: known[name] for name in view.view.reads})

    def _failed(self, name: str) -> bool:
        if name in self._roots:
            return self._roots[name].error is not None or self._has_failed(name)
        return name not in self._views or self._views[name].state == "failed"


def _rows(root: Root) -> Rows | None:
    """The rows of a root; None if it was never computed, or cannot be read, which is noted with it."""
    try:
        rows = root.rows()
        root.error = None
    except PenstockError as error:
        if error.message != root.error:
            log.error("%s cannot be read by derived views: %s", root.name, error.message)
        root.close()
        root.error, rows = error.message, None
    return rows
