"""A stream's channel: pages and followers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.contracts import Delivery
from penstock.cursor import stream_cursor
from penstock.errors import BadCursor, Damaged
from penstock.serve.channels import stream as stream_module
from penstock.serve.channels import tail as tail_module
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.connections import following
from penstock.settings import Settings
from tests.serve.fakes import QUICK, FakeLog, background, body, numbers, run, until

CALM = Settings(heartbeat_s=600)


def channel(log: FakeLog, settings: Settings = CALM) -> StreamChannel:
    return StreamChannel("s", log, settings)


async def page(source: StreamChannel, since: str | None = None, limit: int = 100) -> Any:
    return json.loads((await source.page(since, limit)).body)


async def next_change(deliveries: AsyncIterator[Delivery]) -> Delivery:
    """The next delivery that is not a mark of progress."""
    async for delivery in deliveries:
        if delivery.kind != "progress":
            return delivery
    raise AssertionError("the channel ended")


def test_pages_lead_from_the_first_kept_event_to_the_end() -> None:
    """Page after page gives all events, and the page at the end is empty with the same cursor."""

    async def main() -> None:
        log = FakeLog()
        log.write(0, *range(10))
        log.write(1, *range(10, 15))
        source, cursor, found = channel(log), None, []
        for size in (4, 4, 4, 3, 0):
            answer = await page(source, cursor, 4)
            assert len(answer["events"]) == size
            found += [event["n"] for event in answer["events"]]
            cursor = answer["cursor"]
        assert sorted(found) == list(range(15))
        assert (await page(source, cursor))["cursor"] == cursor
        assert await page(source, "earliest") == await page(source)

    run(main())


def test_latest_is_an_empty_page_with_the_place_of_now() -> None:
    """What is written after `latest` is all that its cursor gives."""

    async def main() -> None:
        log = FakeLog()
        log.write(0, 1, 2)
        answer = await page(channel(log), "latest")
        assert answer["events"] == []
        log.write(1, 3)
        assert [event["n"] for event in (await page(channel(log), answer["cursor"]))["events"]] == [3]

    run(main())


def test_a_page_at_a_position_that_is_gone_says_so() -> None:
    """A trimmed position and one of another making are answered from the first kept, with `reset`."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, *range(10))
        log.trim(0, 5)
        for cursor in (stream_cursor(1, {0: 4}), stream_cursor(99, {0: 7})):
            answer = await page(channel(log), cursor)
            assert answer["reset"] is True
            assert [event["n"] for event in answer["events"]] == [5, 6, 7, 8, 9]
        assert "reset" not in await page(channel(log), stream_cursor(1, {0: 5}))

    run(main())


def test_a_follower_without_a_place_gets_one_at_once_and_then_what_comes() -> None:
    """The first delivery is a progress mark; older events are not given."""

    async def main() -> None:
        log = FakeLog()
        log.write(0, 1)
        source = channel(log)
        for since in (None, "latest"):
            async with following(source, since) as deliveries:
                first = await anext(deliveries)
                assert first.kind == "progress"
                number = log.ends("s")[1] + 100
                log.write(1, number)
                source.wake()
                assert numbers(await anext(deliveries)) == [number]
                assert [event["n"] for event in (await page(source, first.cursor))["events"]] == [number]

    run(main())


def test_a_follower_that_is_up_to_date_hears_so_at_once() -> None:
    """Resuming at the end gives a progress mark without waiting for the heartbeat."""

    async def main() -> None:
        log = FakeLog()
        log.write(0, 1)
        source = channel(log)
        cursor = (await page(source, "latest"))["cursor"]
        async with following(source, cursor) as deliveries:
            first = await anext(deliveries)
            assert (first.kind, first.cursor) == ("progress", cursor)

    run(main())


def test_events_of_another_process_are_found_without_being_told() -> None:
    """A commit that nobody announced is noticed by looking."""

    async def main() -> None:
        log = FakeLog()
        async with following(channel(log), None) as deliveries:
            await anext(deliveries)
            log.write(0, 1)
            assert numbers(await anext(deliveries)) == [1]

    run(main())


def test_silence_is_broken_by_progress_that_passes_ticks() -> None:
    """Heartbeats come while nothing happens, and their cursor moves over ticks."""

    async def main() -> None:
        log = FakeLog(1)
        async with following(channel(log, QUICK), None) as deliveries:
            first = await anext(deliveries)
            log.tick(0)
            seen = [await anext(deliveries)]
            while seen[-1].cursor == first.cursor:
                seen.append(await anext(deliveries))
            assert {each.kind for each in seen} == {"progress"}
            assert seen[-1].cursor == stream_cursor(1, {0: 1})

    run(main())


