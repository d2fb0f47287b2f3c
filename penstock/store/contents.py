"""The contents of a view's file, and the difference between the rows that two files serve."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.core import files
from penstock.core.errors import DeclarationError
from penstock.store import layout
from penstock.store.delta import Delta, encode
from penstock.store.layout import Row, ServedShape, ViewState
from penstock.store.spec import ViewSpec

CHANGE_BYTES_MAX = 256 * 1024 * 1024
"""Size above which a difference is split into several changes. SQLite limits a value to 1,000,000,000 bytes."""


@dataclass(frozen=True)
class Contents:
    """A view's file at one instant: all of its rows, and the rows that it serves."""

    connection: sqlite3.Connection
    path: Path
    state: ViewState
    shape: ServedShape
    schema: pa.Schema | None

    @classmethod
    def of(cls, connection: sqlite3.Connection, path: Path) -> Contents:
        layout.generation(connection, path)
        state, shape = layout.get_state(connection, path), layout.get_shape(connection, path)
        return cls(connection, path, state, shape, layout.get_schema(connection, path))

    def exact(self) -> dict[str, bytes]:
        return layout.all_exact(self.connection, self.path, self.state)

    def rows(self) -> Iterator[Row]:
        return layout.all_rows(self.connection, self.path, self.state)

    def served(self) -> Iterator[Row]:
        """Yield the view's served rows in key order."""
        if self.shape.top is None:
            return self.rows()
        ranked = layout.ranked(self.connection, self.path, self.state, self.shape.top)
        layout.require_ranked(ranked, self.state, self.path)
        return ((key, 0, 0, 0, rank, data) for key, (rank, data) in sorted(ranked.items()))

    def ranked_to(self, shape: ServedShape) -> Contents:
        """Return the view's contents, but with `shape` choosing the served rows."""
        crc = layout.ranked_sum(layout.ranked(self.connection, self.path, self.state, shape.top))
        return replace(self, state=msgspec.structs.replace(self.state, served_crc=crc), shape=shape)


def reshape(connection: sqlite3.Connection, path: Path, spec: ViewSpec) -> None:
    """Adapt a view's old file to a changed declaration, in one transaction.

    A different `top` changes which rows are served. The file gets a new generation, so readers start over, and the
    difference is a change with the next version, so readers that follow changes by version do not miss anything. Raises
    `DeclarationError` if the key or the rank column has changed, which would require rows that no longer exist.
    """
    old, new = layout.get_shape(connection, path), layout.shape_of(spec)
    if old == new:
        return
    if (old.key, old.by) != (new.key, new.by):
        raise DeclarationError(
            f"view {spec.name}: its rows are stored with key {old.key} and rank {old.by}, but it is now declared "
            f"with key {new.key} and rank {new.by}; rebuild it from the log: penstock rebuild FILE --view {spec.name}"
        )
    with files.transaction(connection, path):
        before = Contents.of(connection, path)
        layout.put_state(connection, log_difference(connection, before, before.ranked_to(new)))
        mark = files.get_record(connection, path, "format")
        files.put_record(connection, "format", mark | {"generation": secrets.randbits(48)})
        files.put_record(connection, "shape", new)


def log_difference(connection: sqlite3.Connection, old: Contents, new: Contents) -> ViewState:
    """Add the difference between the served rows to the view's changes. Returns the state of `new` with the resulting
    version.

    Earlier changes are kept for readers that follow changes by version and might not have read them yet, unless the key
    or the columns have changed.
    """
    state = old.state
    version, oldest, size = state.version, state.oldest, state.changes_bytes
    if (old.shape.key, old.schema) != (new.shape.key, new.schema):
        connection.execute("DELETE FROM changes")
        oldest, size = version + 1, 0
    for delta in _differences(old, new):
        version, data = version + 1, encode(delta)
        crc = layout.change_sum(version, data)
        connection.execute("INSERT INTO changes VALUES (?, ?, ?)", (version, crc, data))
        size += len(data)
    return msgspec.structs.replace(new.state, version=version, oldest=oldest, changes_bytes=size)


def _differences(old: Contents, new: Contents) -> Iterator[Delta]:
    """Yield the difference between the rows that two view files serve: one delta, or several if it is very large."""
    was, exact, ranked = old.exact(), new.exact(), new.shape.top is not None
    delta, size = Delta([], [], [], [], {}), 0
    for before, after in side_by_side(old.served(), new.served()):
        if after is None:
            assert before is not None
            delta.deletes.append(before[0])
            size += len(before[0])
        elif before is None or before[4:] != after[4:] or was.get(after[0]) != exact.get(after[0]):
            size += _add_upsert(delta, after, exact.get(after[0]), ranked=ranked)
        if size > CHANGE_BYTES_MAX:
            yield delta
            delta, size = Delta([], [], [], [], {}), 0
    if delta:
        yield delta


def _add_upsert(delta: Delta, row: Row, exact: bytes | None, *, ranked: bool) -> int:
    """Add a view row's upsert to a delta, and return its size."""
    key, _, _, _, rank, data = row
    if exact is not None:
        delta.exact[len(delta.keys)] = exact
    delta.keys.append(key)
    delta.rows.append(data)
    if ranked:
        delta.ranks.append(rank)
    return len(key) + len(data) + len(exact or b"")


def side_by_side(old: Iterable[Row], new: Iterable[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """Yield a view's old and new rows in pairs with the same key, in key order. A row that does not exist is None."""
    olds, news = iter(old), iter(new)
    before, after = next(olds, None), next(news, None)
    while before is not None or after is not None:
        if after is None or (before is not None and before[0] < after[0]):
            yield before, None
            before = next(olds, None)
        elif before is None or after[0] < before[0]:
            yield None, after
            after = next(news, None)
        else:
            yield before, after
            before, after = next(olds, None), next(news, None)
