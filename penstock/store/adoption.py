"""Adoption, which replaces the rows in a view's file with the rows from a rebuild, in one transaction.

The file itself is kept, because readers have it open, and a SQLite file cannot be replaced without its write-ahead log.
It gets a new generation, so every reader starts over with a snapshot. Version numbers continue: the difference between
the rows served before and after is an ordinary change, so readers that follow changes by version do not miss anything.
The ledger and the history of batches come from the rebuild.
"""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import msgspec

from penstock.core import files
from penstock.core.failpoints import reach
from penstock.store import history, layout
from penstock.store.contents import Contents, log_difference, side_by_side
from penstock.store.layout import ViewState
from penstock.store.spec import ViewSpec

WRITE_ROWS = 10_000
_RECORD = "rebuilt"
_UPSERT = "INSERT OR REPLACE INTO rows (key, crc, stamp, grp, rank, data) VALUES (?, ?, ?, ?, ?, ?)"


class Rebuilt(msgspec.Struct, frozen=True):
    """The rebuild that a view's rows come from.

    `id` identifies the rebuild. `origin` contains the log positions where it began, in the ledger's format. `batches`
    is the number of batches that the view counted before the rebuild's first batch: Spark starts again at batch 0, and
    adding `batches` ensures that no number is used twice.
    """

    id: str
    origin: str
    batches: int


def rebuilt(path: Path) -> Rebuilt | None:
    """Return the rebuild that a view's file comes from, or None if the view was never rebuilt or the file does not
    exist.

    Safe to call while the writer has the file open.
    """
    if not path.exists():
        return None
    with closing(files.connect(path, read_only=True)) as connection, files.reading(connection, path):
        return None if layout.is_empty(connection, path) else _get_rebuilt(connection, path)


def adopt(path: Path, source: Path, spec: ViewSpec, *, identity: str, origin: str, epoch: int) -> Rebuilt:
    """Durably replace the contents of the view's file `path` with the contents of the file `source`.

    Called by the engine before it opens the view. Blocks while it reads both files. After a crash, the replacement is
    either complete or has not happened. Another call with the same `identity` does nothing. Raises `Damaged` if either
    file differs from what was written.
    """
    with closing(files.connect(path)) as connection, closing(files.connect(source, read_only=True)) as other:
        if layout.is_empty(connection, path):
            layout.create(connection, path, spec)
        layout.add_missing(connection, path, spec)
        known = _get_rebuilt(connection, path)
        if known is not None and known.id == identity:
            return known
        layout.verify(other, source, layout.get_shape(other, source).top)
        with (
            closing(
                files.connect(path, read_only=True)
            ) as before,  # still sees the old rows while the new ones are written
            files.reading(before, path),
            files.reading(other, source),
            files.transaction(connection, path),
        ):
            adopted = Rebuilt(identity, origin, _batches_used(known, layout.get_state(connection, path)))
            _replace_contents(connection, Contents.of(before, path), Contents.of(other, source), epoch)
            files.put_record(connection, _RECORD, adopted)
            reach("adoption.before_commit")
        reach("adoption.after_commit")
        return adopted


def _get_rebuilt(connection: sqlite3.Connection, path: Path) -> Rebuilt | None:
    record = files.get_record(connection, path, _RECORD)
    return None if record is None else msgspec.convert(record, Rebuilt)


def _batches_used(known: Rebuilt | None, state: ViewState) -> int:
    """Return how many batch numbers a view has used so far, plus one for the output of the rebuild itself."""
    used = state.ledger.batch_id + 1 if state.ledger is not None else 0
    return (known.batches if known is not None else 0) + used + 1


def _replace_contents(connection: sqlite3.Connection, old: Contents, new: Contents, epoch: int) -> None:
    _write_rebuilt_rows(connection, old, new)
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


def _write_rebuilt_rows(connection: sqlite3.Connection, old: Contents, new: Contents) -> None:
    """Write a rebuilt view's rows that differ in any column."""
    differing = (pair for pair in side_by_side(old.rows(), new.rows()) if pair[0] != pair[1])
    while some := list(islice(differing, WRITE_ROWS)):
        connection.executemany(_UPSERT, [row for _, row in some if row is not None])
        gone = [(before[0],) for before, row in some if row is None and before is not None]
        connection.executemany("DELETE FROM rows WHERE key = ?", gone)
