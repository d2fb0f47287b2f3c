"""The file of webhooks: what is registered, how far each has come, what waits, what was given up.

One SQLite file (`files.py` has the rules), for its owner's eyes only: the secrets that sign are in it as they are,
since a HMAC needs them. One thread writes; whatever waits for it is one transaction.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import msgspec

from penstock.errors import Damaged, PenstockError, SyncFailed
from penstock.files import checksum, connect, disk_errors, make_head, storage_errors, transaction
from penstock.serve.webhooks.model import Dead, Hook, Known, Message, Place, Tally, Tries

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
_TABLE = (
    "CREATE TABLE IF NOT EXISTS record (kind TEXT NOT NULL, hook TEXT NOT NULL, number INTEGER NOT NULL, "
    "crc INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (kind, hook, number))"
)
_HOOK, _PLACE, _TALLY, _MESSAGE, _BODY, _TRIES, _DEAD = "hook", "place", "tally", "message", "body", "tries", "dead"
Work = Callable[[sqlite3.Connection], Any]


class WebhookStore:
    """Belongs to one event loop. A method that changes something returns when it is durable."""

    def __init__(self, path: Path, fatal: Callable[[PenstockError], None]) -> None:
        """Opens the file, which blocks. `fatal` is told of a disk that did not take a write: that is final."""
        self._path = path
        self._fatal = fatal
        self._thread = ThreadPoolExecutor(1, "webhooks")
        self._lock = Lock()
        self._waiting: list[tuple[Work, Future[Any]]] = []
        with disk_errors(path):
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._connection = connect(path)
        with transaction(self._connection, path):
            make_head(self._connection, path, "webhooks")
            self._connection.execute(_TABLE)

    # what is registered

    def hooks(self) -> list[tuple[Hook, Known]]:
        """All of them, and where each stands. Called in the thread, by way of `read`."""
        return [(hook, self.known(id)) for id, _, hook in self._all(_HOOK, Hook)]

    def known(self, id: str) -> Known:
        """Where a webhook stands. Called in the thread, by way of `read`."""
        place = self._get(_PLACE, id, 0, Place)
        if place is None:
            raise Damaged(f"{self._path}: the place of webhook {id} is missing", file=str(self._path))
        dead = self._count(_DEAD, id)
        return Known(place, self._tally(id), dead, self._count(_MESSAGE, id) - dead)

    async def register(self, hook: Hook, place: Place) -> None:
        def work(_: sqlite3.Connection) -> None:
            self._put(_HOOK, hook.id, 0, hook)
            self._put(_PLACE, hook.id, 0, place)

        await self._change(work)

    async def save(self, hook: Hook) -> None:
        await self._change(lambda _: self._put(_HOOK, hook.id, 0, hook))

    async def remove(self, id: str) -> None:
        await self._change(lambda found: found.execute("DELETE FROM record WHERE hook = ?", (id,)))

    async def move(self, id: str, cursor: str) -> Known:
        """Go on from another cursor: what waits is dropped, dead letters stay, and no number is used again."""

        def work(found: sqlite3.Connection) -> Known:
            kept = "(SELECT number FROM record WHERE kind = ? AND hook = ?)"
            found.execute(
                f"DELETE FROM record WHERE hook = ? AND kind IN (?, ?, ?) AND number NOT IN {kept}",
                (id, _MESSAGE, _BODY, _TRIES, _DEAD, id),
            )
            self._put(_PLACE, id, 0, Place(cursor, self.known(id).place.sequence))
            return self.known(id)

        known: Known = await self._change(work)
        return known

    # messages

    async def append(self, id: str, made: Callable[[], tuple[Sequence[tuple[Message, bytes]], Place]]) -> list[Message]:
        """Keep messages, and the place that the channel was read to, in one transaction. `made` is called in the
        thread: taking a delivery apart is work."""

        def work(_: sqlite3.Connection) -> list[Message]:
            messages, place = made()
            for message, body in messages:
                self._put(_MESSAGE, id, message.number, message)
                self._put_bytes(_BODY, id, message.number, body)
            self._put(_PLACE, id, 0, place)
            return [message for message, _ in messages]

        found: list[Message] = await self._change(work)
        return found

    def waiting(self, id: str) -> list[tuple[Message, Tries | None]]:
        """The messages that are neither done nor given up, in order. Called in the thread, by way of `read`."""
        tries = {number: each for _, number, each in self._all(_TRIES, Tries, id)}
        dead = {number for _, number, _ in self._all(_DEAD, Dead, id)}
        return [(each, tries.get(number)) for _, number, each in self._all(_MESSAGE, Message, id) if number not in dead]

    def dead(self, id: str, after: int, limit: int) -> list[tuple[Message, Dead, bytes]]:
        """Dead letters in order. Called in the thread, by way of `read`."""
        found = []
        for _, number, each in self._all(_DEAD, Dead, id, after, limit):
            message = self._get(_MESSAGE, id, number, Message)
            if message is None:
                raise Damaged(f"{self._path}: message {number} of {id} is missing", file=str(self._path))
            found.append((message, each, self._bytes(_BODY, id, number) or b"{}"))
        return found

    async def body(self, id: str, number: int) -> bytes:
        found = await self.read(lambda: self._bytes(_BODY, id, number))
        if found is None:
            raise Damaged(f"{self._path}: message {number} of {id} is missing", file=str(self._path))
        return found

    # What becomes of a message is counted here, with it: whoever asks for it may be stopped before it is done, and must
    # not have counted it in what is kept for another.

    async def done(self, id: str, number: int, at: datetime) -> None:
        def work(_: sqlite3.Connection) -> None:
            self._drop(id, number)
            self._put(_TALLY, id, 0, self._tally(id).taken(at))

        await self._change(work)

    async def failed(self, id: str, number: int, tries: Tries, at: datetime) -> None:
        def work(_: sqlite3.Connection) -> None:
            self._put(_TRIES, id, number, tries)
            self._put(_TALLY, id, 0, self._tally(id).failed(tries.error, at))

        await self._change(work)

    async def bury(self, id: str, number: int, dead: Dead, most: int) -> int:
        """Give a message up; the oldest dead letters make room if there are more than `most`. How many did."""

        def work(found: sqlite3.Connection) -> int:
            self._put(_DEAD, id, number, dead)
            query = "SELECT number FROM record WHERE kind = ? AND hook = ? ORDER BY number DESC LIMIT -1 OFFSET ?"
            gone = [row[0] for row in found.execute(query, (_DEAD, id, most))]
            for each in gone:
                self._drop(id, each)
            self._put(_TALLY, id, 0, self._tally(id).failed(dead.error, dead.at).forgot(len(gone)))
            return len(gone)

        found: int = await self._change(work)
        return found

    async def revive(self, id: str, number: int | None) -> list[Message]:
        """Let one dead letter, or all, be tried again as if for the first time."""

        def work(found: sqlite3.Connection) -> list[Message]:
            rows = self._all(_DEAD, Dead, id)
            numbers = [each for _, each, _ in rows if number in (None, each)]
            for each in numbers:
                found.execute(
                    "DELETE FROM record WHERE hook = ? AND number = ? AND kind IN (?, ?)", (id, each, _DEAD, _TRIES)
                )
            messages = (self._get(_MESSAGE, id, each, Message) for each in numbers)
            return [message for message in messages if message is not None]

        found: list[Message] = await self._change(work)
        return found

    # the thread

    async def read(self, look: Callable[[], T]) -> T:
        """Call something in the thread, after all changes that were asked for before."""
        return await asyncio.wrap_future(self._thread.submit(look))

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        self._connection.close()

    async def _change(self, work: Work) -> Any:
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append((work, future))
        self._thread.submit(self._commit)
        return await asyncio.wrap_future(future)

    def _commit(self) -> None:
        """Do all that waits in one transaction, and tell whoever waits for it."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        taken = [(work, future) for work, future in taken if future.set_running_or_notify_cancel()]
        if not taken:
            return
        try:
            with transaction(self._connection, self._path) as found:
                results = [work(found) for work, _ in taken]
        except Exception as error:
            if isinstance(error, SyncFailed):
                self._fatal(error)
            for _, future in taken:
                future.set_exception(error)
            return
        for (_, future), result in zip(taken, results, strict=True):
            future.set_result(result)

    # records

    def _put(self, kind: str, hook: str, number: int, value: msgspec.Struct) -> None:
        self._put_bytes(kind, hook, number, msgspec.msgpack.encode(value))

    def _put_bytes(self, kind: str, hook: str, number: int, data: bytes) -> None:
        crc = checksum(_key(kind, hook, number), data)
        self._connection.execute(
            "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?)", (kind, hook, number, crc, data)
        )

    def _drop(self, hook: str, number: int) -> None:
        self._connection.execute(
            "DELETE FROM record WHERE hook = ? AND number = ? AND kind IN (?, ?, ?, ?)",
            (hook, number, _MESSAGE, _BODY, _TRIES, _DEAD),
        )

    def _get(self, kind: str, hook: str, number: int, cls: type[S]) -> S | None:
        data = self._bytes(kind, hook, number)
        return None if data is None else msgspec.msgpack.decode(data, type=cls)

    def _tally(self, hook: str) -> Tally:
        return self._get(_TALLY, hook, 0, Tally) or Tally()

    def _bytes(self, kind: str, hook: str, number: int) -> bytes | None:
        with storage_errors(self._path):
            query = "SELECT kind, hook, number, crc, data FROM record WHERE kind = ? AND hook = ? AND number = ?"
            row = self._connection.execute(query, (kind, hook, number)).fetchone()
        return None if row is None else self._sound(*row)

    def _count(self, kind: str, hook: str) -> int:
        with storage_errors(self._path):
            query = "SELECT count(*) FROM record WHERE kind = ? AND hook = ?"
            return int(self._connection.execute(query, (kind, hook)).fetchone()[0])

    def _all(
        self, kind: str, cls: type[S], hook: str = "", after: int = -1, limit: int = -1
    ) -> list[tuple[str, int, S]]:
        """Records of a kind, of one webhook or of all, in order of their numbers."""
        with storage_errors(self._path):
            which, given = ("AND hook = ?", (kind, hook)) if hook else ("", (kind,))
            query = (
                f"SELECT kind, hook, number, crc, data FROM record WHERE kind = ? {which} "
                "AND number > ? ORDER BY hook, number LIMIT ?"
            )
            rows = self._connection.execute(query, (*given, after, limit)).fetchall()
        return [(row[1], row[2], msgspec.msgpack.decode(self._sound(*row), type=cls)) for row in rows]

    def _sound(self, kind: str, hook: str, number: int, crc: int, data: bytes) -> bytes:
        if not isinstance(data, bytes) or checksum(_key(kind, hook, number), data) != crc:
            raise Damaged(f"{self._path}: the {kind} {number} of {hook} is damaged", file=str(self._path))
        return data


def _key(kind: str, hook: str, number: int) -> bytes:
    return f"{kind}/{hook}/{number}/".encode()


def registered(path: Path) -> list[Hook]:
    """All webhooks of a file, read beside the gateway that writes it; none if there is no such file. The records are
    checked as by the store."""
    if not path.exists():
        return []
    connection = connect(path, read_only=True)
    try:
        with storage_errors(path):
            rows = connection.execute("SELECT hook, number, crc, data FROM record WHERE kind = ?", (_HOOK,)).fetchall()
    finally:
        connection.close()
    for hook, number, crc, data in rows:
        if not isinstance(data, bytes) or checksum(_key(_HOOK, hook, number), data) != crc:
            raise Damaged(f"{path}: the {_HOOK} {number} of {hook} is damaged", file=str(path))
    return [msgspec.msgpack.decode(data, type=Hook) for _, _, _, data in rows]
