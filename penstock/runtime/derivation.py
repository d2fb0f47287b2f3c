"""Keep derived views up to date by recomputing them, in order, from one consistent set of input rows.

A *root* is a view that derived views read and that is not derived itself. A pass reads the rows of every root once, and
computes all derived views from them. So if a view depends on a root through two paths, both use the same version of the
root. Views that do not read each other are computed in parallel. Changes during a pass are left for the next pass: no
matter how fast roots change, only one pass runs at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import msgspec
import pyarrow as pa

from penstock.app.declared import View
from penstock.control import NodeState, NodeStatus, StatusColumn
from penstock.core.backoff import doubled_s
from penstock.core.contracts import LedgerEntry
from penstock.core.cursor import Positions, source_positions
from penstock.core.errors import PenstockError, SyncFailed
from penstock.runtime.changes import ChangePublisher
from penstock.store import KeyedTable, RowChanges, ServedTable, StoredView, StoredViewReader, in_order

log = logging.getLogger("penstock.engine")
Stamp = tuple[int, int]
"""A view's generation and version."""
Stamps = dict[str, Stamp]
"""The stamp of each input, by view name."""
LOOK_S = 1.0
"""Maximum time between two checks of the roots, in seconds. Each commit to a root calls `wake`; the regular checks are
needed to retry failed views, and in case a call is missed."""
SIDE_BY_SIDE = 2
"""Maximum number of views computed at the same time. A higher number would not help, because Spark spends most of the
time of a small query waiting, and the streaming queries need the processor too."""


@dataclass(frozen=True)
class ViewRows:
    """Rows of a view at one version, their log positions and, if known, the changes `since` another version."""

    key: tuple[str, ...]
    stamp: Stamp
    positions: Positions
    table: pa.Table
    since: Stamp | None = None
    change: RowChanges | None = None

    @cached_property
    def ordered(self) -> pa.Table:
        """Return the rows sorted by key, so the same rows always give the same table."""
        return in_order(self.table, self.key)

    @classmethod
    def of(cls, served: ServedTable, key: tuple[str, ...]) -> ViewRows:
        positions = source_positions(served.ledger.end) if served.ledger is not None else {}
        since = None if served.since is None else (served.generation, served.since)
        return cls(key, (served.generation, served.version), positions, served.table, since, served.change)


class Root:
    """A view that derived views read. Used by one thread at a time."""

    def __init__(self, view: View, open_reader: Callable[[], StoredViewReader | None]) -> None:
        self.name, self.key = view.name, view.key
        self.error: str | None = None
        self._open = open_reader
        self._reader: StoredViewReader | None = None
        self._rows: ViewRows | None = None
        self._served: ServedTable | None = None

    def rows(self) -> ViewRows | None:
        """Return the current rows, or None if the view was never computed. Returns the same object until the rows
        change."""
        if self._reader is not None and self._reader.replaced():
            self.close()
        if self._reader is None:
            self._reader = self._open()
        if self._reader is not None and self._reader.moved():
            table = self._reader.table(self._served)
            self._served = table
            if table is None:
                self._rows = None
            elif self._rows is None or self._rows.stamp != (table.generation, table.version):
                self._rows = ViewRows.of(table, self.key)
            else:
                self._rows = replace(self._rows, positions=ViewRows.of(table, self.key).positions)
        return self._rows

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._rows = self._served = None


class DerivedQuery(Protocol):
    """Computes a derived view from tables, one for each view that it reads. The same tables, with rows in the same
    order, produce the same result."""

    def compute(self, inputs: Sequence[pa.Table]) -> pa.Table: ...


@dataclass
class Retry:
    """Schedule for retrying a failed computation whose inputs have not changed. The wait doubles up to `longest_s`."""

    longest_s: float
    failures: int = 0
    at: float = float("inf")

    def schedule(self) -> None:
        self.at = time.monotonic() + doubled_s(1.0, self.longest_s, self.failures)
        self.failures += 1

    def reset(self) -> None:
        self.failures, self.at = 0, float("inf")


