"""A view's file: its tables, its records, their checksums, and the checks that the writer and the readers share.

    head      "format"  kind, format and generation            (penstock.core.files)
              "shape"   the settings that determine the served rows: key, top and by
              "schema"  the column types, in Arrow's format; missing until the view's query is built
              "state"   version, counts, newest window, ledger; rewritten in every commit
    rows      every row of the view: key, row, and the values for its expiry and rank
    exact     the rows whose JSON loses information, as Arrow bytes   (penstock.core.lossless)
    changes   the latest changes, one for each version
    batches   the latest batches: the time and end of each   (penstock.store.history)

Every row, change and record has a checksum, and `state` contains the number of each. A changed byte is therefore
detected wherever it is: in a row, in a page that leads to rows, or in an index that orders them.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.core import files
from penstock.core.contracts import LedgerEntry
from penstock.core.errors import Damaged
from penstock.core.lossless import with_schema
from penstock.store import history
from penstock.store.delta import Rank, Ranked
from penstock.store.spec import ViewSpec

KIND = "view"
NO_GROUP = 0
"""The group of all rows in a view without windows."""

Row = tuple[str, int, int, int, Rank, bytes]
"""A row as stored: key, checksum, stamp (the time for its expiry), group (the end of its window), rank, JSON object."""

_TABLES = (
    # rank has no declared type, so that SQLite returns exactly the number or text that was stored.
    """CREATE TABLE rows (key TEXT PRIMARY KEY, crc INTEGER NOT NULL, stamp INTEGER NOT NULL, grp INTEGER NOT NULL,
       rank, data BLOB NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE changes (version INTEGER PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL)",
)
_EXACT = (
    "CREATE TABLE IF NOT EXISTS exact (key TEXT PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID"
)
_BY_RANK = "CREATE INDEX IF NOT EXISTS by_rank ON rows (grp, rank DESC, key)"
_BY_STAMP = "CREATE INDEX IF NOT EXISTS by_stamp ON rows (stamp)"
_SELECT = "SELECT key, crc, stamp, grp, rank, data FROM rows"
_encode = msgspec.msgpack.Encoder().encode


class ServedShape(msgspec.Struct, frozen=True):
    """The part of a spec that determines which rows are served and in what order."""

    key: list[str]
    top: int | None
    by: str | None


class ViewState(msgspec.Struct, frozen=True):
    """The state of the file. `newest` is the latest window end ever seen, or None in a view without windows.

    `oldest` is the first version whose change is kept, `served_crc` is a checksum over the ranked rows in order, and
    `exact` is the number of rows that are also stored as Arrow bytes.
    """

    version: int = 0
    rows: int = 0
    newest: int | None = None
    oldest: int = 1
    changes_bytes: int = 0
    served_crc: int = 0
    ledger: LedgerEntry | None = None
    exact: int = 0

    @property
    def group(self) -> int:
        """The group whose rows are ranked."""
        return NO_GROUP if self.newest is None else self.newest


def shape_of(spec: ViewSpec) -> ServedShape:
    return ServedShape(list(spec.key), spec.top, spec.by)


def row_sum(key: str, stamp: int, group: int, rank: Rank, data: bytes) -> int:
    return zlib.crc32(_encode((key, stamp, group, rank, data)))


def exact_sum(key: str, data: bytes) -> int:
    return files.checksum(key.encode(), b"\0", data)


def change_sum(version: int, data: bytes) -> int:
    return files.checksum(version.to_bytes(8, "big"), data)


def ranked_sum(ranked: Ranked) -> int:
    return files.checksum(*(_encode((key, rank, row)) for key, (rank, row) in ranked.items()))


