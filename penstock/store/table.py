"""The engine's side of a view: one transaction for each micro-batch, from the ledger's check to its new entry."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from threading import Lock

import msgspec
import pyarrow as pa

from penstock import failpoints, files
from penstock.contracts import Clock, LedgerEntry, Output
from penstock.errors import LedgerMismatch
from penstock.schema import INT_MIN
from penstock.store import history, layout
from penstock.store.delta import Delta, Ranked, difference, encode
from penstock.store.history import Done
from penstock.store.layout import Row, State
from penstock.store.ledger import is_next
from penstock.store.rows import Batch, duration, microseconds, to_rows
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
            layout.reshape(connection, path, self._spec)
        layout.add_missing(connection, path, self._spec)

    @property
    def size(self) -> int:
        """The number of rows kept; a ranked view serves only the first of them."""
        return self._state.rows

    @property
    def version(self) -> int:
        """The version of what is served now."""
        return self._state.version

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
                batch = to_rows(rows, self._spec, self._clock.now())
                there = {row[0] for row in batch.rows}
                gone = [key for (key,) in self._connection.execute("SELECT key FROM rows") if key not in there]
                state, ranked = self._advance(replace(batch, gone=gone), self._state.ledger)
            self._state, self._ranked = state, ranked

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

    def _advance(self, batch: Batch, entry: LedgerEntry | None) -> tuple[State, Ranked]:
        """Write a batch inside the open transaction; gives the state and ranking to remember once it is durable."""
        newest = max((end for end in (self._state.newest, batch.newest) if end is not None), default=None)
        horizon = self._horizon(newest)
        rows = batch.rows if horizon is None else [row for row in batch.rows if row[2] >= horizon]
        added = self._upsert(rows)
        expired = self._expired(horizon, max(EXPIRED_MIN, 2 * len(batch.rows)))
        gone = list(dict.fromkeys((*self._present(batch.gone), *expired)))
        with files.storage_errors(self._path):
            self._connection.executemany("DELETE FROM rows WHERE key = ?", [(key,) for key in gone])
        state = msgspec.structs.replace(
            self._state, rows=self._state.rows + added - len(gone), newest=newest, ledger=entry
        )
        ranked = layout.ranked(self._connection, self._path, state, self._spec.top)
        if self._spec.top is None:
            delta = Delta([row[0] for row in rows], [row[5] for row in rows], [], gone)
        else:
            delta = difference(self._ranked, ranked)
            state = msgspec.structs.replace(state, served_crc=layout.ranked_sum(ranked))
        state = self._log_change(state, delta)
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