class DerivedView:
    """One derived view: its query, its file, and the result of its last computation. Used by one thread at a time.

    If each row is computed from one input row with the same key (`by_row`), only changed rows are recomputed.
    """

    def __init__(
        self,
        view: View,
        query: DerivedQuery,
        table: StoredView,
        epoch: int,
        publisher: ChangePublisher | None = None,
        *,
        longest_s: float,
        by_row: bool = False,
    ) -> None:
        self.view, self.table, self.publisher = view, table, publisher
        self.state: NodeState = "starting"
        self.error = ""
        self.rows: ViewRows | None = None
        self.took_ms: float | None = None
        self._query, self._epoch = query, epoch
        self._tried: Stamps | None = None
        self._done: Stamps | None = None
        self._keyed: KeyedTable | None = None
        self._by_row = by_row and view.top is None
        self._retry = Retry(longest_s)

    def update(self, inputs: Mapping[str, ViewRows]) -> None:
        """Bring the view up to date with its inputs if necessary. If this fails, the reason is recorded and nothing is
        written: the rows from the last successful computation remain."""
        stamps = {name: rows.stamp for name, rows in inputs.items()}
        try:
            if stamps == self._tried and time.monotonic() < self._retry.at:
                self._note(inputs, stamps)
            else:
                self._tried, self.rows = stamps, None
                began = time.monotonic()
                self.rows = self._compute(inputs, stamps)
                self.took_ms = (time.monotonic() - began) * 1000
                self._record_success()
        except SyncFailed:
            raise
        except (PenstockError, pa.ArrowException) as error:
            self._record_failure(self.view.placed(_failure(self.view.name, error)))

    def block(self, failed: str) -> None:
        """Record that the view cannot be computed, because a view that it reads has failed."""
        self.rows = self._tried = None
        reason = self.view.placed(f"view {self.view.name}: it is waiting for {failed}, which failed")
        if reason != self.error:
            self._retry.reset()
            self._record_failure(reason)

    def _record_success(self) -> None:
        self._retry.reset()
        if self.state != "running":
            log.info("%s: running", self.view.name)
        self.state, self.error = "running", ""

    def _record_failure(self, reason: str) -> None:
        if reason != self.error:
            log.error("%s failed: %s", self.view.name, reason)
        self.state, self.error = "failed", reason
        self._retry.schedule()

    def _note(self, inputs: Mapping[str, ViewRows], stamps: Stamps) -> None:
        """Record the log positions of the inputs, if their rows have not changed."""
        positions = merged(rows.positions for rows in inputs.values())
        if self.rows is not None and self.rows.positions != positions:
            self.table.advance(self._ledger_entry(positions, stamps))
            self.rows = replace(self.rows, positions=positions)
            self._record_success()

    def _compute(self, inputs: Mapping[str, ViewRows], stamps: Stamps) -> ViewRows:
        done, self._done, keyed, self._keyed = self._done, None, self._keyed, None  # until everything is written
        before = self.table.generation, self.table.version
        positions = merged(rows.positions for rows in inputs.values())
        entry = self._ledger_entry(positions, stamps)
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
        return ViewRows(self.view.key, stamp, positions, table, before if known else None, written if known else None)

    def _ledger_entry(self, positions: Positions, stamps: Stamps) -> LedgerEntry:
        last = self.table.last()
        batch_id, start = (0, "[]") if last is None else (last.batch_id + 1, last.end)
        return LedgerEntry(batch_id, start, positions_text(positions), self._epoch, stamps)

    def status(self, columns: tuple[StatusColumn, ...]) -> NodeStatus:
        """Return the view's state and progress; `columns` are the columns of its rows."""
        last = self.table.last()
        return NodeStatus(
            state=self.state,
            error=self.error or None,
            columns=columns,
            batch_id=None if last is None else last.batch_id,
            batch_ms=self.took_ms,
            positions={} if last is None else source_positions(last.end),
        )


def merged(positions: Iterable[Positions]) -> Positions:
    """Return, for each partition, the offset that every input has reached, which is the lowest of their offsets."""
    minimum: Positions = {}
    for position in positions:
        for stream, offsets in position.items():
            known = minimum.setdefault(stream, {})
            for partition, offset in offsets.items():
                known[partition] = min(offset, known.get(partition, offset))
    return minimum


def positions_text(positions: Positions) -> str:
    """Encode positions in the form that a ledger stores. This is the inverse of `source_positions`."""
    offsets = {
        f"{stream}/{partition}": offset
        for stream, mine in sorted(positions.items())
        for partition, offset in sorted(mine.items())
    }
    return msgspec.json.encode([offsets]).decode()


class Derivation:
    """Thread that keeps derived views up to date, one level after another. `wake` and `add` are thread-safe."""

    def __init__(
        self, levels: Sequence[Sequence[str]], roots: Iterable[Root], has_failed: Callable[[str], bool]
    ) -> None:
        """`has_failed` returns whether a root that was never computed has failed. Derived views do not wait for such a
        root."""
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
        """Start the thread, if there are derived views."""
        if self._levels:
            self._thread.start()

    def wake(self) -> None:
        """Notify the thread that a root may have changed. Thread-safe."""
        self._news.set()

    def stop(self) -> None:
        """Finish the current pass, and close the roots' files. The views' own files are closed by their owner."""
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
            if not self._stopping:
                self._news.wait(LOOK_S)

    def update(self) -> None:
        """Make one pass: read the rows of every root, then compute the derived views that are not up to date with these
        rows."""
        self._news.clear()
        known = {name: rows for name, root in self._roots.items() if (rows := _root_rows(root)) is not None}
        for level in self._levels:
            if not self._stopping:
                views = [self._views[name] for name in level if name in self._views]
                self._update_level(views, known)
                known |= {view.view.name: view.rows for view in views if view.rows is not None}

    def _update_level(self, views: Sequence[DerivedView], known: Mapping[str, ViewRows]) -> None:
        """Bring one level of views, which do not read each other, up to date. Returns when all of them have
        finished."""
        if len(views) == 1:
            self._update(views[0], known)
        else:
            running = [self._beside.submit(self._update, view, known) for view in views]
            wait(running)
            for future in running:
                future.result()

    def _update(self, view: DerivedView, known: Mapping[str, ViewRows]) -> None:
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


def _root_rows(root: Root) -> ViewRows | None:
    """Return the rows of a root, or None if it was never computed or cannot be read. The error is recorded in the
    root."""
    try:
        rows = root.rows()
        root.error = None
    except (PenstockError, pa.ArrowException) as error:
        reason = _failure(root.name, error)
        if reason != root.error:
            log.error("%s cannot be read by derived views: %s", root.name, reason)
        root.close()
        root.error, rows = reason, None
    return rows


def _failure(view: str, error: PenstockError | pa.ArrowException) -> str:
    """Return why a view cannot be read or computed. An error of Arrow does not name the view."""
    return error.message if isinstance(error, PenstockError) else f"view {view}: {error}"
