"""Bodies that are read, or wait to be decompressed, are counted together, and one caller has half of the room."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from penstock.core.errors import Overloaded
from penstock.http.body import BodyReader, Unfinished
from penstock.http.body_threads import BodyThreads
from penstock.http.pending import PendingBytes
from tests.clocks import until
from tests.collect.support import in_loop

MIB = 1024 * 1024


@in_loop
async def test_gzip_bodies_that_wait_for_a_thread_are_counted() -> None:
    """Each came complete with its request, and threads are few: however many are sent, no more than the bound wait."""
    body, busy = gzip.compress(os.urandom(MIB)), threading.Event()

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body}

    async with busy_threads(busy) as threads:
        reader = BodyReader(8 * MIB, PendingBytes(3 * MIB), threads)
        tasks = [asyncio.create_task(reader.read(receive, b"gzip")) for _ in range(6)]
        try:
            await until(lambda: sum(task.done() for task in tasks) == 4)
            refused = [task.exception() for task in tasks if task.done()]
            assert all(isinstance(error, Unfinished) and isinstance(error.error, Overloaded) for error in refused)
        finally:
            busy.set()
        assert [len(task.result()) for task in tasks if not await refusal(task)] == [MIB, MIB]
        assert len(await reader.read(receive, b"gzip")) == MIB


@asynccontextmanager
async def busy_threads(busy: threading.Event) -> AsyncIterator[BodyThreads]:
    """The thread for bodies, which another caller's body occupies until the event is set."""
    threads = BodyThreads(64 * MIB)
    task = asyncio.create_task(threads.run("key:other", 0, partial(busy.wait, 60)))
    await asyncio.sleep(0)
    try:
        yield threads
    finally:
        busy.set()
        await task
        threads.shutdown()


async def refusal(task: asyncio.Task[bytes]) -> BaseException | None:
    await asyncio.wait([task])
    return task.exception()


@asynccontextmanager
async def unfinished(reader: BodyReader, who: str, size: int) -> AsyncIterator[asyncio.Task[bytes]]:
    """Send a body whose first piece has arrived, and whose rest does not arrive while in the block."""
    pieces: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": bytes(size), "more_body": True}]
    waits = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        if not pieces:
            waits.set()
            await asyncio.Event().wait()
        return pieces.pop()

    task = asyncio.create_task(reader.read(receive, b"", who))
    await until(lambda: waits.is_set() or task.done())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def is_refused(task: asyncio.Task[bytes]) -> bool:
    """Return whether a body was refused because there is no room for it."""
    error = task.exception() if task.done() else None
    assert error is None or (isinstance(error, Unfinished) and isinstance(error.error, Overloaded))
    return error is not None


async def refused(reader: BodyReader, *bodies: tuple[str, int]) -> list[bool]:
    """Return which of these unfinished bodies are refused, each with those before it in progress."""
    async with AsyncExitStack() as stack:
        tasks = [await stack.enter_async_context(unfinished(reader, *body)) for body in bodies]
        return [is_refused(task) for task in tasks]


@in_loop
async def test_one_caller_has_half_of_the_room_for_unfinished_bodies_at_most() -> None:
    reader = BodyReader(8 * MIB, PendingBytes(4 * MIB), BodyThreads(0))
    sent = [("key:ann", MIB), ("key:ann", MIB), ("key:ann", 1), ("key:bob", MIB), ("key:bob", MIB), ("key:cid", 1)]
    assert await refused(reader, *sent) == [False, False, True, False, False, True]
    assert await refused(reader, *sent[:2]) == [False, False], "what is given up is counted no more"


@in_loop
async def test_a_caller_may_always_send_one_body() -> None:
    """This holds although it is larger than half of the room."""
    reader = BodyReader(8 * MIB, PendingBytes(4 * MIB), BodyThreads(0))
    assert await refused(reader, ("key:ann", 3 * MIB), ("key:ann", 1), ("key:bob", MIB)) == [False, True, False]


@in_loop
async def test_where_nobody_is_asked_who_they_are_there_are_no_shares() -> None:
    reader = BodyReader(8 * MIB, PendingBytes(4 * MIB), BodyThreads(0))
    assert await refused(reader, ("", 3 * MIB), ("", MIB), ("", 1)) == [False, False, True]


@in_loop
async def test_gzip_bodies_that_wait_for_a_thread_count_for_their_caller() -> None:
    body, busy = gzip.compress(os.urandom(MIB)), threading.Event()

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body}

    async with busy_threads(busy) as threads:
        reader = BodyReader(8 * MIB, PendingBytes(5 * MIB), threads)
        tasks = [asyncio.create_task(reader.read(receive, b"gzip", who)) for who in ("ann", "ann", "ann", "bob")]
        try:
            await until(tasks[2].done)
            assert [is_refused(task) for task in tasks] == [False, False, True, False]
        finally:
            busy.set()
            await asyncio.wait(tasks)
