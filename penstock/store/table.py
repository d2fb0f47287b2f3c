"""The engine's side of a view: one transaction for each micro-batch, from the ledger's check to its new entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from threading import Lock
from types import EllipsisType

import msgspec
import pyarrow as pa

from penstock import failpoints, files
from penstock.columns import json_rows, require_one_row_each
from penstock.contracts import Clock, LedgerEntry, Output
from penstock.errors import LedgerMismatch
from penstock.lossless import beyond_json
from penstock.schema import INT_MIN
from penstock.store import history, layout
from penstock.store.contents import reshape
from penstock.store.delta import Delta, Ranked, difference, encode
from penstock.store.history import Done
from penstock.store.keyed import Change, KeyedTable
from penstock.store.layout import Row, State
from penstock.store.ledger import is_next
from penstock.store.rows import Batch, duration, keys_of, microseconds, newest_window, to_rows
from penstock.store.spec import ViewSpec

CACHE_KIB = 32 * 1024
CHECKPOINT_PAGES = 4000
"""16 MiB of WAL between two checkpoints: a commit of 10,000 rows writes about 5 MiB."""
EXPIRED_MIN = 20_000
"""Rows that one commit may drop, or twice the rows it brings if that is more: so expiry keeps up, and no commit waits
for a whole window of millions to go. What is left over goes with the next commits."""
TRIMMED_MAX = 64
"""Changes that one commit may drop. It adds one, so their number falls back under its bound."""

_UPSERT = """INSERT INTO rows (key, crc, stamp, grp, rank, data) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE
    SET crc = excluded.crc, stamp = excluded.stamp, grp = excluded.grp, rank = excluded.rank, data = excluded.data"""
_KNOWN = "SELECT count(*) FROM json_each(?) AS offered JOIN rows ON rows.key = offered.value"
_PRESENT = "SELECT rows.key FROM json_each(?) AS offered JOIN rows ON rows.key = offered.value"
_EXPIRED = "SELECT key FROM rows WHERE stamp < ? ORDER BY stamp LIMIT ?"
_OLDEST = "SELECT version, length(data) FROM changes WHERE version <= ? ORDER BY version LIMIT ?"


class ViewTable:
    """A view's file, open for writing: a `contracts.Sink`. One process has it open for writing at a time.

    Opening makes the file or checks all of it, and raises `Damaged` with its name if it is not as written. `commit`
    and `expire` may come from different threads; one waits for the other. They block for the disk. After a crash at any
    point a commit is there whole or not at all, and offering the batch again gives the same result.
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
        """The number of rows kept; a ranked view serves only the first of them."""
        return self._state.rows

    @property
    def version(self) -> int:
        """The version of what is served now."""
        return self._state.version

    def served(self, rows: pa.Table) -> pa.Table:
        """Of all rows, which were just assigned, those that are served."""
        if self._spec.top is None:
            return rows
        places = {key: place for place, key in enumerate(keys_of(rows, self._spec))}
        return rows.take(pa.array([places[key] for key in self._ranked], pa.int64()))

    def keyed(self, rows: pa.Table) -> KeyedTable:
        """Rows of the view with the place of each key."""
        return KeyedTable.of(rows, keys_of(rows, self._spec))

    def last(self) -> LedgerEntry | None:
        return self._state.ledger

    def commit(self, output: Output) -> bool:
        with self._lock:
            with files.transaction(self._connection, self._path):
                stored = layout.get_state(self._connection, self._path)
                if not is_next(stored.ledger, output, self._path):
                    return False
                self._require_own(stored)
                batch = to_rows(output.table, self._spec, self._clock.now(), output.gone)
                entry = LedgerEntry(output.batch_id, output.start, output.end, output.epoch)
                state, ranked = self._advance(batch, entry)
                done = Done(microseconds(self._clock.now()), output.end, version=state.version)
                history.add(self._connection, output.batch_id, done)
                failpoints.reach("ledger.before_commit")
            self._state, self._ranked = state, ranked
            failpoints.reach("ledger.after_commit")
            return True

    def replace(self, rows: pa.Table) -> None:
        """Put other rows in the place of all that there are, as one change. The batches that were done stay done."""
        with self._lock:
            with files.transaction(self._connection, self._path):
                self._require_own(layout.get_state(self._connection, self._path))
                changed, gone = self._difference(rows, self._stored())
                batch = to_rows(changed, self._spec, self._clock.now())
                state, ranked = self._advance(replace(batch, gone=gone), self._state.ledger)
            self._state, self._ranked = state, ranked

    def assign(self, rows: pa.Table, entry: LedgerEntry) -> Change:
        """Make these all rows of a derived view: what differs from those that there are becomes one change, in one
        transaction with the ledger entry, and is returned. Rows that stay as they are are not written.

        Raises `ViewError` if two rows have the same key, and `LedgerMismatch` if a later owner has written. Holds the
        JSON of all rows in memory, to compare with.
        """
        with self._lock:
            known = self._take_known()
            changed, gone = self._difference(rows, known)
            return self._write_change(changed, gone, newest_window(rows, self._spec), known, entry)

    def amend(self, rows: pa.Table, change: Change, entry: LedgerEntry) -> Change:
        """The same for a view each of whose rows is made of one row with the same key: `change` is what has changed of
        those, and `rows` what it makes of the rows in it."""
        with self._lock:
            known = self._take_known()
            changed, keys = self._differing(rows, known)
            passed = set(keys)
            gone = [key for key in (*change.keys, *change.gone) if key in known and key not in passed]
            return self._write_change(changed, gone, ..., known, entry)

    def _take_known(self) -> dict[str, bytes]:
        """The JSON of all rows. It is given back once a change of it is durable, and read again if that fails."""
        known, self._known = self._known, None
        return self._stored() if known is None else known

    def _write_change(
        self,
        changed: pa.Table,
        gone: list[str],
        newest: int | EllipsisType | None,
        known: dict[str, bytes],
        entry: LedgerEntry,
    ) -> Change:
        batch = to_rows(changed, self._spec, self._clock.now())
        self._enter(replace(batch, gone=gone), entry, newest)
        known.update((row[0], row[5]) for row in batch.rows)
        for key in gone:
            del known[key]
        self._known = known
        failpoints.reach("derived.after_commit")
        return Change(changed, [row[0] for row in batch.rows], gone)

    def advance(self, entry: LedgerEntry) -> None:
        """Note that a derived view is up to date with its inputs, which have come further and changed no row."""
        with self._lock:
            self._enter(Batch([]), entry)

    def _enter(self, batch: Batch, entry: LedgerEntry, newest: int | EllipsisType | None = ...) -> None:
        """Write what has changed in a derived view, and the ledger entry, in one transaction."""
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
        """The JSON of every row, by key."""
        with files.storage_errors(self._path):
            return dict(self._connection.execute("SELECT key, data FROM rows"))

    def _difference(self, rows: pa.Table, known: Mapping[str, bytes]) -> tuple[pa.Table, list[str]]:
        """Of all rows those that are not stored as they are, and the keys of stored rows that are not among them."""
        changed, keys = self._differing(rows, known)
        kept = set(keys)
        return changed, [key for key in known if key not in kept]

    def _differing(self, rows: pa.Table, known: Mapping[str, bytes]) -> tuple[pa.Table, list[str]]:
        """Of some rows those that are not stored as they are; and the keys of all of them."""
        keys, data = keys_of(rows, self._spec), json_rows(rows)
        require_one_row_each(self._spec.name, keys)
        now = {keys[place]: each for place, each in beyond_json(rows).items()}
        before = layout.all_exact(self._connection, self._path, self._state)
        changed = [place for place, key in enumerate(keys) if known.get(key) != data[place]]
        if now or before:
            exact = [place for place, key in enumerate(keys) if now.get(key) != before.get(key)]
            changed = sorted({*changed, *exact})
        return rows.take(pa.array(changed, pa.int64())), keys

    def describe(self, schema: pa.Schema) -> None:
        """Note the types of the view's columns, for those who filter its rows."""
        with self._lock, files.transaction(self._connection, self._path):
            if layout.get_schema(self._connection, self._path) != schema:
                layout.put_schema(self._connection, schema)

    def expire(self) -> int:
        """Drop rows that `keep` lets go, for a view whose stream is idle; returns how many went. Writes nothing if
        none did. At most `EXPIRED_MIN` go in one call."""
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
        """Let go of the file. Called once, last."""
        with self._lock:
            self._connection.close()

    def _require_own(self, stored: State) -> None:
        """What is on disk must be what this object wrote: a process that was paused while another took over must
        not write on the strength of what it remembers."""
        if stored != self._state:
            raise LedgerMismatch(
                f"{self._path} was written by another process since this one opened it; nothing was written. "
                "Restart the engine"
            )

    def _advance(
        self, batch: Batch, entry: LedgerEntry | None, newest: int | EllipsisType | None = ...
    ) -> tuple[State, Ranked]:
        """Write a batch inside the open transaction; gives the state and ranking to remember once it is durable.

        The latest window end is the latest ever seen, unless `newest` says what it is.
        """
        if newest is ...:
            newest = max((end for end in (self._state.newest, batch.newest) if end is not None), default=None)
        horizon = self._horizon(newest)
        rows = batch.rows if horizon is None else [row for row in batch.rows if row[2] >= horizon]
        added = self._upsert(rows)
        expired = self._expired(horizon, max(EXPIRED_MIN, 2 * len(batch.rows)))
        gone = list(dict.fromkeys((*self._present(batch.gone), *expired)))
        with files.storage_errors(self._path):
            self._connection.executemany("DELETE FROM rows WHERE key = ?", [(key,) for key in gone])
        exact = layout.all_exact(self._connection, self._path, self._state)
        state = msgspec.structs.replace(
            self._state,
            rows=self._state.rows + added - len(gone),
            newest=newest,
            ledger=entry,
            exact=self._keep_exact([row[0] for row in rows], gone, batch.exact),
        )
        ranked = layout.ranked(self._connection, self._path, state, self._spec.top)
        if self._spec.top is None:
            delta = Delta([row[0] for row in rows], [row[5] for row in rows], [], gone)
        else:
            also = {row[0] for row in rows if exact.get(row[0]) != batch.exact.get(row[0])}
            delta = difference(self._ranked, ranked, also)
            state = msgspec.structs.replace(state, served_crc=layout.ranked_sum(ranked))
        state = self._log_change(state, self._exactly(state, delta))
        layout.put_state(self._connection, state)
        return state, ranked

    def _horizon(self, newest: int | None) -> int | None:
        """The stamp below which rows go. With windows it follows event time, so that a replay keeps the same rows."""
        if self._spec.keep is None:
            return None
        reference = microseconds(self._clock.now()) if newest is None else newest
        return max(INT_MIN, reference - duration(self._spec.keep))

    def _upsert(self, rows: list[Row]) -> int:
        """Write rows; returns how many keys are new."""
        if not rows:
            return 0
        rows = sorted(rows, key=itemgetter(0))  # neighbours in the tree are written together
        keys = msgspec.json.encode([row[0] for row in rows]).decode()
        (known,) = self._connection.execute(_KNOWN, (keys,)).fetchone()
        self._connection.executemany(_UPSERT, rows)
        return len(rows) - int(known)

    def _keep_exact(self, written: list[str], gone: list[str], exact: Mapping[str, bytes]) -> int:
        """Bring the exact bytes up to date with the rows; returns how many rows have them."""
        count = self._state.exact
        if count:
            stale = [(key,) for key in (*written, *gone)]
            count -= max(0, self._connection.executemany("DELETE FROM exact WHERE key = ?", stale).rowcount)
        fresh = [(key, layout.exact_sum(key, exact[key]), exact[key]) for key in written if key in exact]
        self._connection.executemany("INSERT INTO exact VALUES (?, ?, ?)", fresh)
        return count + len(fresh)

    def _exactly(self, state: State, delta: Delta) -> Delta:
        """The change with the exact bytes of its rows."""
        if state.exact == 0:
            return delta
        kept = layout.all_exact(self._connection, self._path, state)
        return msgspec.structs.replace(
            delta, exact={place: kept[key] for place, key in enumerate(delta.keys) if key in kept}
        )

    def _present(self, keys: list[str]) -> list[str]:
        """Those of the keys that there are rows of."""
        if not keys:
            return []
        offered = msgspec.json.encode(keys).decode()
        return [key for (key,) in self._connection.execute(_PRESENT, (offered,))]

    def _expired(self, horizon: int | None, limit: int) -> list[str]:
        if horizon is None:
            return []
        with files.storage_errors(self._path):
            return [key for (key,) in self._connection.execute(_EXPIRED, (horizon, limit))]

    def _log_change(self, state: State, delta: Delta) -> State:
        """Give the change its version and drop old ones; a batch that changes nothing served has no version."""
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
        """Drop the oldest changes over the bounds, never the one just written; gives the new oldest and the size."""
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