def test_followers_at_the_tail_share_one_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many follow, a new piece is read once and every follower is given the same bytes."""

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        followers = [source.follow(None) for _ in range(20)]
        for each in followers:
            await anext(each)
        log.write(0, 0)
        source.wake()
        for each in followers:  # now all stand on the tail
            assert numbers(await anext(each)) == [0]
        before = log.reads
        log.write(0, 1, 2, 3)
        source.wake()
        given = [await anext(each) for each in followers]
        assert log.reads == before + 1
        assert len({id(each.data) for each in given}) == 1
        for each in followers:
            await each.aclose()  # type: ignore[attr-defined]

    run(main())


def test_a_change_holds_no_more_events_than_a_page() -> None:
    """A long backlog comes in changes of at most `page_events` each."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, *range(95))
        async with following(channel(log, replace(CALM, page_events=10)), "earliest") as deliveries:
            found: list[int] = []
            while len(found) < 95:
                events = numbers(await anext(deliveries))
                assert len(events) <= 10
                found += events
            assert found == list(range(95))

    run(main())


def test_a_follower_whose_position_is_gone_is_reset_and_goes_on() -> None:
    """A trimmed cursor gives `reset` with a reason, then everything from the first kept event."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, *range(10))
        log.trim(0, 6)
        for cursor in (stream_cursor(1, {0: 2}), stream_cursor(5, {0: 9})):
            async with following(channel(log), cursor) as deliveries:
                first = await anext(deliveries)
                assert first.kind == "reset"
                assert body(first)["reason"]
                assert numbers(await anext(deliveries)) == [6, 7, 8, 9]

    run(main())


def test_a_follower_that_retention_overtakes_is_reset() -> None:
    """Events that go while a slow follower still needs them are a `reset`, not a hole."""

    async def main() -> None:
        log = FakeLog(1)
        settings = replace(CALM, page_events=5, buffered_changes=2)
        log.write(0, *range(100))
        async with following(channel(log, settings), "earliest") as deliveries:
            assert numbers(await anext(deliveries)) == [0, 1, 2, 3, 4]
            log.trim(0, 50)
            assert (await next_change(deliveries)).kind == "reset"
            assert numbers(await anext(deliveries)) == [50, 51, 52, 53, 54]

    run(main())


def test_a_stream_made_anew_resets_its_followers() -> None:
    """Even if the new stream has grown past the old position, nobody is given its middle."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, 1, 2, 3)
        source = channel(log)
        async with following(source, "earliest") as deliveries:
            assert numbers(await anext(deliveries)) == [1, 2, 3]
            log.remake()
            log.write(0, *range(10, 15))
            source.wake()
            assert (await next_change(deliveries)).kind == "reset"
            assert numbers(await anext(deliveries)) == [10, 11, 12, 13, 14]

    run(main())


def test_what_was_read_while_the_stream_was_made_anew_is_not_given() -> None:
    """Rows that may be of either making are dropped, and the follower is reset."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, *range(10))

        def remake() -> None:
            log.after_read = lambda: None
            log.remake()
            log.write(0, *range(100, 120))

        async with following(channel(log, replace(CALM, page_events=3)), "earliest") as deliveries:
            assert numbers(await anext(deliveries)) == [0, 1, 2]
            log.after_read = remake
            assert (await anext(deliveries)).kind == "reset"
            assert numbers(await anext(deliveries)) == [100, 101, 102]

    run(main())


def test_a_cursor_ahead_of_the_end_is_refused() -> None:
    """Pages and followers alike say `BadCursor` to a position that was never given."""

    async def main() -> None:
        source = channel(FakeLog(1))
        cursor = stream_cursor(1, {0: 1})
        with pytest.raises(BadCursor):
            await source.page(cursor, 10)
        with pytest.raises(BadCursor):
            await anext(source.follow(cursor))

    run(main())


def test_a_follower_far_behind_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One `stall` with how far behind, however long it takes; another only after it had caught up."""
    monkeypatch.setattr(stream_module, "STALL_EVENTS", 50)

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, *range(100))
        source = channel(log, replace(CALM, page_events=10, buffered_changes=4))
        async with following(source, "earliest") as deliveries:

            async def kinds_until(number: int) -> list[str]:
                kinds, found = list[str](), list[int]()
                while number not in found:
                    delivery = await anext(deliveries)
                    kinds.append(delivery.kind)
                    found += numbers(delivery) if delivery.kind == "change" else []
                return kinds

            first = await anext(deliveries)
            assert (first.kind, body(first)) == ("stall", {"behind": 100})
            assert set(await kinds_until(99)) == {"change"}
            log.write(0, 100)
            assert await kinds_until(100) == ["change"]
            log.write(0, *range(101, 201))
            assert (await kinds_until(200)).count("stall") == 1

    run(main())


