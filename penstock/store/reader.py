"""Reads of a view's file beside its writer. Plain and blocking: `LiveTable` decides what runs in which thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock import files
from penstock.contracts import LedgerEntry
from penstock.errors import StorageError
from penstock.lossless import table_of
from penstock.store import layout
from penstock.store.delta import Delta, decode
from penstock.store.keyed import Change, KeyedTable
from penstock.store.memory import ServedRows
from penstock.store.spec import ViewSpec

STEPS_BYTES = 64 * 1024 * 1024
"""Most changes that are read instead of all rows."""


@dataclass(frozen=True)
class Loaded:
    """All that a view serves, at one version."""

    generation: int
    version: int
    rows: ServedRows
    schema: pa.Schema | None = None


@dataclass(frozen=True)
class ServedTable:
    """All that a view serves as columns, at one version, and the ledger entry that goes with it; and, if it was made of
    an earlier one, which that was and what has changed."""

    generation: int
    version: int
    ledger: LedgerEntry | None
    rows: KeyedTable
    since: int | None = None
    change: Change | None = None

    @property
    def table(self) -> pa.Table:
        return self.rows.table

    def leads_to(self, generation: int, state: layout.State, schema: pa.Schema) -> bool:
        """Whether the changes that are kept lead from here to that state."""
        same = generation == self.generation and schema == self.table.schema
        return same and state.oldest - 1 <= self.version <= state.version

    def changed(self, deltas: Sequence[Delta], state: layout.State, view: str) -> ServedTable:
        """The rows after some changes. Costs what the changes cost, and a copy of the columns."""
        changes = [
            Change(table_of(each.rows, each.exact, self.table.schema, view), each.keys, each.deletes) for each in deltas
        ]
        rows, change = self.rows.changed(changes)
        return ServedTable(self.generation, state.version, state.ledger, rows, self.version, change)


@dataclass(frozen=True)
class Step:
    """One change, decoded and as clients get it."""

    version: int
    delta: Delta
    data: bytes


@dataclass(frozen=True)
class Piece:
    """Consecutive changes, and whether the file holds more of those that were asked for."""

    steps: list[Step]
    more: bool
    schema: pa.Schema | None = None


class Gap(Exception):
    """Some of the wanted changes are no longer kept, or the file was made anew."""


class ViewReader:
    """A view's file, open for reading. One thread at a time; `Damaged` if bytes are not what was written."""

    def __init__(self, path: Path, spec: ViewSpec) -> None:
        """Raises `StorageError` if the file is not there."""
        self._path, self._spec = path, spec
        self._connection = files.connect(path, read_only=True)
        self._seen: int | None = None
        try:
            # While it is open the file's inode is taken, so another file at this path has another number.
            self._inode = path.stat().st_ino
        except OSError as error:
            self._connection.close()
            raise StorageError(f"{path}: {error.strerror}", file=str(path)) from error

    def close(self) -> None:
        self._connection.close()

    def replaced(self) -> bool:
        """Whether another file stands at the path now. If there is none, this one is still the last word."""
        try:
            return self._path.stat().st_ino != self._inode
        except OSError:
            return False

    def moved(self) -> bool:
        """Whether something was committed since the last call, or this is the first one. Some ten microseconds."""
        version = files.data_version(self._connection, self._path)
        moved, self._seen = version != self._seen, version
        return moved

    def load(self) -> Loaded | None:
        """Everything that is served, in one read transaction; None if the file is still empty.

        `StorageError` if the file is of another declaration of the view, which the engine has yet to adapt.
        """
        connection, path = self._connection, self._path
        with files.reading(connection, path):
            if layout.is_empty(connection, path):
                return None
            generation = layout.generation(connection, path)
            if layout.get_shape(connection, path) != layout.shape_of(self._spec):
                raise StorageError(f"{path} is of an earlier declaration of view {self._spec.name}", file=str(path))
            state = layout.get_state(connection, path)
            return Loaded(generation, state.version, self._served(state), self._schema())

    def table(self, before: ServedTable | None = None) -> ServedTable | None:
        """Return the served rows as columns, exactly as they were written; None if the view's query was never built.

        With what was served `before`, only what has changed since is read, if that is still kept. Raises `ViewError` if
        rows do not fit the columns: then they are of another query.
        """
        connection, path = self._connection, self._path
        with files.reading(connection, path):
            if layout.is_empty(connection, path) or (schema := self._schema()) is None:
                return None
            generation, state = layout.generation(connection, path), layout.get_state(connection, path)
            if before is not None and before.leads_to(generation, state, schema):
                found = list(layout.changes_between(connection, path, before.version + 1, state.version, STEPS_BYTES))
                if before.version + len(found) == state.version:
                    deltas = [decode(data) for _, data in found]
                    return before.changed(deltas, state, self._spec.name)
            rows = self._keyed(state)
            exact = layout.all_exact(connection, path, state)
        places = {place: exact[key] for place, key in enumerate(rows) if key in exact} if exact else {}
        table = table_of(list(rows.values()), places, schema, self._spec.name)
        return ServedTable(generation, state.version, state.ledger, KeyedTable.of(table, list(rows)))

    def _keyed(self, state: layout.State) -> dict[str, bytes]:
        if self._spec.top is None:
            return {row[0]: row[5] for row in layout.all_rows(self._connection, self._path, state)}
        ranked = layout.ranked(self._connection, self._path, state, self._spec.top)
        layout.require_ranked(ranked, state, self._path)
        return {key: data for key, (_, data) in ranked.items()}

    def generation(self) -> int:
        """The generation of the file as it is now."""
        with files.reading(self._connection, self._path):
            return layout.generation(self._connection, self._path)

    def _served(self, state: layout.State) -> ServedRows:
        if self._spec.top is None:
            rows = layout.all_rows(self._connection, self._path, state)
            return ServedRows(False, ((key, None, data) for key, _, _, _, _, data in rows))
        ranked = layout.ranked(self._connection, self._path, state, self._spec.top)
        layout.require_ranked(ranked, state, self._path)
        return ServedRows(True, ((key, rank, data) for key, (rank, data) in ranked.items()))

    def steps(self, generation: int, after: int, *, limit: int, bytes_max: int) -> Piece:
        """Changes above `after`, at most `limit` and about `bytes_max`, in one read transaction; raises `Gap` if the
        first of them is gone."""
        connection, path = self._connection, self._path
        with files.reading(connection, path):
            if layout.is_empty(connection, path) or layout.generation(connection, path) != generation:
                raise Gap
            state = layout.get_state(connection, path)
            if after > state.version or after + 1 < state.oldest:
                raise Gap
            end = min(state.version, after + limit)
            found = list(layout.changes_between(connection, path, after + 1, end, bytes_max))
            schema = self._schema()
        decoded = [(version, decode(data)) for version, data in found]
        steps = [Step(version, delta, delta.as_json()) for version, delta in decoded]
        return Piece(steps, after + len(steps) < state.version, schema)

    def _schema(self) -> pa.Schema | None:
        return layout.get_schema(self._connection, self._path)
