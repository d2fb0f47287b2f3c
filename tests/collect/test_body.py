"""Bodies that are read, or wait to be decompressed, are counted together."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.collect.body import BodyReader, Unfinished
from penstock.errors import Overloaded
from tests.collect.support import in_loop, until

MIB = 1024 * 1024


@in_loop
async def test_gzip_bodies_that_wait_for_a_thread_are_counted() -> None:
    """Each came whole with its request, and threads are few: however many are sent, no more than the bound wait."""
    body, busy = gzip.compress(os.urandom(MIB)), threading.Event()

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body}

    with ThreadPoolExecutor(1) as threads:
        threads.submit(busy.wait, 60)
        reader = BodyReader(8 * MIB, 3 * MIB, threads)
        tasks = [asyncio.create_task(reader.read(receive, b"gzip")) for _ in range(6)]
        try:
            await until(lambda: sum(each.done() for each in tasks) == 4)
            refused = [each.exception() for each in tasks if each.done()]
            assert all(isinstance(each, Unfinished) and isinstance(each.error, Overloaded) for each in refused)
        finally:
            busy.set()
        assert [len(each.result()) for each in tasks if not await refusal(each)] == [MIB, MIB]
        assert len(await reader.read(receive, b"gzip")) == MIB


async def refusal(task: asyncio.Task[bytes]) -> BaseException | None:
    await asyncio.wait([task])
    return task.exception()
