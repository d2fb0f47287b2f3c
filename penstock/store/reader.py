"""Reads of a view's file beside its writer. Plain and blocking: `LiveTable` decides what runs in which thread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock import files
from penstock.errors import StorageError
from penstock.store import layout
from penstock.store.delta import Delta, decode
from penstock.store.memory import ServedRows
from penstock.store.spec import ViewSpec


@dataclass(frozen=True)
class Loaded:
    """All that a view serves, at one version."""

    generation: int
    version: int
    rows: ServedRows
    schema: pa.Schema | None = None


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
