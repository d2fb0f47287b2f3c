"""Adoption: the rows that a rebuild has made take the place of a view's rows, in the view's file, in one transaction.

The file stays: readers have it open, and a file of SQLite cannot be exchanged under them without its write-ahead log.
It gets a new generation, so every reader starts over with a snapshot. Versions go on: the difference between the rows
served before and after is one change like any other, so those who read changes by version miss nothing. The ledger and
the history of batches are those of the rebuild.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock import files
from penstock.failpoints import reach
from penstock.store import history, layout
from penstock.store.delta import Delta, encode
from penstock.store.layout import Row, Shape, State
from penstock.store.spec import ViewSpec

CHANGE_BYTES_MAX = 256 * 1024 * 1024
"""A difference larger than this is several changes: a value in SQLite has at most 1,000,000,000 bytes."""
WRITE_ROWS = 10_000
_RECORD = "rebuilt"
_UPSERT = "INSERT OR REPLACE INTO rows (key, crc, stamp, grp, rank, data) VALUES (?, ?, ?, ?, ?, ?)"


class Rebuilt(msgspec.Struct, frozen=True):
    """The rebuild that a view's rows come from: its `id`, and the log positions where it began, as a ledger has them.

    `batches` is how many batches the view counted before the first one of this rebuild. Spark numbers batches from 0
    again; with this, a number is never used twice.
    """

    id: str
    origin: str
    batches: int


@dataclass(frozen=True)
class _Side:
    """A view's file at one instant: what it holds and what it serves."""

    connection: sqlite3.Connection
    path: Path
    state: State
    shape: Shape
    schema: pa.Schema | None

    @classmethod
    def of(cls, connection: sqlite3.Connection, path: Path) -> _Side:
        layout.generation(connection, path)
        state, shape = layout.get_state(connection, path), layout.get_shape(connection, path)
        return cls(connection, path, state, shape, layout.get_schema(connection, path))

    def exact(self) -> dict[str, bytes]:
        return layout.all_exact(self.connection, self.path, self.state)

    def rows(self) -> Iterator[Row]:
        return layout.all_rows(self.connection, self.path, self.state)

    def served(self) -> Iterator[Row]:
        """The served rows in order of key."""
        if self.shape.top is None:
            return self.rows()
        ranked = layout.ranked(self.connection, self.path, self.state, self.shape.top)
        layout.require_ranked(ranked, self.state, self.path)
        return ((key, 0, 0, 0, rank, data) for key, (rank, data) in sorted(ranked.items()))


def rebuilt(path: Path) -> Rebuilt | None:
    """The rebuild that a view's file comes from; None if it was never rebuilt, or is not there. Safe beside the
    writer."""
    if not path.exists():
        return None
    with closing(files.connect(path, read_only=True)) as connection, files.reading(connection, path):
        return None if layout.is_empty(connection, path) else _get(connection, path)


def adopt(path: Path, made: Path, spec: ViewSpec, *, identity: str, origin: str, epoch: int) -> Rebuilt:
    """Put the content of the file `made` in place of the content of the view's file `path`, durably, once.

    Called by the engine before it opens the view, blocking for a read of both files. After a crash it is done whole or
    not at all, and called again with the same `identity` it does nothing. Raises `Damaged` if either file is not as it
    was written.
    """
    with closing(files.connect(path)) as connection, closing(files.connect(made, read_only=True)) as other:
        if layout.is_empty(connection, path):
            layout.create(connection, path, spec)
        layout.add_missing(connection, path, spec)
        known = _get(connection, path)
        if known is not None and known.id == identity:
            return known
        layout.verify(other, made, layout.get_shape(other, made).top)
        with (
            closing(
                files.connect(path, read_only=True)
            ) as before,  # goes on to see the old rows while they are written
            files.reading(before, path),
            files.reading(other, made),
            files.transaction(connection, path),
        ):
            adopted = Rebuilt(identity, origin, _batches(known, layout.get_state(connection, path)))
            _replace(connection, _Side.of(before, path), _Side.of(other, made), epoch)
            files.put_record(connection, _RECORD, adopted)
            reach("adoption.before_commit")
        reach("adoption.after_commit")
        return adopted


