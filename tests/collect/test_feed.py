"""Where sources put their events: marks, durability, back-pressure."""

from __future__ import annotations

import asyncio

import pytest

from penstock.collect.intake import Hold
from penstock.errors import DiskFull, SyncFailed
from penstock.settings import Settings
from tests.collect.fakes import MemoryLog
from tests.collect.support import answered, body, fix, in_loop, opened, until


@in_loop
async def test_a_mark_is_committed_with_its_event_and_found_by_the_next_of_that_name() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        assert rig.door.intake_for_source("feed", "raw").mark is None
        intake = rig.door.intake_for_source("feed", "raw")
        await (await intake.put(b"one", "1"))
        assert (intake.mark, log.admits) == ("1", ["raw"])
        await (await intake.put(b"two"))
        await (await intake.note("3"))
        assert rig.door.intake_for_source("feed", "raw").mark == "3"
        assert rig.door.intake_for_source("another", "raw").mark is None
        assert rig.door.intake_for_source("feed", "fixes").mark is None


@in_loop
async def test_of_a_group_the_last_mark_counts() -> None:
    log = MemoryLog()
    log.gate.clear()
    async with opened(log) as rig:
        intake = rig.door.intake_for_source("feed", "raw")
        for number in range(5):
            done = await intake.put(b"event", str(number))
        assert not done.done()
        log.gate.set()
        await done
        assert (intake.mark, len(log.rows["raw"][0])) == ("4", 5)


@in_loop
async def test_a_mark_passes_a_dead_letter_only_once_that_is_kept() -> None:
    log = MemoryLog()
    log.faults = [DiskFull("full", retry_after_s=0)]
    async with opened(log) as rig:
        intake = rig.door.intake_for_source("feed", "fixes")
        await (await intake.put(b"no JSON", "1"))
        assert log.admits == ["fixes.rejected", "fixes"]
        assert intake.mark == "1"
        assert log.events("fixes") == []


@in_loop
async def test_who_waits_for_events_that_cannot_be_written_is_told() -> None:
    """Those of the group that failed and those behind it; and so is who puts another."""
    log = MemoryLog()
    log.gate.clear()
    log.faults = [SyncFailed("the disk is gone")]
    async with opened(log, Settings(request_events_max=1)) as rig:
        intake = rig.door.intake_for_source("feed", "fixes")
        first = await intake.put(body(fix(1)), "1")
        await asyncio.sleep(0.01)
        behind = await intake.put(body(fix(2)), "2")
        third = asyncio.create_task(intake.put(body(fix(3)), "3"))
        await asyncio.sleep(0.01)
        assert not third.done()
        log.gate.set()
        await until(lambda: first.done() and behind.done())
        for each in (first, behind, third):
            with pytest.raises(SyncFailed):
                await each
        with pytest.raises(SyncFailed):
            await intake.settle()
        assert intake.mark is None


@in_loop
async def test_a_stream_that_is_held_refuses_requests_and_lets_sources_wait() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        intake = rig.door.intake_for_source("feed", "fixes")
        rig.door.hold("fixes", Hold("is far ahead", 7))
        answer = await answered(rig.endpoint, "fixes", body(fix(1)))
        assert (answer.status, answer.headers["retry-after"]) == (429, "7")
        assert "is far ahead" in answer.json["detail"]
        waiting = await intake.put(body(fix(2)))
        await rig.door.tick("fixes")
        assert not waiting.done()
        assert (await answered(rig.endpoint, "raw", b"another")).status == 200
        rig.door.hold("fixes", None)
        await waiting
        assert [row["fix_id"] for row in log.events("fixes")] == ["f2"]
        assert rig.door.held() == {}
        assert rig.door.audits()["fixes"].of("POST").refused == 1
