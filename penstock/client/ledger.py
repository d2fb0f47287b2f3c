"""A consumer's file: its position, its handler's writes, and its open intents."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.client.durable import DurableFile
from penstock.client.errors import ClientError
from penstock.core.files import checksum, get_record, put_record

POSITION, TARGET = "position", "target"
TABLE = "penstock_intents"
_TABLES = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (number INTEGER PRIMARY KEY AUTOINCREMENT, effect TEXT NOT NULL,"
    " crc INTEGER NOT NULL, payload BLOB NOT NULL, failed TEXT)",
    f"CREATE INDEX IF NOT EXISTS {TABLE}_open ON {TABLE} (effect, number) WHERE failed IS NULL",
)


class Intent(NamedTuple):
    """An action that a consumer performs elsewhere, with a unique `id` that stays the same across attempts.

    Pass `id` to the other side, so that it can recognise repetitions. `failed` is the reason given with `GaveUp`, or
    None.
    """

    id: str
    effect: str
    payload: Any
    failed: str | None = None


class Tx:
    """The transaction in which a consumer processes one message. Its writes take effect if and only if the message is
    recorded as done.

    Create your own tables; names that begin with `penstock_` are reserved. Do not commit.
    """

    def __init__(self, connection: sqlite3.Connection, generation: int, effects: frozenset[str]) -> None:
        self._connection = connection
        self._generation = generation
        self._effects = effects

    def execute(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> sqlite3.Cursor:
        """Execute a consumer's statement, as `sqlite3.Connection.execute` does."""
        return self._connection.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> sqlite3.Cursor:
        """Execute a consumer's statement repeatedly, as `sqlite3.Connection.executemany` does."""
        return self._connection.executemany(sql, parameters)

    def intend(self, effect: str, payload: Any) -> str:
        """Record an action to perform elsewhere once this message is done. Returns its id.

        `payload` is any JSON value.
        """
        if effect not in self._effects:
            raise ClientError(f"the consumer has no effect {effect!r}")
        data = msgspec.json.encode(payload)
        added = self._connection.execute(
            f"INSERT INTO {TABLE} (effect, crc, payload) VALUES (?, ?, ?)",
            (effect, checksum(effect.encode(), data), data),
        )
        return _intent_id(self._generation, int(added.lastrowid or 0))


class Ledger:
    """A consumer's file. Every method may block for as long as a disk sync takes."""

    def __init__(self, path: str | os.PathLike[str], target: dict[str, Any]) -> None:
        """Open the consumer's file. Raises `ClientError` if it belongs to a consumer of a different target."""
        self._file = DurableFile(path, "consumer", *_TABLES)
        try:
            self.generation = self._file.generation
            self._bind_to_target(target)
        except BaseException:
            self._file.close()
            raise

    @property
    def connection(self) -> sqlite3.Connection:
        return self._file.connection

    def _bind_to_target(self, target: dict[str, Any]) -> None:
        known = get_record(self.connection, self._file.path, TARGET)
        if known is None:
            with self._file.transaction() as connection:
                put_record(connection, TARGET, target)
        elif known != target:
            raise ClientError(f"{self._file.path} belongs to a consumer of {known}, not {target}")

    def position(self) -> str | None:
        """Return the cursor of the last message that the consumer processed, or None if there is none yet."""
        record = get_record(self.connection, self._file.path, POSITION)
        return None if record is None else str(record)

    def begin(self) -> None:
        with self._file.errors():
            self.connection.execute("BEGIN IMMEDIATE")

    def commit(self, position: str) -> None:
        """Mark the consumer's message as done. Durable on return."""
        with self._file.errors():
            put_record(self.connection, POSITION, position)
            self.connection.execute("COMMIT")

    def rollback(self) -> None:
        if self.connection.in_transaction:
            with self._file.errors():
                self.connection.execute("ROLLBACK")

    def counts(self) -> dict[str, int]:
        """Return the number of a consumer's open intents for each effect."""
        rows = self._consumer_file_rows(f"SELECT effect, count(*) FROM {TABLE} WHERE failed IS NULL GROUP BY effect")
        return {effect: int(count) for effect, count in rows}

    def oldest(self, effect: str) -> Intent | None:
        """Return the oldest open intent of a consumer's effect."""
        rows = self._consumer_file_rows(
            f"SELECT number, effect, crc, payload, failed FROM {TABLE} WHERE failed IS NULL AND effect = ?"
            " ORDER BY number LIMIT 1",
            effect,
        )
        return self._intent_from_row(rows[0]) if rows else None

    def failed(self) -> list[Intent]:
        rows = self._consumer_file_rows(
            f"SELECT number, effect, crc, payload, failed FROM {TABLE} WHERE failed IS NOT NULL ORDER BY number"
        )
        return [self._intent_from_row(row) for row in rows]

    def settle(self, intent: Intent, failed: str | None = None) -> None:
        """Mark a consumer's intent as done, or as failed for a reason. Durable on return."""
        with self._file.transaction() as connection:
            if failed is None:
                connection.execute(f"DELETE FROM {TABLE} WHERE number = ?", (_intent_number(intent.id),))
            else:
                connection.execute(
                    f"UPDATE {TABLE} SET failed = ? WHERE number = ?", (failed, _intent_number(intent.id))
                )

    def reopen(self, intent: Intent) -> bool:
        """Reopen a consumer's failed intent under the same id. Returns False if there is no such failed intent."""
        with self._file.transaction() as connection:
            changed = connection.execute(
                f"UPDATE {TABLE} SET failed = NULL WHERE number = ? AND failed IS NOT NULL",
                (_intent_number(intent.id),),
            )
            return changed.rowcount == 1

    def close(self) -> None:
        self._file.close()

    def _consumer_file_rows(self, sql: str, *parameters: Any) -> list[Any]:
        with self._file.errors():
            return self.connection.execute(sql, parameters).fetchall()

    def _intent_from_row(self, row: Sequence[Any]) -> Intent:
        number, effect, crc, payload, failed = row
        self._file.checked(crc, effect.encode(), payload)
        return Intent(_intent_id(self.generation, number), effect, msgspec.json.decode(payload), failed)


def _intent_id(generation: int, number: int) -> str:
    return f"{generation:012x}-{number}"


def _intent_number(id: str) -> int:
    return int(id.rpartition("-")[2])
