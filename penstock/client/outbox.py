"""A producer's outbox: a file of numbered messages, in order, kept until they are acknowledged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.client.durable import DurableFile
from penstock.core.files import checksum

REJECTED_MAX = 10_000
"""Maximum number of rejected messages kept; the oldest are deleted first. The server keeps all of them as dead
letters."""
_TABLES = (
    "CREATE TABLE IF NOT EXISTS outbox"
    " (seq INTEGER PRIMARY KEY AUTOINCREMENT, crc INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS rejected (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, errors BLOB NOT NULL)",
)


class Queued(NamedTuple):
    """A message in a producer's outbox: `body` is its event, or its list of events, as JSON."""

    seq: int
    body: bytes


class Rejection(NamedTuple):
    """A producer's message with events that the server rejected: all its events, and the errors."""

    seq: int
    events: list[Any]
    errors: list[dict[str, Any]]


class Outbox:
    """A producer's outbox file. Every method blocks; only one thread may call them at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = DurableFile(path, "outbox", *_TABLES)
        self.generation = self._file.generation

    def sizes(self) -> list[tuple[int, int]]:
        """Return the number and size in bytes of each message in the outbox."""
        with self._file.errors():
            return self._file.connection.execute("SELECT seq, length(body) FROM outbox ORDER BY seq").fetchall()

    def commit(
        self, bodies: Sequence[bytes], acknowledged: int, rejections: Sequence[tuple[int, list[dict[str, Any]]]]
    ) -> tuple[list[int], list[Rejection]]:
        """Add messages to the outbox, store rejections, and delete messages up to `acknowledged`, in one transaction.

        Durable on return. Returns the numbers of the new messages, and the new rejections.
        """
        with self._file.transaction() as connection:
            numbers = []
            for body in bodies:
                cursor = connection.execute("INSERT INTO outbox (crc, body) VALUES (?, ?)", (checksum(body), body))
                numbers.append(int(cursor.lastrowid or 0))
            news = [
                rejection for seq, errors in rejections if (rejection := self._keep_rejected(seq, errors)) is not None
            ]
            if rejections:
                connection.execute(
                    "DELETE FROM rejected WHERE seq NOT IN (SELECT seq FROM rejected ORDER BY seq DESC LIMIT ?)",
                    (REJECTED_MAX,),
                )
            connection.execute("DELETE FROM outbox WHERE seq <= ?", (acknowledged,))
        return numbers, news

    def _keep_rejected(self, seq: int, errors: list[dict[str, Any]]) -> Rejection | None:
        connection = self._file.connection
        row = connection.execute("SELECT body FROM outbox WHERE seq = ?", (seq,)).fetchone()
        if row is None:
            return None
        errors_json = msgspec.json.encode(errors)
        added = connection.execute("INSERT OR IGNORE INTO rejected VALUES (?, ?, ?)", (seq, row[0], errors_json))
        return _rejection(seq, row[0], errors) if added.rowcount else None

    def after(self, seq: int, count: int, bytes_max: int) -> list[Queued]:
        """Return the outbox's next messages: at most `count` and `bytes_max` bytes, but at least one."""
        messages: list[Queued] = []
        size = 0
        with self._file.errors():
            rows = self._file.connection.execute(
                "SELECT seq, crc, body FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?", (seq, count)
            )
            for number, crc, body in rows:
                self._file.checked(crc, body)
                size += len(body)
                if messages and size > bytes_max:
                    break
                messages.append(Queued(number, body))
        return messages

    def rejected(self) -> list[Rejection]:
        with self._file.errors():
            rows = self._file.connection.execute("SELECT seq, body, errors FROM rejected ORDER BY seq").fetchall()
        return [_rejection(seq, body, msgspec.json.decode(errors)) for seq, body, errors in rows]

    def forget_rejected(self, up_to: int) -> None:
        with self._file.transaction() as connection:
            connection.execute("DELETE FROM rejected WHERE seq <= ?", (up_to,))

    def close(self) -> None:
        self._file.close()


def _rejection(seq: int, body: bytes, errors: list[dict[str, Any]]) -> Rejection:
    events = msgspec.json.decode(body)
    return Rejection(seq, events if isinstance(events, list) else [events], errors)
