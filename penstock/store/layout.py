"""The file of a view: its tables, its records, their checksums, and the checks that both sides make.

    head      "format"  kind, format and generation            (penstock.files)
              "shape"   what the served rows depend on: key, top and by
              "schema"  the types of its columns, as Arrow writes them; once its query was built
              "state"   version, counts, newest window, ledger; rewritten in every commit
    rows      every row of the view: key, row, and the columns it expires and is ranked by
    exact     the rows whose JSON does not say everything, as Arrow's bytes   (penstock.lossless)
    changes   the latest changes, one for each version
    batches   the latest batches: when, and how far each had come   (penstock.store.history)

Every row, change and record has a checksum; `state` holds how many there must be. So a byte that is not what was
written is found wherever it stands: in a row, in a page that leads to rows, or in an index that orders them.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock import files
from penstock.contracts import LedgerEntry
from penstock.errors import Damaged
from penstock.store import history
from penstock.store.delta import Rank, Ranked
from penstock.store.spec import ViewSpec

KIND = "view"
NO_GROUP = 0
"""The group of every row of a view without windows."""

Row = tuple[str, int, int, int, Rank, bytes]
"""A row as stored: key, checksum, stamp (what it expires by), group (its window's end), rank, JSON object."""

_TABLES = (
    # rank has no declared type, so that SQLite gives back exactly the number or text that it was given.
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


class Shape(msgspec.Struct, frozen=True):
    """The part of a spec that decides which rows are served and in what order."""

    key: list[str]
    top: int | None
    by: str | None


class State(msgspec.Struct, frozen=True):
    """Where the file stands. `newest` is the latest window end ever seen, None in a view without windows;
    `oldest` the first version whose change is kept; `served_crc` a checksum over the ranked rows, in order; `exact`
    the number of rows that are kept as Arrow's bytes too."""

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


def shape_of(spec: ViewSpec) -> Shape:
    return Shape(list(spec.key), spec.top, spec.by)


def row_sum(key: str, stamp: int, group: int, rank: Rank, data: bytes) -> int:
    return zlib.crc32(_encode((key, stamp, group, rank, data)))


def exact_sum(key: str, data: bytes) -> int:
    return files.checksum(key.encode(), b"\0", data)


def change_sum(version: int, data: bytes) -> int:
    return files.checksum(version.to_bytes(8, "big"), data)


def ranked_sum(ranked: Ranked) -> int:
    return files.checksum(*(_encode((key, rank, row)) for key, (rank, row) in ranked.items()))


def is_empty(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether nothing has been committed to the file yet: the engine has only just made it.

    SQLite takes a file of less than a page for an empty one. It writes whole pages, so that is a file cut short.
    """
    with files.storage_errors(path):
        if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None:
            return False
        (page,) = connection.execute("PRAGMA page_size").fetchone()
    with suppress(FileNotFoundError):  # removed under us, to be made anew
        if 0 < path.stat().st_size < page:
            raise Damaged(f"{path} is damaged: it is shorter than a page", file=str(path))
    return True


def create(connection: sqlite3.Connection, path: Path, spec: ViewSpec) -> None:
    """Make the tables of a new file, in one transaction: a reader sees all of them or none."""
    with files.transaction(connection, path):
        for statement in _TABLES:
            connection.execute(statement)
        files.make_head(connection, path, KIND)
        files.put_record(connection, "shape", shape_of(spec))
        put_state(connection, State())
    files.sync_directory(path.parent)


def add_missing(connection: sqlite3.Connection, path: Path, spec: ViewSpec) -> None:
    """Make what the spec needs and the file has not yet: `keep` or `top` may be newly declared."""
    with files.transaction(connection, path):
        connection.execute(history.TABLE)
        connection.execute(_EXACT)
        if spec.top is not None:
            connection.execute(_BY_RANK)
        if spec.keep is not None:
            connection.execute(_BY_STAMP)


def generation(connection: sqlite3.Connection, path: Path) -> int:
    return files.check_mark(files.get_record(connection, path, "format"), path, KIND)


def get_shape(connection: sqlite3.Connection, path: Path) -> Shape:
    return msgspec.convert(_required(connection, path, "shape"), Shape)


def get_state(connection: sqlite3.Connection, path: Path) -> State:
    return msgspec.convert(_required(connection, path, "state"), State)


def get_schema(connection: sqlite3.Connection, path: Path) -> pa.Schema | None:
    """The types of the view's columns; None in a file whose query was never built since this is kept."""
    data = files.get_record(connection, path, "schema")
    return None if data is None else pa.ipc.read_schema(pa.py_buffer(data))


def put_schema(connection: sqlite3.Connection, schema: pa.Schema) -> None:
    files.put_record(connection, "schema", schema.serialize().to_pybytes())


def put_state(connection: sqlite3.Connection, state: State) -> None:
    files.put_record(connection, "state", state)


def _required(connection: sqlite3.Connection, path: Path, name: str) -> object:
    value: object = files.get_record(connection, path, name)
    if value is None:
        raise Damaged(f"{path}: the record {name!r} is missing", file=str(path))
    return value


def all_rows(connection: sqlite3.Connection, path: Path, state: State) -> Iterator[Row]:
    """Every row in key order, each checked; `Damaged` at the first that is not as written, or if some are missing.

    Call inside a read transaction; it is a generator, so memory holds one row at a time.
    """
    count = 0
    with files.storage_errors(path):
        for row in connection.execute(f"{_SELECT} ORDER BY key"):
            yield _checked(row, path)
            count += 1
    if count != state.rows:
        raise Damaged(f"{path} is damaged: it holds {count} rows and should hold {state.rows}", file=str(path))


def ranked(connection: sqlite3.Connection, path: Path, state: State, top: int | None) -> Ranked:
    """The rows that a ranked view serves, best first: those of the newest group, nulls last, ties by key."""
    if top is None:
        return {}
    query = f"{_SELECT} WHERE grp = ? ORDER BY rank DESC, key LIMIT ?"
    with files.storage_errors(path):
        found = [_checked(row, path) for row in connection.execute(query, (state.group, top))]
    return {key: (rank, data) for key, _, _, _, rank, data in found}


def all_exact(connection: sqlite3.Connection, path: Path, state: State) -> dict[str, bytes]:
    """The bytes of every row whose JSON does not say everything, by key, each checked."""
    if state.exact == 0:
        return {}
    found: dict[str, bytes] = {}
    with files.storage_errors(path):
        for key, crc, data in connection.execute("SELECT key, crc, data FROM exact"):
            if not isinstance(data, bytes) or exact_sum(key, data) != crc:
                raise Damaged(
                    f"{path} is damaged: the exact row {str(key)[:200]} is not what was written", file=str(path)
                )
            found[key] = data
    if len(found) != state.exact:
        raise Damaged(f"{path} is damaged: it holds {len(found)} exact rows, not {state.exact}", file=str(path))
    return found


def require_ranked(found: Ranked, state: State, path: Path) -> None:
    if ranked_sum(found) != state.served_crc:
        raise Damaged(f"{path} is damaged: its ranked rows are not those last committed", file=str(path))


def _checked(row: Row, path: Path) -> Row:
    key, crc, stamp, group, rank, data = row
    if row_sum(key, stamp, group, rank, data) != crc:
        raise Damaged(f"{path} is damaged: the row with key {str(key)[:200]} is not what was written", file=str(path))
    return row


def changes_between(
    connection: sqlite3.Connection, path: Path, first: int, last: int, bytes_max: int
) -> Iterator[tuple[int, bytes]]:
    """The stored changes of versions `first` to `last`, each checked, until `bytes_max` is passed (at least one).

    `Damaged` if one is missing or not as written. Call inside a read transaction, with kept versions only.
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
    """Read the whole file and check it, indexes included. Called once, when the engine opens it."""
    with files.reading(connection, path):
        found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise Damaged(f"{path} is damaged: {found}", file=str(path))
        state = get_state(connection, path)
        for _ in all_rows(connection, path, state):
            pass
        require_ranked(ranked(connection, path, state, top), state, path)
        all_exact(connection, path, state)
        for _ in changes_between(connection, path, state.oldest, state.version, state.changes_bytes):
            pass
