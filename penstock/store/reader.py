"""Reads a view's file while its writer runs. All functions block; `InMemoryView` decides which thread runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.core import files
from penstock.core.contracts import LedgerEntry
from penstock.core.errors import StorageError
from penstock.core.lossless import table_of
from penstock.store import layout
from penstock.store.delta import Delta, decode
from penstock.store.keyed import KeyedTable, RowChanges
from penstock.store.memory import ServedRows
from penstock.store.spec import ViewSpec

STEPS_BYTES = 64 * 1024 * 1024
"""Maximum total size of the changes to read. If there are more changes, all rows are read instead."""


@dataclass(frozen=True)
class LoadedView:
    """All rows that a view serves, at one version."""

    generation: int
    version: int
    rows: ServedRows
    schema: pa.Schema | None = None


@dataclass(frozen=True)
class ServedTable:
    """All rows that a view serves as columns, at one version, with its ledger entry.

    If it was derived from an earlier table, `since` is the version of that table, and `change` is the change since that
    version.
    """

    generation: int
    version: int
    ledger: LedgerEntry | None
    rows: KeyedTable
    since: int | None = None
    change: RowChanges | None = None

    @property
    def table(self) -> pa.Table:
        return self.rows.table

    def leads_to(self, generation: int, state: layout.ViewState, schema: pa.Schema) -> bool:
        """Return whether the stored changes lead from this table to that state."""
        same = generation == self.generation and schema == self.table.schema
        return same and state.oldest - 1 <= self.version <= state.version

    def changed(self, deltas: Sequence[Delta], state: layout.ViewState, view: str) -> ServedTable:
        """Return the table after some changes. The cost depends on the size of the changes, plus a copy of the
        columns."""
        changes = [
            RowChanges(table_of(delta.rows, delta.exact, self.table.schema, view), delta.keys, delta.deletes)
            for delta in deltas
        ]
        rows, change = self.rows.changed(changes)
        return ServedTable(self.generation, state.version, state.ledger, rows, self.version, change)


@dataclass(frozen=True)
class ChangeStep:
    """One change of a view, both decoded and as sent to clients."""

    version: int
    delta: Delta
    data: bytes


@dataclass(frozen=True)
class ChangeBatch:
    """Consecutive changes of a view, and whether the file contains later changes."""

    steps: list[ChangeStep]
    more: bool
    schema: pa.Schema | None = None


class Gap(Exception):
    """Raised if some of a view's requested changes are no longer kept, or if the file was recreated."""


