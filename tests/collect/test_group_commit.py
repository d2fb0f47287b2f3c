"""The bounded queue, the group commit, and the writing of a group."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import timedelta

import pytest

from penstock.core import cursor
from penstock.core.errors import DiskFull, Overloaded, Stopping, StorageError, SyncFailed
from penstock.core.schema import KIND_TICK
from penstock.core.settings import Settings
from tests.clocks import ManualClock, until
from tests.collect.support import Fix, Rig, body, fix, in_loop, opened
from tests.memory_log import MemoryLog


async def stalled(rig: Rig, log: MemoryLog) -> asyncio.Task[object]:
    """Close the log's gate and send one event, which then waits for the disk."""
    log.gate.clear()
    first: asyncio.Task[object] = asyncio.create_task(rig.ingress.post("fixes", body(fix(0))))
    await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 1)
    return first


@in_loop
async def test_requests_that_wait_for_the_disk_become_one_commit() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        first = await stalled(rig, log)
        rest = [asyncio.create_task(rig.ingress.post("fixes", body(fix(number)))) for number in range(1, 100)]
        await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 100)
        log.gate.set()
        await asyncio.gather(first, *rest)
        assert len(log.admits) == 2
        assert len(log.events("fixes")) == 100
        assert rig.commits == ["fixes", "fixes"]


@in_loop
async def test_a_group_has_at_most_group_events_max_events_and_a_request_is_never_split() -> None:
    log = MemoryLog()
    async with opened(log, Settings(group_events_max=10)) as rig:
        first = await stalled(rig, log)
        starts = range(1, 41, 4)
        rest = [
            asyncio.create_task(rig.ingress.post("fixes", body(*[fix(n) for n in range(start, start + 4)])))
            for start in starts
        ]
        await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 41)
        log.gate.set()
        await asyncio.gather(first, *rest)
        assert len(log.admits) == 1 + 5  # two requests of four fit ten, three do not
        assert len(log.events("fixes")) == 41


@in_loop
async def test_events_of_a_key_keep_the_order_in_which_they_came() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    log = MemoryLog()
    async with opened(log) as rig:
        sent = [(number, f"v{draw.randrange(7)}") for number in range(500)]
        waits, at = [], 0
        while at < len(sent):
            count = draw.randrange(1, 6)
            content = body([fix(number, vehicle) for number, vehicle in sent[at : at + count]])
            waits.append(asyncio.create_task(rig.ingress.post("fixes", content)))
            at += count
            if draw.random() < 0.2:
                await waits[-1]
        await asyncio.gather(*waits)
        for vehicle in {vehicle for _, vehicle in sent}:
            stored = [row["fix_id"] for row in log.events("fixes") if row["vehicle"] == vehicle]
            assert stored == [f"f{number}" for number, key in sent if key == vehicle]
        partitions = [{row["_key"] for row in rows} for rows in log.rows["fixes"].values()]
        assert partitions[0]
        assert partitions[1]
        assert not partitions[0] & partitions[1]


@in_loop
async def test_a_known_id_is_acknowledged_as_a_duplicate_and_not_stored_again() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        await rig.ingress.post("fixes", body(fix(1), fix(2)))
        receipt = await rig.ingress.post("fixes", body(fix(2), fix(3), fix(3)))
        assert (receipt.accepted, receipt.duplicates) == (1, 2)
        assert sorted(str(row["_id"]) for row in log.events("fixes")) == ["f1", "f2", "f3"]
        again = await rig.ingress.post("fixes", body(fix(1)))
        assert (again.accepted, again.duplicates) == (0, 1)


@in_loop
async def test_duplicates_are_counted_for_the_request_that_sent_them() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        first = await stalled(rig, log)
        waits = [asyncio.create_task(rig.ingress.post("fixes", body(fix(n), fix(0)))) for n in (1, 2)]
        waits.append(asyncio.create_task(rig.ingress.post("fixes", body(fix(3), fix(4)))))
        await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 7)
        log.gate.set()
        await first
        receipts = await asyncio.gather(*waits)
        assert [(receipt.accepted, receipt.duplicates) for receipt in receipts] == [(1, 1), (1, 1), (2, 0)]


@in_loop
async def test_the_cursor_stands_after_the_commit_in_every_partition() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        receipt = await rig.ingress.post("fixes", body([fix(n, f"v{n}") for n in range(20)]))
        assert cursor.decode(str(receipt.cursor)) == cursor.StreamCursor(
            log.generation("fixes"), dict(log.ends("fixes"))
        )
        receipt = await rig.ingress.post("fixes", b"[]")
        assert cursor.decode(str(receipt.cursor)) == cursor.StreamCursor(
            log.generation("fixes"), dict(log.ends("fixes"))
        )


