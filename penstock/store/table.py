"""The engine's side of a view: one transaction for each micro-batch, from the check against the ledger to the new
entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from threading import Lock
from types import EllipsisType

import msgspec
import pyarrow as pa

from penstock.core import failpoints, files
from penstock.core.columns import json_rows, require_one_row_each
from penstock.core.contracts import Clock, LedgerEntry, Output
from penstock.core.errors import LedgerMismatch
from penstock.core.lossless import beyond_json
from penstock.core.schema import INT_MAX, INT_MIN
from penstock.store import history, layout
from penstock.store.contents import reshape
from penstock.store.delta import Delta, Ranked, difference, encode
from penstock.store.history import Done
from penstock.store.keyed import KeyedTable, RowChanges
from penstock.store.layout import Row, ViewState, row_sum
from penstock.store.ledger import is_next
from penstock.store.rows import Batch, duration, keys_of, microseconds, newest_window, to_rows
from penstock.store.spec import ViewSpec

CACHE_KIB = 32 * 1024
CHECKPOINT_PAGES = 4000
"""Number of WAL pages between two checkpoints (16 MiB). A commit of 10,000 rows writes about 5 MiB."""
EXPIRED_MIN = 20_000
"""Maximum number of expired rows that one commit deletes, or twice the number of its own rows if that is greater.

