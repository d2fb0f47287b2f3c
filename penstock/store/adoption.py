"""Adoption: the rows that a rebuild has made take the place of a view's rows, in the view's file, in one transaction.

The file stays: readers have it open, and a file of SQLite cannot be exchanged under them without its write-ahead log.
It gets a new generation, so every reader starts over with a snapshot. Versions go on: the difference between the rows
served before and after is one change like any other, so those who read changes by version miss nothing. The ledger and
the history of batches are those of the rebuild.
"""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import msgspec

from penstock import files
from penstock.failpoints import reach
from penstock.store import history, layout
from penstock.store.contents import Contents, log_difference, side_by_side
from penstock.store.layout import State
from penstock.store.spec import ViewSpec

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
            _replace(connection, Contents.of(before, path), Contents.of(other, made), epoch)
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


def _replace(connection: sqlite3.Connection, old: Contents, new: Contents, epoch: int) -> None:
    _write_rows(connection, old, new)
    connection.execute("DELETE FROM exact")
    exact = [(key, layout.exact_sum(key, data), data) for key, data in new.exact().items()]
    connection.executemany("INSERT INTO exact VALUES (?, ?, ?)", exact)
    state = log_difference(connection, old, new)
    ledger = replace(new.state.ledger, epoch=epoch) if new.state.ledger is not None else None
    layout.put_state(connection, msgspec.structs.replace(state, ledger=ledger))
    history.replace(connection, new.connection, new.path, version_max=state.version)
    mark = files.get_record(connection, old.path, "format")
    files.put_record(connection, "format", mark | {"generation": secrets.randbits(48)})
    files.put_record(connection, "shape", new.shape)
    if new.schema is not None:
        layout.put_schema(connection, new.schema)


def _write_rows(connection: sqlite3.Connection, old: Contents, new: Contents) -> None:
    """Write those rows that differ, in any column."""
    differing = (pair for pair in side_by_side(old.rows(), new.rows()) if pair[0] != pair[1])
    while some := list(islice(differing, WRITE_ROWS)):
        connection.executemany(_UPSERT, [row for _, row in some if row is not None])
        gone = [(before[0],) for before, row in some if row is None and before is not None]
        connection.executemany("DELETE FROM rows WHERE key = ?", gone)
