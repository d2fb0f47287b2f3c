"""A stream's channel: pages and followers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.contracts import Channel, Delivery
from penstock.core.cursor import stream_cursor, view_cursor
from penstock.core.errors import BadCursor, Damaged
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.serve.channels import stream as stream_module
from penstock.serve.channels import tail as tail_module
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.connections import following
from tests.clocks import until
from tests.contracts.channel import FAR, ChangeChannelContract, ChangeChannelHome, OpenChannel, Run
from tests.serve.fakes import QUICK, FakeLog, Reading, background, body, numbers, run

CALM = Settings(heartbeat_s=600)


def channel(log: FakeLog, settings: Settings = CALM) -> StreamChannel:
    return StreamChannel("s", log, settings)


async def page(source: StreamChannel, since: str | None = None, limit: int = 100) -> Any:
    return json.loads((await source.page(since, limit)).body)


async def next_change(deliveries: AsyncIterator[Delivery]) -> Delivery:
    """Return the next delivery that is not a progress mark."""
    async for delivery in deliveries:
        if delivery.kind != "progress":
            return delivery
    raise AssertionError("the channel ended")


class NumbersInStream:
    """A stream of readings, and what a channel test does with it."""

    column, foreign_cursor = "n", view_cursor(1, 0)

    def __init__(self, heartbeat_s: float, where: str | None) -> None:
        settings = Settings(heartbeat_s=heartbeat_s, page_events=5, buffered_changes=2)
        self._log = FakeLog(1)
        self._source = StreamChannel("s", self._log, settings, lambda: event_schema(Reading))
        self.channel: Channel = self._source if where is None else self._source.through(where, None)

    @property
    def reads(self) -> int:
        return self._log.reads

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self._log.write(0, number)
        self._source.wake()

    def kept(self) -> list[int]:
        span = self._log.starts("s")[0], self._log.ends("s")[0]
        return [number for batch in self._log.read("s", 0, *span) for number in batch.column("n").to_pylist()]

    def trim(self) -> None:
        self._log.trim(0, self._log.ends("s")[0])

    def recreate(self) -> None:
        self._log.remake()


class TestStreamChannel(ChangeChannelContract):
    @pytest.fixture(params=[None, "n >= 0"], ids=["whole", "filtered"])
    def open_home(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OpenChannel:
        monkeypatch.setattr(stream_module, "STALL_EVENTS", FAR)

        def opened(heartbeat_s: float) -> ChangeChannelHome:
            return NumbersInStream(heartbeat_s, request.param)

        return opened

    @pytest.mark.usefixtures("dense")
    def test_the_cursor_of_a_page_leads_to_what_comes_after(self, run: Run) -> None:
        """It compares cursors, and the cursor of an empty page is behind a gap at the end."""
        super().test_the_cursor_of_a_page_leads_to_what_comes_after(run)


@pytest.mark.usefixtures("dense")
def test_pages_lead_from_the_first_kept_event_to_the_end() -> None:
    """Page after page gives all events, and the page at the end is empty with the same cursor."""

    async def main() -> None:
        log = FakeLog()
        log.write(0, *range(10))
        log.write(1, *range(10, 15))
        source, cursor, received = channel(log), None, []
        for size in (4, 4, 4, 3, 0):
            answer = await page(source, cursor, 4)
            assert len(answer["events"]) == size
            received += [event["n"] for event in answer["events"]]
            cursor = answer["cursor"]
        assert sorted(received) == list(range(15))
        assert (await page(source, cursor))["cursor"] == cursor
        assert await page(source, "earliest") == await page(source)

    run(main())


def test_a_follower_without_a_place_gets_one_at_once_and_then_what_comes() -> None:
    """The first delivery is a progress mark; older events are not delivered."""

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


def test_events_of_another_process_are_found_without_being_told() -> None:
    """A commit without an announcement is noticed by polling."""

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
            assert {delivery.kind for delivery in seen} == {"progress"}
            assert seen[-1].cursor == stream_cursor(1, log.ends("s"))

    run(main())


def test_followers_at_the_tail_share_one_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many follow, a new piece is read once and every follower gets the same bytes."""

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        followers = [source.follow(None) for _ in range(20)]
        for follower in followers:
            await anext(follower)
        log.write(0, 0)
        source.wake()
        for follower in followers:  # now all are at the tail
            assert numbers(await anext(follower)) == [0]
        before = log.reads
        log.write(0, 1, 2, 3)
        source.wake()
        given = [await anext(follower) for follower in followers]
        assert log.reads == before + 1
        assert len({id(delivery.data) for delivery in given}) == 1
        for follower in followers:
            await follower.aclose()  # type: ignore[attr-defined]

    run(main())