def _get(connection: sqlite3.Connection, path: Path) -> Rebuilt | None:
    found = files.get_record(connection, path, _RECORD)
    return None if found is None else msgspec.convert(found, Rebuilt)


def _batches(known: Rebuilt | None, state: State) -> int:
    """One number more than were used: that one is for what the rebuild itself found."""
    used = state.ledger.batch_id + 1 if state.ledger is not None else 0
    return (known.batches if known is not None else 0) + used + 1


def _replace(connection: sqlite3.Connection, old: _Side, new: _Side, epoch: int) -> None:
    _write_rows(connection, old, new)
    connection.execute("DELETE FROM exact")
    exact = [(key, layout.exact_sum(key, data), data) for key, data in new.exact().items()]
    connection.executemany("INSERT INTO exact VALUES (?, ?, ?)", exact)
    state = _log_changes(connection, old, new)
    ledger = replace(new.state.ledger, epoch=epoch) if new.state.ledger is not None else None
    layout.put_state(connection, msgspec.structs.replace(state, ledger=ledger))
    history.replace(connection, new.connection, new.path, version_max=state.version)
    mark = files.get_record(connection, old.path, "format")
    files.put_record(connection, "format", mark | {"generation": secrets.randbits(48)})
    files.put_record(connection, "shape", new.shape)
    if new.schema is not None:
        layout.put_schema(connection, new.schema)


def _write_rows(connection: sqlite3.Connection, old: _Side, new: _Side) -> None:
    """Write those rows that differ, in any column."""
    differing = (pair for pair in _side_by_side(old.rows(), new.rows()) if pair[0] != pair[1])
    while some := list(islice(differing, WRITE_ROWS)):
        connection.executemany(_UPSERT, [row for _, row in some if row is not None])
        gone = [(before[0],) for before, row in some if row is None and before is not None]
        connection.executemany("DELETE FROM rows WHERE key = ?", gone)


def _log_changes(connection: sqlite3.Connection, old: _Side, new: _Side) -> State:
    """Add the difference of the served rows to the changes; returns the new state, but for its ledger.

    Earlier changes stay, for those who write them elsewhere by version and may not be done, unless they are of rows
    with another key or other columns.
    """
    state = old.state
    version, oldest, size = state.version, state.oldest, state.changes_bytes
    if (old.shape, old.schema) != (new.shape, new.schema):
        connection.execute("DELETE FROM changes")
        oldest, size = version + 1, 0
    for delta in _differences(old, new):
        version, data = version + 1, encode(delta)
        crc = layout.change_sum(version, data)
        connection.execute("INSERT INTO changes VALUES (?, ?, ?)", (version, crc, data))
        size += len(data)
    return msgspec.structs.replace(new.state, version=version, oldest=oldest, changes_bytes=size)


def _differences(old: _Side, new: _Side) -> Iterator[Delta]:
    """What turns the rows served before into those served after: one delta, unless that is very large."""
    was, exact, ranked = old.exact(), new.exact(), new.shape.top is not None
    delta, size = Delta([], [], [], [], {}), 0
    for before, after in _side_by_side(old.served(), new.served()):
        if after is None:
            assert before is not None
            delta.deletes.append(before[0])
            size += len(before[0])
        elif before is None or before[4:] != after[4:] or was.get(after[0]) != exact.get(after[0]):
            size += _add(delta, after, exact.get(after[0]), ranked=ranked)
        if size > CHANGE_BYTES_MAX:
            yield delta
            delta, size = Delta([], [], [], [], {}), 0
    if delta:
        yield delta


def _add(delta: Delta, row: Row, exact: bytes | None, *, ranked: bool) -> int:
    """Add an upsert; returns its size."""
    key, _, _, _, rank, data = row
    if exact is not None:
        delta.exact[len(delta.keys)] = exact
    delta.keys.append(key)
    delta.rows.append(data)
    if ranked:
        delta.ranks.append(rank)
    return len(key) + len(data) + len(exact or b"")


def _side_by_side(old: Iterable[Row], new: Iterable[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """The rows of both, in order of key; those with the same key together."""
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