def is_empty(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether nothing has been committed to the view's file yet, because the engine has only just created it.

    Raises `Damaged` if the file is shorter than a page. SQLite treats such a file as empty, but it always writes whole
    pages, so the file was truncated.
    """
    with files.storage_errors(path):
        if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None:
            return False
        (page,) = connection.execute("PRAGMA page_size").fetchone()
    with suppress(FileNotFoundError):  # removed concurrently, to be recreated
        if 0 < path.stat().st_size < page:
            raise Damaged(f"{path} is damaged: it is shorter than a page", file=str(path))
    return True


def create(connection: sqlite3.Connection, path: Path, spec: ViewSpec) -> None:
    """Create the tables of a view's new file, in one transaction: a reader sees all of them or none."""
    with files.transaction(connection, path):
        for statement in _TABLES:
            connection.execute(statement)
        files.make_head(connection, path, KIND)
        files.put_record(connection, "shape", shape_of(spec))
        put_state(connection, ViewState())
    files.sync_directory(path.parent)


def add_missing(connection: sqlite3.Connection, path: Path, spec: ViewSpec) -> None:
    """Create the tables and indexes that the spec needs and the view's file does not have: `keep` or `top` might be
    new."""
    with files.transaction(connection, path):
        connection.execute(history.TABLE)
        connection.execute(_EXACT)
        if spec.top is not None:
            connection.execute(_BY_RANK)
        if spec.keep is not None:
            connection.execute(_BY_STAMP)


def generation(connection: sqlite3.Connection, path: Path) -> int:
    return files.check_mark(files.get_record(connection, path, "format"), path, KIND)


def get_shape(connection: sqlite3.Connection, path: Path) -> ServedShape:
    return msgspec.convert(_required_record(connection, path, "shape"), ServedShape)


def get_state(connection: sqlite3.Connection, path: Path) -> ViewState:
    return msgspec.convert(_required_record(connection, path, "state"), ViewState)


def get_schema(connection: sqlite3.Connection, path: Path) -> pa.Schema | None:
    """Return the types of the view's columns, or None if they were never stored."""
    data = files.get_record(connection, path, "schema")
    return None if data is None else pa.ipc.read_schema(pa.py_buffer(data))


def put_schema(connection: sqlite3.Connection, schema: pa.Schema) -> None:
    files.put_record(connection, "schema", schema.serialize().to_pybytes())


def put_state(connection: sqlite3.Connection, state: ViewState) -> None:
    files.put_record(connection, "state", state)


def _required_record(connection: sqlite3.Connection, path: Path, name: str) -> object:
    value: object = files.get_record(connection, path, name)
    if value is None:
        raise Damaged(f"{path}: the record {name!r} is missing", file=str(path))
    return value


def all_rows(connection: sqlite3.Connection, path: Path, state: ViewState) -> Iterator[Row]:
    """Yield every row of a view in key order, after checking it. Raises `Damaged` at the first bad row, or if rows are
    missing.

    Call inside a read transaction. This is a generator, so only one row is in memory at a time.
    """
    count = 0
    with files.storage_errors(path):
        for row in connection.execute(f"{_SELECT} ORDER BY key"):
            yield _checked_row(row, path)
            count += 1
    if count != state.rows:
        raise Damaged(f"{path} is damaged: it has {count} rows, not {state.rows}", file=str(path))


def ranked(connection: sqlite3.Connection, path: Path, state: ViewState, top: int | None) -> Ranked:
    """Return the rows that a ranked view serves, from the newest group: best first, nulls last, ties in key order."""
    if top is None:
        return {}
    query = f"{_SELECT} WHERE grp = ? ORDER BY rank DESC, key LIMIT ?"
    with files.storage_errors(path):
        rows = [_checked_row(row, path) for row in connection.execute(query, (state.group, top))]
    return {key: (rank, data) for key, _, _, _, rank, data in rows}


def all_exact(connection: sqlite3.Connection, path: Path, state: ViewState) -> dict[str, bytes]:
    """Return the exact bytes of every view row whose JSON loses information, by key, after checking them."""
    if state.exact == 0:
        return {}
    rows: dict[str, bytes] = {}
    with files.storage_errors(path):
        for key, crc, data in connection.execute("SELECT key, crc, data FROM exact"):
            if not isinstance(data, bytes) or exact_sum(key, data) != crc:
                raise Damaged(
                    f"{path} is damaged: the exact row {str(key)[:200]} is not what was written", file=str(path)
                )
            rows[key] = data
    if len(rows) != state.exact:
        raise Damaged(f"{path} is damaged: it has {len(rows)} exact rows, not {state.exact}", file=str(path))
    return rows


def add_exact_schemas(connection: sqlite3.Connection, path: Path, state: ViewState, schema: pa.Schema) -> None:
    """Add the schema to exact rows that an earlier version of Penstock stored without it. Call inside a transaction,
    with the stored `schema`, before it is replaced: later, nothing would say what the columns of these rows are."""
    for key, data in all_exact(connection, path, state).items():
        whole = with_schema(data, schema)
        if whole != data:
            row = (exact_sum(key, whole), whole, key)
            connection.execute("UPDATE exact SET crc = ?, data = ? WHERE key = ?", row)


def require_ranked(rows: Ranked, state: ViewState, path: Path) -> None:
    if ranked_sum(rows) != state.served_crc:
        raise Damaged(f"{path} is damaged: its ranked rows do not match the last commit", file=str(path))


def _checked_row(row: Row, path: Path) -> Row:
    key, crc, stamp, group, rank, data = row
    if row_sum(key, stamp, group, rank, data) != crc:
        raise Damaged(f"{path} is damaged: the row with key {str(key)[:200]} is not what was written", file=str(path))
    return row


def changes_between(
    connection: sqlite3.Connection, path: Path, first: int, last: int, bytes_max: int
) -> Iterator[tuple[int, bytes]]:
    """Check and yield a view's changes for versions `first` to `last`: at least one, and no more once `bytes_max` is
    exceeded.

    Raises `Damaged` if a change is missing or bad. Call inside a read transaction, and only with versions that are
    kept.
    """
    expected, size = first, 0
    query = "SELECT version, crc, data FROM changes WHERE version BETWEEN ? AND ? ORDER BY version"
    with files.storage_errors(path):
        for version, crc, data in connection.execute(query, (first, last)):
            if version != expected or not isinstance(data, bytes) or change_sum(version, data) != crc:
                raise Damaged(f"{path} is damaged: change {expected} is not what was written", file=str(path))
            yield version, data
            expected, size = version + 1, size + len(data)
            if size > bytes_max:
                return
    if expected != last + 1:
        raise Damaged(f"{path} is damaged: change {expected} is missing", file=str(path))


def verify(connection: sqlite3.Connection, path: Path, top: int | None) -> None:
    """Read and check a view's whole file, including indexes. Blocks; called once, when the engine opens it."""
    with files.reading(connection, path):
        result = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if result != "ok":
            raise Damaged(f"{path} is damaged: {result}", file=str(path))
        state = get_state(connection, path)
        for _ in all_rows(connection, path, state):
            pass
        require_ranked(ranked(connection, path, state, top), state, path)
        all_exact(connection, path, state)
        for _ in changes_between(connection, path, state.oldest, state.version, state.changes_bytes):
            pass