def test_a_change_holds_no_more_events_than_a_page() -> None:
    """A long backlog comes in changes of at most `page_events` each."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, *range(95))
        async with following(channel(log, replace(CALM, page_events=10)), "earliest") as deliveries:
            received: list[int] = []
            while len(received) < 95:
                events = numbers(await anext(deliveries))
                assert len(events) <= 10
                received += events
            assert received == list(range(95))

    run(main())


@pytest.mark.usefixtures("dense")
def test_a_follower_that_retention_overtakes_is_reset() -> None:
    """Events that are trimmed while a slow follower still needs them are a `reset`, not a gap."""

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


def test_what_was_read_while_the_stream_was_made_anew_is_not_given() -> None:
    """Rows that may be of either generation are dropped, and the follower is reset."""

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
    """Pages and followers both raise `BadCursor` for a position that does not exist yet."""

    async def main() -> None:
        source = channel(FakeLog(1))
        cursor = stream_cursor(1, {0: 1})
        with pytest.raises(BadCursor):
            await source.page(cursor, 10)
        with pytest.raises(BadCursor):
            await anext(source.follow(cursor))

    run(main())


def test_a_follower_far_behind_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one `stall` with the lag, however long it takes; another only after it had caught up."""
    monkeypatch.setattr(stream_module, "STALL_EVENTS", 50)

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, *range(100))
        source = channel(log, replace(CALM, page_events=10, buffered_changes=4))
        async with following(source, "earliest") as deliveries:

            async def kinds_until(number: int) -> list[str]:
                kinds, received = list[str](), list[int]()
                while number not in received:
                    delivery = await anext(deliveries)
                    kinds.append(delivery.kind)
                    received += numbers(delivery) if delivery.kind == "change" else []
                return kinds

            first = await anext(deliveries)
            assert (first.kind, body(first)) == ("stall", {"behind": 100})
            assert set(await kinds_until(99)) == {"change"}
            log.write(0, 100)
            assert await kinds_until(100) == ["change"]
            log.write(0, *range(101, 201))
            assert (await kinds_until(200)).count("stall") == 1

    run(main())


def test_a_gap_puts_no_follower_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lag of a follower is counted in rows, and the log is not asked for each delivery."""
    monkeypatch.setattr(stream_module, "STALL_EVENTS", 50)

    async def main() -> None:
        log = FakeLog(1)
        log.skip(0, 5_000)
        for number in range(40):
            log.write(0, number, at_s=number)
            log.skip(0, 5_000 if number == 20 else 1)
        source = channel(log, replace(CALM, page_events=1, buffered_changes=4))
        async with following(source, "earliest") as deliveries:
            received, kinds = list[int](), set[str]()
            while len(received) < 40:
                delivery = await anext(deliveries)
                kinds.add(delivery.kind)
                received += numbers(delivery) if delivery.kind == "change" else []
            assert (received, kinds) == (list(range(40)), {"change"})
            assert log.counts == 1
            log.write(0, *range(40, 140))
            log.skip(0, 100)
        async with following(source, stream_cursor(1, {0: 0})) as deliveries:
            first = await anext(deliveries)
            assert (first.kind, body(first)) == ("stall", {"behind": 140})

    run(main())


@pytest.mark.usefixtures("dense")
def test_the_last_events_are_found_behind_a_long_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap is not read, so it does not count as what a page may read."""
    monkeypatch.setattr(stream_module, "SCAN_EVENTS_MAX", 100)

    async def main() -> None:
        log = FakeLog()
        log.write(0, *range(5))
        log.skip(0, 10_000)
        log.write(1, 5, at_s=1)
        log.skip(1, 10_000)
        log.write(1, 6, at_s=2)
        answer = json.loads((await channel(log).last(4)).body)
        assert [event["n"] for event in answer["events"]] == [3, 4, 5, 6]
        assert log.reads < 40

    run(main())


def test_a_slow_follower_loses_its_place_on_the_tail_and_misses_nothing() -> None:
    """A follower that the ring has left behind reads the log by itself until it meets the tail again."""

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
    """Damage is raised to every follower; one that comes later, when it is repaired, is served."""

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        followers = [source.follow(None) for _ in range(3)]
        for follower in followers:
            await anext(follower)
        log.error = Damaged("bad bytes")
        log.write(0, 1)
        source.wake()
        for follower in followers:
            with pytest.raises(Damaged):
                await anext(follower)
        log.error = None
        async with following(source, "earliest") as deliveries:
            assert numbers(await anext(deliveries)) == [1]

    run(main())


def test_the_tail_works_only_while_someone_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without followers the log is not read, and nothing is held in memory."""
    monkeypatch.setattr(tail_module, "LOOK_S", 0.001)

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
        cursor, received = start, list[int]()
        while len(received) < total:
            async with following(source, cursor) as deliveries:
                for _ in range(chance.randrange(1, 6)):
                    delivery = await anext(deliveries)
                    cursor = delivery.cursor
                    received += numbers(delivery) if delivery.kind == "change" else []
                    if chance.random() < 0.2:
                        await asyncio.sleep(chance.random() * 0.01)
        for partition in range(3):
            own = [number for number in received if number % 3 == partition]
            assert own == list(range(partition, total, 3))

    async def writer(log: FakeLog, source: StreamChannel, total: int) -> None:
        written = dict.fromkeys(range(3), 0)
        while sum(written.values()) < total:
            partition = chance.randrange(3)
            left = total // 3 - written[partition]
            count = min(left, chance.randrange(0, 8))
            first = written[partition]
            log.write(
                partition, *(3 * index + partition for index in range(first, first + count)), at_s=chance.random()
            )
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
