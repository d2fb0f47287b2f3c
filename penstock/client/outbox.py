"""What a producer has to send, in a file: numbered, in order, until it is acknowledged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.client.durable import DurableFile
from penstock.files import checksum

REJECTED_MAX = 10_000
"""Rejected messages that are kept here; then the oldest go. The server has all of them, as dead letters."""
_TABLES = (
    "CREATE TABLE IF NOT EXISTS outbox"
    " (seq INTEGER PRIMARY KEY AUTOINCREMENT, crc INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS rejected (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, errors BLOB NOT NULL)",
)


class Queued(NamedTuple):
    """A message: `body` is the JSON of its event, or of the list of its events."""

    seq: int
    body: bytes


class Rejection(NamedTuple):
    """A message of which the server has refused events: those that it had, and what is wrong with which of them."""

    seq: int
    events: list[Any]
    errors: list[dict[str, Any]]


class Outbox:
    """Every method blocks, and is called by one thread at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = DurableFile(path, "outbox", *_TABLES)
        self.generation = self._file.generation

    def sizes(self) -> list[tuple[int, int]]:
        """Number and bytes of each message."""
        with self._file.errors():
            return self._file.connection.execute("SELECT seq, length(body) FROM outbox ORDER BY seq").fetchall()

    def commit(
        self, bodies: Sequence[bytes], acknowledged: int, rejections: Sequence[tuple[int, list[dict[str, Any]]]]
    ) -> tuple[list[int], list[Rejection]]:
        """In one transaction: add messages, note what was rejected, forget all up to `acknowledged`. Durable on return;
        gives the numbers of the new ones, and the rejections that are news."""
        with self._file.transaction() as connection:
            numbers = []
            for body in bodies:
                cursor = connection.execute("INSERT INTO outbox (crc, body) VALUES (?, ?)", (checksum(body), body))
                numbers.append(int(cursor.lastrowid or 0))
            news = [each for seq, errors in rejections if (each := self._reject(seq, errors)) is not None]
            if rejections:
                connection.execute(
                    "DELETE FROM rejected WHERE seq NOT IN (SELECT seq FROM rejected ORDER BY seq DESC LIMIT ?)",
                    (REJECTED_MAX,),
                )
            connection.execute("DELETE FROM outbox WHERE seq <= ?", (acknowledged,))
        return numbers, news

    def _reject(self, seq: int, errors: list[dict[str, Any]]) -> Rejection | None:
        connection = self._file.connection
        found = connection.execute("SELECT body FROM outbox WHERE seq = ?", (seq,)).fetchone()
        if found is None:
            return None
        told = msgspec.json.encode(errors)
        added = connection.execute("INSERT OR IGNORE INTO rejected VALUES (?, ?, ?)", (seq, found[0], told))
        return _rejection(seq, found[0], errors) if added.rowcount else None

    def after(self, seq: int, count: int, bytes_max: int) -> list[Queued]:
        """The next messages: at most so many, and not more bytes than this, but one at least if there is one."""
        found: list[Queued] = []
        size = 0
        with self._file.errors():
            rows = self._file.connection.execute(
                "SELECT seq, crc, body FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?", (seq, count)
            )
            for number, crc, body in rows:
                self._file.checked(crc, body)
                size += len(body)
                if found and size > bytes_max:
                    break
                found.append(Queued(number, body))
        return found

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
