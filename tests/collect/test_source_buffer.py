"""The buffer that sources put their events into: marks, durability, back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from penstock.collect.group_commit import Hold
from penstock.core.contracts import SourceWriter
from penstock.core.errors import DiskFull, SyncFailed
from penstock.core.settings import Settings
from tests.clocks import until
from tests.collect.support import answered, body, fix, in_loop, opened
from tests.contracts.source_writer import SourceWriterContract, WriterHome
from tests.memory_log import MemoryLog


class BufferHome:
    """The buffers of a source of the stream `raw`, over one log in memory."""

    def __init__(self) -> None:
        self._log = MemoryLog()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SourceWriter]:
        async with opened(self._log) as rig:
            yield rig.ingress.writer_for_source("feed", "raw")

    def events(self) -> Sequence[bytes]:
        return [row["data"] for row in self._log.events("raw")]


class TestSourceBuffer(SourceWriterContract):
    @pytest.fixture
    def home(self) -> WriterHome:
        return BufferHome()


@in_loop
async def test_a_mark_is_committed_with_its_event_and_is_of_one_source_and_stream() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        await (await rig.ingress.writer_for_source("feed", "raw").put(b"one", "1"))
        assert log.admits == ["raw"]
        assert rig.ingress.writer_for_source("feed", "raw").mark == "1"
        assert rig.ingress.writer_for_source("another", "raw").mark is None
        assert rig.ingress.writer_for_source("feed", "fixes").mark is None


@in_loop
async def test_nothing_counts_before_the_log_has_it() -> None:
    log = MemoryLog()
    log.gate.clear()
    async with opened(log) as rig:
        source_writer = rig.ingress.writer_for_source("feed", "raw")
        done = await source_writer.put(b"event", "1")
        await until(lambda: log.at_the_gate == 1)
        assert (done.done(), source_writer.mark) == (False, None)
        log.gate.set()
        await done
        assert source_writer.mark == "1"


@in_loop
async def test_a_mark_passes_a_dead_letter_only_once_that_is_kept() -> None:
    log = MemoryLog()
    log.faults = [DiskFull("full", retry_after_s=0)]
    async with opened(log) as rig:
        source_writer = rig.ingress.writer_for_source("feed", "fixes")
        await (await source_writer.put(b"no JSON", "1"))
        assert log.admits == ["fixes.rejected", "fixes"]
        assert source_writer.mark == "1"
        assert log.events("fixes") == []


@in_loop
async def test_who_waits_for_events_that_cannot_be_written_is_told() -> None:
    """This includes the waiters of the failed group and those behind it, and a caller that puts another event."""
    log = MemoryLog()
    log.gate.clear()
    log.faults = [SyncFailed("the disk is gone")]
    async with opened(log, Settings(request_events_max=1)) as rig:
        source_writer = rig.ingress.writer_for_source("feed", "fixes")
        first = await source_writer.put(body(fix(1)), "1")
        await until(lambda: log.at_the_gate == 1)
        behind = await source_writer.put(body(fix(2)), "2")
        third = asyncio.create_task(source_writer.put(body(fix(3)), "3"))
        await asyncio.sleep(0)  # it begins, and returns at once if there is room
        assert not third.done()
        log.gate.set()
        await until(lambda: first.done() and behind.done())
        for future in (first, behind, third):
            with pytest.raises(SyncFailed):
                await future
        with pytest.raises(SyncFailed):
            await source_writer.settle()
        assert source_writer.mark is None


@in_loop
async def test_a_stream_that_is_held_refuses_requests_and_lets_sources_wait() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        source_writer = rig.ingress.writer_for_source("feed", "fixes")
        rig.ingress.hold("fixes", Hold("is far ahead", 7))
        answer = await answered(rig.endpoint, "fixes", body(fix(1)))
        assert (answer.status, answer.headers["retry-after"]) == (429, "7")
        assert "is far ahead" in answer.json["detail"]
        waiting = await source_writer.put(body(fix(2)))
        await rig.ingress.tick("fixes")
        assert not waiting.done()
        assert (await answered(rig.endpoint, "raw", b"another")).status == 200
        rig.ingress.hold("fixes", None)
        await waiting
        assert [row["fix_id"] for row in log.events("fixes")] == ["f2"]
        assert rig.ingress.held() == {}
        assert rig.ingress.audits()["fixes"].of("POST").refused == 1