class ViewReader:
    """A view file opened for reading. Used by one thread at a time.

    Raises `Damaged` if stored bytes differ from what was written.
    """

    def __init__(self, path: Path, spec: ViewSpec) -> None:
        """Raises `StorageError` if the file does not exist."""
        self._path, self._spec = path, spec
        self._connection = files.connect(path, read_only=True)
        self._seen: int | None = None
        try:
            # While the file is open its inode is in use, so a different file at this path has a different inode.
            self._inode = path.stat().st_ino
        except OSError as error:
            self._connection.close()
            raise StorageError(f"{path}: {error.strerror}", file=str(path)) from error

    def close(self) -> None:
        self._connection.close()

    def replaced(self) -> bool:
        """Return whether there is now a different view file at the path. If there is no file at the path, the open file
        is still valid."""
        try:
            return self._path.stat().st_ino != self._inode
        except OSError:
            return False

    def moved(self) -> bool:
        """Return whether anything has been committed to the view since the last call; True on the first call.

        Takes about ten microseconds.
        """
        version = files.data_version(self._connection, self._path)
        moved, self._seen = version != self._seen, version
        return moved

    def load(self) -> LoadedView | None:
        """Load everything that the view serves, in one read transaction. Return None if the file is still empty.

        Raises `StorageError` if the file was written for a different declaration of the view, and the engine has not
        adapted it yet.
        """
        connection, path = self._connection, self._path
        with files.reading(connection, path):
            if layout.is_empty(connection, path):
                return None
            generation = layout.generation(connection, path)
            if layout.get_shape(connection, path) != layout.shape_of(self._spec):
                raise StorageError(
                    f"{path} was written for an earlier declaration of view {self._spec.name}", file=str(path)
                )
            state = layout.get_state(connection, path)
            return LoadedView(generation, state.version, self._served(state), self._schema())

    def table(self, before: ServedTable | None = None) -> ServedTable | None:
        """Return the view's served rows as columns, exactly as they were written, or None if the view's query was never
        built.

        If `before` is an earlier result, only the changes since then are read, provided that they are still kept.
        Raises `ViewError` if rows do not match the columns, because they were written by a different query.
        """
        connection, path = self._connection, self._path
        with files.reading(connection, path):
            if layout.is_empty(connection, path) or (schema := self._schema()) is None:
                return None
            generation, state = layout.generation(connection, path), layout.get_state(connection, path)
            if before is not None and before.leads_to(generation, state, schema):
                changes = list(layout.changes_between(connection, path, before.version + 1, state.version, STEPS_BYTES))
                if before.version + len(changes) == state.version:
                    deltas = [decode(data) for _, data in changes]
                    return before.changed(deltas, state, self._spec.name)
            rows = self._keyed(state)
            exact = layout.all_exact(connection, path, state)
        places = {place: exact[key] for place, key in enumerate(rows) if key in exact} if exact else {}
        table = table_of(list(rows.values()), places, schema, self._spec.name)
        return ServedTable(generation, state.version, state.ledger, KeyedTable.of(table, list(rows)))

    def _keyed(self, state: layout.ViewState) -> dict[str, bytes]:
        if self._spec.top is None:
            return {row[0]: row[5] for row in layout.all_rows(self._connection, self._path, state)}
        ranked = layout.ranked(self._connection, self._path, state, self._spec.top)
        layout.require_ranked(ranked, state, self._path)
        return {key: data for key, (_, data) in ranked.items()}

    def columns(self) -> pa.Schema | None:
        """Return the types of the view's columns, or None if they were never stored."""
        with files.reading(self._connection, self._path):
            return None if layout.is_empty(self._connection, self._path) else self._schema()

    def generation(self) -> int:
        """Return the current generation of the view's file."""
        with files.reading(self._connection, self._path):
            return layout.generation(self._connection, self._path)

    def _served(self, state: layout.ViewState) -> ServedRows:
        if self._spec.top is None:
            rows = layout.all_rows(self._connection, self._path, state)
            return ServedRows(False, ((key, None, data) for key, _, _, _, _, data in rows))
        ranked = layout.ranked(self._connection, self._path, state, self._spec.top)
        layout.require_ranked(ranked, state, self._path)
        return ServedRows(True, ((key, rank, data) for key, (rank, data) in ranked.items()))

    def steps(self, generation: int, after: int, *, limit: int, bytes_max: int) -> ChangeBatch:
        """Return the view's changes after a version, at most `limit` changes and about `bytes_max` bytes, in one read
        transaction.

        Raises `Gap` if the first of them is no longer kept, or if the file has a different generation.
        """
        connection, path = self._connection, self._path
        with files.reading(connection, path):
            if layout.is_empty(connection, path) or layout.generation(connection, path) != generation:
                raise Gap
            state = layout.get_state(connection, path)
            if after > state.version or after + 1 < state.oldest:
                raise Gap
            end = min(state.version, after + limit)
            changes = list(layout.changes_between(connection, path, after + 1, end, bytes_max))
            schema = self._schema()
        decoded = [(version, decode(data)) for version, data in changes]
        steps = [ChangeStep(version, delta, delta.as_json()) for version, delta in decoded]
        return ChangeBatch(steps, after + len(steps) < state.version, schema)

    def _schema(self) -> pa.Schema | None:
        return layout.get_schema(self._connection, self._path)