@in_loop
async def test_ingest_time_rises_from_group_to_group_even_over_a_restart() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        await rig.ingress.post("fixes", body(fix(1)))
        rig.clock.move(-3600)
        await rig.ingress.post("fixes", body(fix(2)))
    async with opened(log) as rig:
        rig.clock.move(-60)
        await rig.ingress.post("fixes", body(fix(3)))
        rig.clock.move(120)
        await rig.ingress.post("fixes", body(fix(4)))
    start = ManualClock().now()
    times = [row["_ingest_time"] for row in log.events("fixes")]
    soon = timedelta(microseconds=1)
    assert times == [start, start + soon, start + 2 * soon, start + timedelta(seconds=60)]


@in_loop
async def test_a_full_queue_refuses_and_recovers() -> None:
    log = MemoryLog()
    async with opened(log, Settings(pending_events_max=10)) as rig:
        first = await stalled(rig, log)
        second = asyncio.create_task(rig.ingress.post("fixes", body([fix(n) for n in range(1, 10)])))
        await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 10)
        with pytest.raises(Overloaded) as refusal:
            await rig.ingress.post("fixes", body(fix(10)))
        assert 1 <= refusal.value.retry_after_s <= 30
        assert rig.ingress.audits()["fixes"].total().refused == 1
        log.gate.set()
        await asyncio.gather(first, second)
        await rig.ingress.post("fixes", body(fix(10)))
        assert len(log.events("fixes")) == 11


@in_loop
async def test_bytes_waiting_are_bounded_too() -> None:
    log = MemoryLog()
    async with opened(log, Settings(pending_bytes_max=300)) as rig:
        first = await stalled(rig, log)
        with pytest.raises(Overloaded):
            await rig.ingress.post("fixes", body(fix(1, "v" * 300)))
        log.gate.set()
        await first


@in_loop
async def test_retry_after_follows_the_rate_at_which_the_queue_empties() -> None:
    log = MemoryLog()
    async with opened(log, Settings(pending_events_max=100, group_events_max=10)) as rig:
        for number in range(50):  # ten events in ten seconds, many times: one event a second
            log.gate.clear()
            wait = asyncio.create_task(rig.ingress.post("fixes", body([fix(number * 10 + n) for n in range(10)])))
            await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 10)
            rig.clock.move(10)
            log.gate.set()
            await wait
        log.gate.clear()
        waits = [asyncio.create_task(rig.ingress.post("fixes", body([fix(1000 + n) for n in range(20)])))]
        await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 20)
        with pytest.raises(Overloaded) as refusal:
            await rig.ingress.post("fixes", body([fix(2000 + n) for n in range(90)]))
        assert 20 <= refusal.value.retry_after_s <= 21
        log.gate.set()
        await asyncio.gather(*waits)


@in_loop
async def test_a_failed_commit_fails_its_group_and_no_other() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        first = await stalled(rig, log)
        rest = [asyncio.create_task(rig.ingress.post("fixes", body(fix(number)))) for number in (1, 2)]
        await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 3)
        log.faults = [DiskFull("full", retry_after_s=5)]
        log.gate.set()
        with pytest.raises(DiskFull):
            await first
        await asyncio.gather(*rest)
        assert len(log.events("fixes")) == 2
        assert rig.ingress.audits()["fixes"].total().failed == 1
        assert not rig.fatal


@in_loop
async def test_an_unforeseen_error_is_a_storage_error_and_the_writer_goes_on() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        log.faults = [RuntimeError("a bug")]
        with pytest.raises(StorageError):
            await rig.ingress.post("fixes", body(fix(1)))
        await rig.ingress.post("fixes", body(fix(1)))
        assert len(log.events("fixes")) == 1


@in_loop
async def test_after_a_failed_sync_nothing_is_written_and_the_owner_is_told() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        first = await stalled(rig, log)
        rest = [asyncio.create_task(rig.ingress.post("fixes", body(fix(number)))) for number in (1, 2)]
        await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 3)
        log.faults = [SyncFailed("the disk is gone")]
        log.gate.set()
        for task in (first, *rest):
            with pytest.raises(SyncFailed):
                await task
        assert [error.code for error in rig.fatal] == ["sync_failed"]
        assert not log.events("fixes")
        with pytest.raises(Stopping):
            await rig.ingress.post("fixes", body(fix(3)))