With this limit, expiry keeps up, and no commit has to wait until a whole window with millions of rows has been deleted.
Later commits delete the remaining rows.
"""
NEVER = INT_MAX
"""The stamp of a row that does not expire."""
TRIMMED_MAX = 64
"""Maximum number of changes that one commit deletes. A commit adds only one change, so the number of changes soon falls
back below its limit."""

_UPSERT = """INSERT INTO rows (key, crc, stamp, grp, rank, data) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE
    SET crc = excluded.crc, stamp = excluded.stamp, grp = excluded.grp, rank = excluded.rank, data = excluded.data"""
_KNOWN = "SELECT count(*) FROM json_each(?) AS offered JOIN rows ON rows.key = offered.value"
_PRESENT = "SELECT rows.key FROM json_each(?) AS offered JOIN rows ON rows.key = offered.value"
_EXPIRED = "SELECT key FROM rows WHERE stamp < ? ORDER BY stamp LIMIT ?"
_EXPIRING = "SELECT key, grp, rank, data FROM rows WHERE stamp < ?"
_NEWEST = "SELECT max(grp) FROM rows"
_OLDEST = "SELECT version, length(data) FROM changes WHERE version <= ? ORDER BY version LIMIT ?"


class ViewTable:
    """A view file opened for writing. Implements `contracts.Sink`. Only one process can have it open for writing at a
    time.

    Opening creates the file, or checks all of an existing file and raises `Damaged`, with the file's name, if it is
    damaged. `commit` and `expire` can be called from different threads: they run one at a time, and block during disk
    access. After a crash at any point, a commit is either complete or has not happened, and committing the same batch
    again has the same result.
    """

    def __init__(self, path: Path, spec: ViewSpec, *, clock: Clock) -> None:
        self._path, self._spec, self._clock = path, spec, clock
        self._lock = Lock()
        self._known: dict[str, bytes] | None = None
        self._connection = files.connect(path)
        try:
            self._prepare()
            self.generation = layout.generation(self._connection, path)
            self._state = layout.get_state(self._connection, path)
            self._ranked = layout.ranked(self._connection, path, self._state, spec.top)
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        connection, path = self._connection, self._path
        with files.storage_errors(path):
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        if layout.is_empty(connection, path):
            layout.create(connection, path, self._spec)
        else:
            layout.generation(connection, path)
            layout.verify(connection, path, layout.get_shape(connection, path).top)
            reshape(connection, path, self._spec)
        layout.add_missing(connection, path, self._spec)

    @property
    def size(self) -> int:
        """The number of the view's stored rows. A ranked view serves only the top rows."""
        return self._state.rows

    @property
    def version(self) -> int:
        """The version of the view's served rows."""
        return self._state.version

    def served(self, rows: pa.Table) -> pa.Table:
        """Return the view's served rows. `rows` contains all rows, and must be the rows that were assigned last."""
        if self._spec.top is None:
            return rows
        places = {key: place for place, key in enumerate(keys_of(rows, self._spec))}
        return rows.take(pa.array([places[key] for key in self._ranked], pa.int64()))

    def keyed(self, rows: pa.Table) -> KeyedTable:
        """Return the view's `rows` with the position of each key."""
        return KeyedTable.of(rows, keys_of(rows, self._spec))

    def last(self) -> LedgerEntry | None:
        return self._state.ledger

    def commit(self, output: Output, *, windows_expire: bool = True) -> bool:
        """Implement `Sink.commit`. If `windows_expire` is False, the caller deletes the rows of windows itself: `keep`
        does not apply to the rows that are written."""
        with self._lock:
            with files.transaction(self._connection, self._path):
                stored = layout.get_state(self._connection, self._path)
                if not is_next(stored.ledger, output, self._path):
                    return False
                self._require_own(stored)
                batch = to_rows(output.table, self._spec, self._clock.now(), output.deletes)
                entry = LedgerEntry(output.batch_id, output.start, output.end, output.epoch)
                state, ranked = self._advance(batch, entry, windows_expire=windows_expire)
                done = Done(microseconds(self._clock.now()), output.end, version=state.version)
                history.add(self._connection, output.batch_id, done)
                failpoints.reach("ledger.before_commit")
            self._state, self._ranked = state, ranked
            failpoints.reach("ledger.after_commit")
            return True

    def replace(self, rows: pa.Table, *, windows_expire: bool = True) -> None:
        """Replace all rows of the view, as one change. Finished batches stay finished. `windows_expire` is described in
        `commit`; here, it also applies to rows that do not change."""
        with self._lock:
            with files.transaction(self._connection, self._path):
                self._require_own(layout.get_state(self._connection, self._path))
                changed, deletes = self._difference(rows, self._stored())
                batch = to_rows(changed, self._spec, self._clock.now())
                if not windows_expire:
                    self._stop_expiry()
                state, ranked = self._advance(
                    replace(batch, deletes=deletes), self._state.ledger, windows_expire=windows_expire
                )
            self._state, self._ranked = state, ranked

    def assign(self, rows: pa.Table, entry: LedgerEntry) -> RowChanges:
        """Replace all rows of a derived view. Writes the difference as one change, together with the ledger entry, and
        returns the difference.

        Unchanged rows are not written. Raises `ViewError` if two rows have the same key, and `LedgerMismatch` if a
        later owner has written. Keeps the JSON of all rows in memory for the comparison.
        """
        with self._lock:
            known = self._take_known()
            changed, deletes = self._difference(rows, known)
            return self._write_change(changed, deletes, newest_window(rows, self._spec), known, entry)

    def amend(self, rows: pa.Table, change: RowChanges, entry: LedgerEntry) -> RowChanges:
        """Apply a change to a derived view. Each of its rows must come from one input row with the same key.

        `change` is the change to the input rows, and `rows` is the output for the rows in `change`.
        """
        with self._lock:
            known = self._take_known()
            changed, keys = self._differing(rows, known)
            passed = set(keys)
            deletes = [key for key in (*change.keys, *change.deletes) if key in known and key not in passed]
            return self._write_change(changed, deletes, ..., known, entry)

    def _take_known(self) -> dict[str, bytes]:
        """Take the JSON of all rows of a derived view out of the cache, or read it from the file.

        The caller puts the JSON back once the change to the rows is durable. If the change fails, the JSON is read
        again.
        """
        known, self._known = self._known, None
        return self._stored() if known is None else known

    def _write_change(
        self,
        changed: pa.Table,
        deletes: list[str],
        newest: int | EllipsisType | None,
        known: dict[str, bytes],
        entry: LedgerEntry,
    ) -> RowChanges:
        batch = to_rows(changed, self._spec, self._clock.now())
        self._enter(replace(batch, deletes=deletes), entry, newest)
        known.update((row[0], row[5]) for row in batch.rows)
        for key in deletes:
            del known[key]
        self._known = known
        failpoints.reach("derived.after_commit")
        return RowChanges(changed, [row[0] for row in batch.rows], deletes)

    def advance(self, entry: LedgerEntry) -> None:
        """Record that a derived view is up to date with its inputs, which have advanced without changing any rows."""
        with self._lock:
            self._enter(Batch([]), entry)

    def _enter(self, batch: Batch, entry: LedgerEntry, newest: int | EllipsisType | None = ...) -> None:
        """Write the changes of a derived view, and the ledger entry, in one transaction."""
        with files.transaction(self._connection, self._path):
            stored = layout.get_state(self._connection, self._path)
            self._require_own(stored)
            if stored.ledger is not None and entry.epoch < stored.ledger.epoch:
                raise LedgerMismatch(
                    f"{self._path}: epoch {entry.epoch} is older than epoch {stored.ledger.epoch}: another process "
                    "owns the data directory now. Nothing was written"
                )
            state, ranked = self._advance(batch, entry, newest)
            done = Done(microseconds(self._clock.now()), entry.end, version=state.version)
            history.add(self._connection, entry.batch_id, done)
            failpoints.reach("derived.before_commit")
        self._state, self._ranked = state, ranked

    def _stored(self) -> dict[str, bytes]:
        """Return the JSON of every stored row of the view, by key."""
        with files.storage_errors(self._path):
            return dict(self._connection.execute("SELECT key, data FROM rows"))

    def _difference(self, rows: pa.Table, known: Mapping[str, bytes]) -> tuple[pa.Table, list[str]]:
        """Return a derived view's rows that differ from the stored rows, and the keys of stored rows to delete."""
        changed, keys = self._differing(rows, known)
        kept = set(keys)
        return changed, [key for key in known if key not in kept]

    def _differing(self, rows: pa.Table, known: Mapping[str, bytes]) -> tuple[pa.Table, list[str]]:
        """Return a derived view's rows that differ from the stored rows, and the keys of all `rows`."""
        keys, data = keys_of(rows, self._spec), json_rows(rows)
        require_one_row_each(self._spec.name, keys)
        now = {keys[place]: row for place, row in beyond_json(rows).items()}
        before = layout.all_exact(self._connection, self._path, self._state)
        changed = [place for place, key in enumerate(keys) if known.get(key) != data[place]]
        if now or before:
            exact = [place for place, key in enumerate(keys) if now.get(key) != before.get(key)]
            changed = sorted({*changed, *exact})
        return rows.take(pa.array(changed, pa.int64())), keys

    def describe(self, schema: pa.Schema) -> None:
        """Store the types of the view's columns, which filters need."""
        with self._lock, files.transaction(self._connection, self._path):
            before = layout.get_schema(self._connection, self._path)
            if before is not None:
                layout.add_exact_schemas(self._connection, self._path, self._state, before)
            if before != schema:
                layout.put_schema(self._connection, schema)

    def expire(self) -> int:
        """Delete rows older than `keep`, for a view whose stream is idle, and return how many were deleted.

        Deletes at most `EXPIRED_MIN` rows per call. Writes nothing if there are no such rows.
        """
        with self._lock:
            if not self._expired(self._horizon(self._state.newest), 1):
                return 0
            with files.transaction(self._connection, self._path):
                self._require_own(layout.get_state(self._connection, self._path))
                state, ranked = self._advance(Batch([]), self._state.ledger)
            gone = self._state.rows - state.rows
            self._state, self._ranked = state, ranked
            return gone

    def close(self) -> None:
        """Close the view's file. Called once, last."""
        with self._lock:
            self._connection.close()

    def _require_own(self, stored: ViewState) -> None:
        """Raise `LedgerMismatch` if the view's file has changed since this object last wrote to it.

        A process that was paused while another process took over must not write based on outdated state.
        """
        if stored != self._state:
            raise LedgerMismatch(
                f"{self._path} was changed by another process after this process opened it; nothing was written. "
                "Restart the engine"
            )

    def _advance(
        self,
        batch: Batch,
        entry: LedgerEntry | None,
        newest: int | EllipsisType | None = ...,
        *,
        windows_expire: bool = True,
    ) -> tuple[ViewState, Ranked]:
        """Write a view's batch in the open transaction, and return the state and ranking to remember once the
        transaction is durable.

        The newest window end is the latest end ever seen, unless `newest` sets it. If windows do not expire, a ranked
        view serves the newest window that has rows, because the caller can delete the rows of the newest one.
        """
        if newest is ...:
            newest = max((end for end in (self._state.newest, batch.newest) if end is not None), default=None)
        horizon = self._horizon(newest)
        if not windows_expire and batch.newest is not None:
            batch = replace(batch, rows=[_lasting(row) for row in batch.rows])
        rows = batch.rows if horizon is None else [row for row in batch.rows if row[2] >= horizon]
        added = self._upsert(rows)
        expired = self._expired(horizon, max(EXPIRED_MIN, 2 * len(batch.rows)))
        deletes = list(dict.fromkeys((*self._present(batch.deletes), *expired)))
        with files.storage_errors(self._path):
            self._connection.executemany("DELETE FROM rows WHERE key = ?", [(key,) for key in deletes])
            if not windows_expire and newest is not None and self._spec.top is not None:
                (newest,) = self._connection.execute(_NEWEST).fetchone()
        exact = layout.all_exact(self._connection, self._path, self._state)
        state = msgspec.structs.replace(
            self._state,
            rows=self._state.rows + added - len(deletes),
            newest=newest,
            ledger=entry,
            exact=self._keep_exact([row[0] for row in rows], deletes, batch.exact),
        )
        ranked = layout.ranked(self._connection, self._path, state, self._spec.top)
        if self._spec.top is None:
            delta = Delta([row[0] for row in rows], [row[5] for row in rows], [], deletes)
        else:
            also = {row[0] for row in rows if exact.get(row[0]) != batch.exact.get(row[0])}
            delta = difference(self._ranked, ranked, also)
            state = msgspec.structs.replace(state, served_crc=layout.ranked_sum(ranked))
        state = self._log_change(state, self._exactly(state, delta))
        layout.put_state(self._connection, state)
        return state, ranked

    def _horizon(self, newest: int | None) -> int | None:
        """Return the stamp below which the view's rows are deleted.

        In a view with windows, it follows event time, so that a replay keeps the same rows.
        """
        if self._spec.keep is None:
            return None
        reference = microseconds(self._clock.now()) if newest is None else newest
        return max(INT_MIN, reference - duration(self._spec.keep))

    def _stop_expiry(self) -> None:
        """Make all stored rows of windows last until they are deleted."""
        if self._state.newest is None:
            return
        rows = self._connection.execute(_EXPIRING, (NEVER,)).fetchall()
        lasting = [_lasting((key, 0, 0, group, rank, data)) for key, group, rank, data in rows]
        self._connection.executemany(_UPSERT, lasting)

    def _upsert(self, rows: list[Row]) -> int:
        """Write rows of the view; return how many keys are new."""
        if not rows:
            return 0
        rows = sorted(rows, key=itemgetter(0))  # neighbours in the tree are written together
        keys = msgspec.json.encode([row[0] for row in rows]).decode()
        (known,) = self._connection.execute(_KNOWN, (keys,)).fetchone()
        self._connection.executemany(_UPSERT, rows)
        return len(rows) - int(known)

    def _keep_exact(self, written: list[str], deletes: list[str], exact: Mapping[str, bytes]) -> int:
        """Update the stored exact bytes to match the rows, and return how many rows have exact bytes."""
        count = self._state.exact
        if count:
            stale = [(key,) for key in (*written, *deletes)]
            count -= max(0, self._connection.executemany("DELETE FROM exact WHERE key = ?", stale).rowcount)
        fresh = [(key, layout.exact_sum(key, exact[key]), exact[key]) for key in written if key in exact]
        self._connection.executemany("INSERT INTO exact VALUES (?, ?, ?)", fresh)
        return count + len(fresh)

    def _exactly(self, state: ViewState, delta: Delta) -> Delta:
        """Return the view's change with the exact bytes of its rows."""
        if state.exact == 0:
            return delta
        kept = layout.all_exact(self._connection, self._path, state)
        return msgspec.structs.replace(
            delta, exact={place: kept[key] for place, key in enumerate(delta.keys) if key in kept}
        )

    def _present(self, keys: list[str]) -> list[str]:
        """Return the given keys that have a row in the view."""
        if not keys:
            return []
        offered = msgspec.json.encode(keys).decode()
        return [key for (key,) in self._connection.execute(_PRESENT, (offered,))]

    def _expired(self, horizon: int | None, limit: int) -> list[str]:
        if horizon is None:
            return []
        with files.storage_errors(self._path):
            return [key for (key,) in self._connection.execute(_EXPIRED, (horizon, limit))]

    def _log_change(self, state: ViewState, delta: Delta) -> ViewState:
        """Store a view's change with a new version, and delete old changes. An empty change does not get a version."""
        if not delta:
            return state
        version, data = state.version + 1, encode(delta)
        self._connection.execute(
            "INSERT INTO changes VALUES (?, ?, ?)", (version, layout.change_sum(version, data), data)
        )
        size = state.changes_bytes + len(data)
        oldest, size = self._trim(version, state.oldest, size)
        return msgspec.structs.replace(state, version=version, oldest=oldest, changes_bytes=size)

    def _trim(self, version: int, oldest: int, size: int) -> tuple[int, int]:
        """Delete the view's oldest changes that exceed the limits, but never the last change, and return the new oldest
        version and the remaining size."""
        first_kept = version - max(1, self._spec.changes_kept) + 1
        if oldest >= first_kept and size <= self._spec.changes_bytes:
            return oldest, size
        candidates = self._connection.execute(_OLDEST, (version - 1, TRIMMED_MAX)).fetchall()
        for candidate, length in candidates:
            if candidate >= first_kept and size <= self._spec.changes_bytes:
                break
            oldest, size = candidate + 1, size - length
        self._connection.execute("DELETE FROM changes WHERE version < ?", (oldest,))
        return oldest, size


def _lasting(row: Row) -> Row:
    """Return a view's row that does not expire."""
    key, _, _, group, rank, data = row
    return key, row_sum(key, NEVER, group, rank, data), NEVER, group, rank, data
