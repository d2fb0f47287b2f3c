"""Callers take turns where bodies are decompressed and decoded, and one caller has half of the room for those that
wait."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.collect.decode import BodyDecoder
from penstock.core.access import Caller
from penstock.core.access.grants import ALL
from penstock.core.errors import Overloaded, Stopping
from penstock.core.settings import Settings
from penstock.http.body import BodyReader
from tests.clocks import until
from tests.collect.support import Answer, Rig, answered, in_loop, opened
from tests.memory_log import MemoryLog

ANN, BOB = Caller("key:ann", ALL), Caller("key:bob", ALL)
LARGE = 100_000
ROOM = Settings(pending_bytes_max=4 * LARGE, body_bytes_max=4 * LARGE, event_bytes_max=2 * LARGE)
"""Room for four large bodies, so that one caller has room for two."""


class Gate:
    """Records the first byte of each body that the thread begins to process, and stops there until it is opened."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.is_open = threading.Event()

    def before(self, process: Callable[..., Any]) -> Callable[..., Any]:
        def gated(owner: Any, body: bytes, *given: Any, **named: Any) -> Any:
            self.begun.append(body if body[:2] == b"\x1f\x8b" else body[:1])
            assert self.is_open.wait(60)
            return process(owner, body, *given, **named)

        return gated


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(BodyReader, "_decompressed", gate.before(BodyReader._decompressed))
    monkeypatch.setattr(BodyDecoder, "decode", gate.before(BodyDecoder.decode))
    return gate


@asynccontextmanager
async def gated(gate: Gate) -> AsyncIterator[Rig]:
    """An ingress with little room, whose gate is open at the end."""
    async with opened(MemoryLog(), ROOM) as rig:
        try:
            yield rig
        finally:
            gate.is_open.set()


def posting(rig: Rig, caller: Caller, content: bytes, **headers: str) -> asyncio.Task[Answer]:
    return asyncio.create_task(answered(rig.endpoint, "raw", content, caller=caller, **headers))


async def statuses(*tasks: asyncio.Task[Answer]) -> list[int]:
    return [answer.status for answer in await asyncio.gather(*tasks)]


@in_loop
async def test_a_gzip_body_waits_for_one_body_of_another_caller_and_not_for_all(gate: Gate) -> None:
    async with gated(gate) as rig:
        many = [posting(rig, ANN, gzip.compress(b"ann %d" % n), content_encoding="gzip") for n in range(10)]
        await until(lambda: bool(gate.begun))
        bobs = gzip.compress(b"bob")
        one = posting(rig, BOB, bobs, content_encoding="gzip")
        await asyncio.sleep(0)
        gate.is_open.set()
        assert await statuses(one, *many) == [200] * 11
        assert gate.begun.index(bobs) <= 2


@in_loop
async def test_a_large_body_waits_for_one_body_of_another_caller_and_not_for_all(gate: Gate) -> None:
    async with gated(gate) as rig:
        many = [posting(rig, ANN, gzip.compress(b"ann %d" % n), content_encoding="gzip") for n in range(10)]
        await until(lambda: bool(gate.begun))
        one = posting(rig, BOB, b"b" * LARGE)
        await asyncio.sleep(0)
        gate.is_open.set()
        assert await statuses(one, *many) == [200] * 11
        assert gate.begun.index(b"b") <= 2


@in_loop
async def test_one_caller_has_half_of_the_room_for_large_bodies_that_wait(gate: Gate) -> None:
    async with gated(gate) as rig:
        fit = [posting(rig, ANN, b"a" * LARGE) for _ in range(2)]
        await until(lambda: bool(gate.begun))
        refused = posting(rig, ANN, b"a" * LARGE)
        others = [posting(rig, BOB, b"b" * LARGE) for _ in range(2)]
        await until(refused.done)
        answer = refused.result()
        assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (429, "overloaded", "1")
        gate.is_open.set()
        assert await statuses(*fit, *others) == [200] * 4
        assert await statuses(posting(rig, ANN, b"a" * LARGE)) == [200], "what is done is counted no more"


@in_loop
async def test_a_gzip_body_that_does_not_fit_as_it_is_is_refused_before_it_is_decompressed(gate: Gate) -> None:
    async with gated(gate) as rig:
        fit = [posting(rig, ANN, b"a" * LARGE) for _ in range(2)]
        await until(lambda: bool(gate.begun))
        packed = gzip.compress(os.urandom(LARGE))
        refused = posting(rig, ANN, packed, content_encoding="gzip")
        await until(refused.done)
        assert refused.result().status == 429
        gate.is_open.set()
        assert await statuses(*fit) == [200] * 2
        assert packed not in gate.begun


@in_loop
async def test_a_body_whose_turn_comes_after_the_end_is_refused(gate: Gate) -> None:
    async with gated(gate) as rig:
        bodies = [asyncio.create_task(rig.ingress.post("raw", b"a" * LARGE)) for _ in range(2)]
        await until(lambda: bool(gate.begun))
        gate.is_open.set()
        await rig.ingress.close()
        ends = await asyncio.gather(*bodies, return_exceptions=True)
        assert all(isinstance(end, Stopping | Overloaded) for end in ends), ends