def test_a_slow_follower_loses_its_place_on_the_tail_and_misses_nothing() -> None:
    """A follower that the ring has left behind reads the log for itself until it meets the tail again."""

    async def main() -> None:
        log = FakeLog()
        source = channel(log, replace(CALM, page_events=7, buffered_changes=3))
        slow, quick = source.follow(None), source.follow(None)
        await anext(slow), await anext(quick)
        seen: dict[str, list[int]] = {"slow": [], "quick": []}
        for number in range(200):
            log.write(number % 2, number, at_s=number)
            source.wake()
            while number not in seen["quick"]:
                seen["quick"] += numbers(await anext(quick))
        while len(seen["slow"]) < 200:
            seen["slow"] += numbers(await anext(slow))
        log.write(0, 200, at_s=200)
        before = log.reads
        assert numbers(await anext(slow)) == numbers(await anext(quick)) == [200]
        assert log.reads == before + 1  # both are at the tail
        assert seen["slow"] == seen["quick"] == list(range(200))
        await slow.aclose(), await quick.aclose()  # type: ignore[attr-defined]

    run(main())


def test_a_damaged_log_ends_its_followers_with_the_error() -> None:
    """Damage is raised to every follower; one that comes later, when it is mended, is served."""

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        followers = [source.follow(None) for _ in range(3)]
        for each in followers:
            await anext(each)
        log.error = Damaged("bad bytes")
        log.write(0, 1)
        source.wake()
        for each in followers:
            with pytest.raises(Damaged):
                await anext(each)
        log.error = None
        async with following(source, "earliest") as deliveries:
            assert numbers(await anext(deliveries)) == [1]

    run(main())


def test_the_tail_works_only_while_someone_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no follower the log is not looked at, and nothing is held in memory."""
    monkeypatch.setattr(tail_module, "POLL_S", 0.001)

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        async with following(source, None) as deliveries:
            await anext(deliveries)
            log.write(0, 1)
            await anext(deliveries)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await until(lambda: all(task.done() for task in tasks))
        reads = log.reads
        log.write(0, 2)
        source.wake()
        await asyncio.sleep(0)
        assert log.reads == reads
        assert source._tail.entry(source._tail.first) is None

    run(main())


@pytest.mark.parametrize("seed", random.sample(range(10**6), 5))
def test_followers_that_come_and_go_get_every_event_once(seed: int) -> None:
    """Random writes and ticks; followers that leave at random and resume: no gap, no repeat, on and off the tail."""
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def reader(source: StreamChannel, total: int, start: str) -> None:
        cursor, found = start, list[int]()
        while len(found) < total:
            async with following(source, cursor) as deliveries:
                for _ in range(chance.randrange(1, 6)):
                    delivery = await anext(deliveries)
                    cursor = delivery.cursor
                    found += numbers(delivery) if delivery.kind == "change" else []
                    if chance.random() < 0.2:
                        await asyncio.sleep(chance.random() * 0.01)
        for partition in range(3):
            own = [each for each in found if each % 3 == partition]
            assert own == list(range(partition, total, 3))

    async def writer(log: FakeLog, source: StreamChannel, total: int) -> None:
        written = dict.fromkeys(range(3), 0)
        while sum(written.values()) < total:
            partition = chance.randrange(3)
            left = total // 3 - written[partition]
            count = min(left, chance.randrange(0, 8))
            first = written[partition]
            log.write(partition, *(3 * each + partition for each in range(first, first + count)), at_s=chance.random())
            written[partition] += count
            if chance.random() < 0.2:
                log.tick(partition)
            if chance.random() < 0.7:
                source.wake()
            await asyncio.sleep(chance.random() * 0.002)

    async def main() -> None:
        log = FakeLog(3)
        source = channel(log, Settings(heartbeat_s=0.02, page_events=5, buffered_changes=8))
        start = (await page(source, "latest"))["cursor"]
        async with background(writer(log, source, 600)):
            await asyncio.gather(*(reader(source, 600, start) for _ in range(6)))

    run(main())