@in_loop
async def test_a_client_that_gives_up_waiting_does_not_disturb_its_group() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        first = await stalled(rig, log)
        rest = [asyncio.create_task(rig.ingress.post("fixes", body(fix(number)))) for number in (1, 2)]
        await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 3)
        rest[0].cancel()
        log.gate.set()
        await asyncio.gather(first, rest[1])
        assert len(log.events("fixes")) == 3


@in_loop
async def test_close_loses_nothing_that_was_taken_and_refuses_what_comes_after() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        first = await stalled(rig, log)
        rest = [asyncio.create_task(rig.ingress.post("fixes", body(fix(number)))) for number in range(1, 50)]
        await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 50)
        closing = asyncio.create_task(rig.ingress.close())
        await asyncio.sleep(0)
        with pytest.raises(Stopping):
            await rig.ingress.post("fixes", body(fix(99)))
        log.gate.set()
        await asyncio.gather(first, *rest, closing)
        assert len(log.events("fixes")) == 50
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]


@in_loop
async def test_drain_waits_for_what_is_pending_and_leaves_the_door_open() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        await rig.ingress.drain()
        first = await stalled(rig, log)
        await rig.ingress.post("fixes", body(fix(1)), durable=False)
        draining = asyncio.create_task(rig.ingress.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        log.gate.set()
        await asyncio.gather(first, draining)
        assert len(log.events("fixes")) == 2
        await rig.ingress.post("fixes", body(fix(2)))


@in_loop
async def test_a_tick_goes_to_every_partition_and_has_no_event_time() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        await rig.ingress.post("fixes", body(fix(1)))
        await rig.ingress.tick("fixes")
        receipt = await rig.ingress.post("fixes", b"[]")
        assert cursor.decode(str(receipt.cursor)) == cursor.StreamCursor(
            log.generation("fixes"), dict(log.ends("fixes"))
        )
        ticks = [rows[-1] for rows in log.rows["fixes"].values()]
        assert [(tick["_kind"], tick["at"], tick["_id"]) for tick in ticks] == [(KIND_TICK, None, None)] * 2
        assert len(log.events("fixes")) == 1


@in_loop
async def test_counters_add_up() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        content = [body(fix(1), fix(1), {"bad": 1}), body(fix(2))]
        for packet in content:
            await rig.ingress.post("fixes", packet)
        tally = rig.ingress.audits()["fixes"].total()
        assert (tally.received, tally.accepted, tally.duplicates, tally.rejected) == (4, 2, 1, 1)
        assert tally.received == tally.accepted + tally.duplicates + tally.rejected + tally.failed
        assert tally.bytes == sum(map(len, content))
        assert rig.ingress.audits()["fixes"].commits == 2


@in_loop
async def test_what_came_is_told_by_the_way_it_came_and_how_long_it_took() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        log.gate.clear()
        first = asyncio.create_task(rig.ingress.post("fixes", body(fix(1))))
        await until(lambda: rig.ingress.audits()["fixes"].of("POST").received == 1)
        rig.clock.move(0.25)
        log.gate.set()
        await first
        await rig.ingress.post("fixes", body(fix(2), {"bad": 1}))
        await (await rig.ingress.writer_for_source("feed", "fixes").put(body(fix(1))))
        log.faults = [StorageError("broken")]
        await rig.ingress.post("fixes", body(fix(3)), durable=False)
        await rig.ingress.drain()
        figures = {name: tally.figures() for name, tally in rig.ingress.audits()["fixes"].by_source.items()}
        assert set(figures) == {"POST", "POST ack=none", "feed"}
        assert (figures["POST"]["received"], figures["POST"]["accepted"], figures["POST"]["rejected"]) == (3, 2, 1)
        assert (figures["feed"]["duplicates"], figures["feed"]["accepted"]) == (1, 0)
        assert (figures["POST ack=none"]["lost"], figures["POST ack=none"]["failed"]) == (1, 0)
        assert [figures["POST"][f"durable_ms_{statistic}"] for statistic in ("min", "mean", "max")] == [0, 125, 250]
        assert figures["POST ack=none"]["durable_ms_mean"] is None


def test_dead_letters_are_not_checked_for_duplicates() -> None:
    """Every other stream is: events without an id may get one from the key of their request."""

    async def declare() -> None:
        async with opened(log, Settings(dedupe_ids_max=99)):
            pass

    log = MemoryLog()
    asyncio.run(declare())
    assert {name: spec.unique_ids for name, spec in log.specs.items()} == {
        "fixes": 99,
        "fixes.rejected": 0,
        "raw": 99,
        "raw.rejected": 0,
    }
    assert log.specs["fixes"].schema.names[: len(Fix.__struct_fields__)] == list(Fix.__struct_fields__)
