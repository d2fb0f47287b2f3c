"""The file of webhooks: registrations, positions, waiting messages and dead letters.

A single SQLite file (see `files.py` for the rules), readable only by its owner, because it contains the signing secrets
in plain text, as HMAC requires. One thread writes, and commits all pending changes in one transaction.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import msgspec

from penstock.core.errors import Damaged, DiskFull, PenstockError, StorageError, SyncFailed
from penstock.core.files import checksum, connect, disk_errors, make_head, storage_errors, transaction
from penstock.serve.webhooks.model import (
    ChannelProgress,
    DeadMessage,
    DeliveryAttempts,
    DeliveryTally,
    Hook,
    WebhookMessage,
    WebhookProgress,
)

T = TypeVar("T")
log = logging.getLogger("penstock.webhooks")
S = TypeVar("S", bound=msgspec.Struct)
_TABLE = (
    "CREATE TABLE IF NOT EXISTS record (kind TEXT NOT NULL, hook TEXT NOT NULL, number INTEGER NOT NULL, "
    "crc INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (kind, hook, number))"
)
_HOOK, _PLACE, _TALLY, _MESSAGE, _BODY, _TRIES, _DEAD = "hook", "place", "tally", "message", "body", "tries", "dead"
Work = Callable[[sqlite3.Connection], Any]


class WebhookStore:
    """`StoredWebhooks` in a file."""

    def __init__(self, path: Path, fatal: Callable[[PenstockError], None]) -> None:
        """Open the webhooks' file, which blocks. `fatal` is called when a write to disk has failed; after that, the
        store cannot be used."""
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

    # registrations

    def hooks(self) -> list[tuple[Hook, WebhookProgress]]:
        """Return all webhook registrations with their progress. Called by `read` in the thread."""
        return [(hook, self.known(id)) for id, _, hook in self._all_records(_HOOK, Hook)]

    def known(self, id: str) -> WebhookProgress:
        """Return the progress of a webhook. Called by `read` in the thread."""
        progress = self._get_record(_PLACE, id, 0, ChannelProgress)
        if progress is None:
            raise Damaged(f"{self._path}: the position of webhook {id} is missing", file=str(self._path))
        dead = self._count_records(_DEAD, id)
        return WebhookProgress(progress, self._delivery_tally(id), dead, self._count_records(_MESSAGE, id) - dead)

    async def register(self, hook: Hook, progress: ChannelProgress) -> None:
        def work(_: sqlite3.Connection) -> None:
            self._put_record(_HOOK, hook.id, 0, hook)
            self._put_record(_PLACE, hook.id, 0, progress)

        await self._run_change(work)

    async def save(self, hook: Hook) -> None:
        await self._run_change(lambda _: self._put_record(_HOOK, hook.id, 0, hook))

    async def remove(self, id: str) -> None:
        await self._run_change(lambda connection: connection.execute("DELETE FROM record WHERE hook = ?", (id,)))

    async def move(self, id: str, cursor: str) -> WebhookProgress:
        """Restart a webhook from another cursor. Waiting messages are dropped, dead letters are kept, and no number is
        reused."""

        def work(connection: sqlite3.Connection) -> WebhookProgress:
            kept = "(SELECT number FROM record WHERE kind = ? AND hook = ?)"
            connection.execute(
                f"DELETE FROM record WHERE hook = ? AND kind IN (?, ?, ?) AND number NOT IN {kept}",
                (id, _MESSAGE, _BODY, _TRIES, _DEAD, id),
            )
            self._put_record(_PLACE, id, 0, ChannelProgress(cursor, self.known(id).progress.sequence))
            return self.known(id)

        known: WebhookProgress = await self._run_change(work)
        return known

    # messages

    async def append(
        self, id: str, make: Callable[[], tuple[Sequence[tuple[WebhookMessage, bytes]], ChannelProgress]]
    ) -> list[WebhookMessage]:
        """Store a webhook's messages, and the position in the channel, in one transaction.

        `make` is called in the thread, because splitting a delivery takes time.
        """

        def work(_: sqlite3.Connection) -> list[WebhookMessage]:
            messages, progress = make()
            for message, body in messages:
                self._put_record(_MESSAGE, id, message.number, message)
                self._put_bytes(_BODY, id, message.number, body)
            self._put_record(_PLACE, id, 0, progress)
            return [message for message, _ in messages]

        messages: list[WebhookMessage] = await self._run_change(work)
        return messages

    def waiting(self, id: str) -> list[tuple[WebhookMessage, DeliveryAttempts | None]]:
        """Return the webhook's messages that were neither delivered nor given up, in order. Called by `read` in the
        thread."""
        tries = {number: attempts for _, number, attempts in self._all_records(_TRIES, DeliveryAttempts, id)}
        dead = {number for _, number, _ in self._all_records(_DEAD, DeadMessage, id)}
        return [
            (message, tries.get(number))
            for _, number, message in self._all_records(_MESSAGE, WebhookMessage, id)
            if number not in dead
        ]

    def dead(self, id: str, after: int, limit: int) -> list[tuple[WebhookMessage, DeadMessage, bytes]]:
        """Return a webhook's dead letters in order. Called by `read` in the thread."""
        letters = []
        for _, number, letter in self._all_records(_DEAD, DeadMessage, id, after, limit):
            message = self._get_record(_MESSAGE, id, number, WebhookMessage)
            if message is None:
                raise Damaged(f"{self._path}: message {number} of {id} is missing", file=str(self._path))
            letters.append((message, letter, self._record_bytes(_BODY, id, number) or b"{}"))
        return letters

    async def body(self, id: str, number: int) -> bytes:
        body = await self.read(lambda: self._record_bytes(_BODY, id, number))
        if body is None:
            raise Damaged(f"{self._path}: message {number} of {id} is missing", file=str(self._path))
        return body

    # The outcome of a message is counted here, in the same transaction, because a worker may be stopped before the
    # write is done, and a count in memory would then be wrong for the next worker.

    async def done(self, id: str, number: int, at: datetime) -> None:
        def work(_: sqlite3.Connection) -> None:
            self._drop_message(id, number)
            self._put_record(_TALLY, id, 0, self._delivery_tally(id).taken(at))

        await self._run_change(work)

    async def failed(self, id: str, number: int, tries: DeliveryAttempts, at: datetime) -> None:
        def work(_: sqlite3.Connection) -> None:
            self._put_record(_TRIES, id, number, tries)
            self._put_record(_TALLY, id, 0, self._delivery_tally(id).failed(tries.error, at))

        await self._run_change(work)

    async def bury(self, id: str, number: int, dead: DeadMessage, most: int) -> int:
        """Turn a webhook's message into a dead letter, delete the oldest dead letters if there are more than `most`,
        and return how many were deleted."""

        def work(connection: sqlite3.Connection) -> int:
            self._put_record(_DEAD, id, number, dead)
            query = "SELECT number FROM record WHERE kind = ? AND hook = ? ORDER BY number DESC LIMIT -1 OFFSET ?"
            gone = [row[0] for row in connection.execute(query, (_DEAD, id, most))]
            for letter in gone:
                self._drop_message(id, letter)
            self._put_record(_TALLY, id, 0, self._delivery_tally(id).failed(dead.error, dead.at).forgot(len(gone)))
            return len(gone)

        deleted: int = await self._run_change(work)
        return deleted

    async def revive(self, id: str, number: int | None) -> list[WebhookMessage]:
        """Reset one of a webhook's dead letters, or all of them, to be sent again as if for the first time."""

        def work(connection: sqlite3.Connection) -> list[WebhookMessage]:
            rows = self._all_records(_DEAD, DeadMessage, id)
            numbers = [letter for _, letter, _ in rows if number in (None, letter)]
            for letter in numbers:
                connection.execute(
                    "DELETE FROM record WHERE hook = ? AND number = ? AND kind IN (?, ?)", (id, letter, _DEAD, _TRIES)
                )
            messages = (self._get_record(_MESSAGE, id, letter, WebhookMessage) for letter in numbers)
            return [message for message in messages if message is not None]

        revived: list[WebhookMessage] = await self._run_change(work)
        return revived

    # the thread

    async def read(self, look: Callable[[], T]) -> T:
        """Call a function in the webhook store's thread, after all changes that were requested earlier."""
        return await asyncio.wrap_future(self._thread.submit(look))

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        self._connection.close()

    async def _run_change(self, work: Work) -> Any:
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append((work, future))
        self._thread.submit(self._commit)
        return await asyncio.wrap_future(future)

    def _commit(self) -> None:
        """Commit all pending changes of webhooks in one transaction, and resolve their futures. A change that fails for
        a reason of its own is rolled back alone."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        taken = [(work, future) for work, future in taken if future.set_running_or_notify_cancel()]
        if not taken:
            return
        try:
            with transaction(self._connection, self._path) as connection:
                results = [_try_change(connection, work) for work, _ in taken]
        except Exception as error:
            if isinstance(error, SyncFailed):
                self._fatal(error)
            for _, future in taken:
                future.set_exception(error)
            return
        for (_, future), result in zip(taken, results, strict=True):
            if isinstance(result, _Refused):
                future.set_exception(result.error)
            else:
                future.set_result(result)

    # records

    def _put_record(self, kind: str, hook: str, number: int, value: msgspec.Struct) -> None:
        self._put_bytes(kind, hook, number, msgspec.msgpack.encode(value))

    def _put_bytes(self, kind: str, hook: str, number: int, data: bytes) -> None:
        crc = checksum(_webhook_record_key(kind, hook, number), data)
        self._connection.execute(
            "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?)", (kind, hook, number, crc, data)
        )

    def _drop_message(self, hook: str, number: int) -> None:
        self._connection.execute(
            "DELETE FROM record WHERE hook = ? AND number = ? AND kind IN (?, ?, ?, ?)",
            (hook, number, _MESSAGE, _BODY, _TRIES, _DEAD),
        )

    def _get_record(self, kind: str, hook: str, number: int, cls: type[S]) -> S | None:
        data = self._record_bytes(kind, hook, number)
        return None if data is None else msgspec.msgpack.decode(data, type=cls)

    def _delivery_tally(self, hook: str) -> DeliveryTally:
        return self._get_record(_TALLY, hook, 0, DeliveryTally) or DeliveryTally()

    def _record_bytes(self, kind: str, hook: str, number: int) -> bytes | None:
        with storage_errors(self._path):
            query = "SELECT kind, hook, number, crc, data FROM record WHERE kind = ? AND hook = ? AND number = ?"
            row = self._connection.execute(query, (kind, hook, number)).fetchone()
        return None if row is None else self._sound_bytes(*row)

    def _count_records(self, kind: str, hook: str) -> int:
        with storage_errors(self._path):
            query = "SELECT count(*) FROM record WHERE kind = ? AND hook = ?"
            return int(self._connection.execute(query, (kind, hook)).fetchone()[0])

    def _all_records(
        self, kind: str, cls: type[S], hook: str = "", after: int = -1, limit: int = -1
    ) -> list[tuple[str, int, S]]:
        """Return the records of one kind, for one webhook or for all, in numerical order."""
        with storage_errors(self._path):
            which, given = ("AND hook = ?", (kind, hook)) if hook else ("", (kind,))
            query = (
                f"SELECT kind, hook, number, crc, data FROM record WHERE kind = ? {which} "
                "AND number > ? ORDER BY hook, number LIMIT ?"
            )
            rows = self._connection.execute(query, (*given, after, limit)).fetchall()
        return [(row[1], row[2], msgspec.msgpack.decode(self._sound_bytes(*row), type=cls)) for row in rows]

    def _sound_bytes(self, kind: str, hook: str, number: int, crc: int, data: bytes) -> bytes:
        if not isinstance(data, bytes) or checksum(_webhook_record_key(kind, hook, number), data) != crc:
            raise Damaged(f"{self._path}: the {kind} {number} of {hook} is damaged", file=str(self._path))
        return data


@dataclass(frozen=True)
class _Refused:
    """The outcome of a change that failed and was rolled back."""

    error: Exception


def _try_change(connection: sqlite3.Connection, work: Work) -> Any:
    """Return the result of a change, or `_Refused` if it failed. Raises if the file itself cannot be written."""
    connection.execute("SAVEPOINT change")
    try:
        result = work(connection)
    except (sqlite3.Error, SyncFailed, DiskFull):
        raise
    except Exception as error:
        connection.execute("ROLLBACK TO change")
        result = _Refused(error)
    connection.execute("RELEASE change")
    return result


def _webhook_record_key(kind: str, hook: str, number: int) -> bytes:
    return f"{kind}/{hook}/{number}/".encode()


def registered(path: Path) -> list[Hook]:
    """Return all webhooks in a file. The result is empty if there is no such file, and also if the file cannot be read,
    which is logged. The gateway may write to the file at the same time.

    Records are checked as in `WebhookStore`.
    """
    if not path.exists():
        return []
    try:
        return _read_registered(path)
    except StorageError as error:
        log.warning("cannot read the registered webhooks: %s", error)
        return []


def _read_registered(path: Path) -> list[Hook]:
    connection = connect(path, read_only=True)
    try:
        with storage_errors(path):
            rows = connection.execute("SELECT hook, number, crc, data FROM record WHERE kind = ?", (_HOOK,)).fetchall()
    finally:
        connection.close()
    for hook, number, crc, data in rows:
        if not isinstance(data, bytes) or checksum(_webhook_record_key(_HOOK, hook, number), data) != crc:
            raise Damaged(f"{path}: the {_HOOK} {number} of {hook} is damaged", file=str(path))
    return [msgspec.msgpack.decode(data, type=Hook) for _, _, _, data in rows]
