"""The tail of a stream through many filters: each piece is filtered once for each, and its memory is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from penstock.core.contracts import Delivery
from penstock.core.cursor import stream_cursor
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.serve.channels import tail as tail_module
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.stream_reader import read_run
from penstock.serve.channels.tail import TailEntry, change_of
from penstock.serve.channels.threads import THREADS
from tests.clocks import until
from tests.serve.fakes import FakeLog, Reading, numbers, run

CALM = Settings(heartbeat_s=600, page_events=10)


def channel(log: FakeLog) -> StreamChannel:
    return StreamChannel("x", log, CALM, lambda: event_schema(Reading))


async def first_change(seen: StreamChannel, since: str) -> list[int]:
    async with aclosing(seen.follow(since)) as deliveries:  # type: ignore[type-var]
        async for delivery in deliveries:
            if delivery.kind == "change":
                return numbers(delivery)
    raise AssertionError("it ended")


async def fill(source: StreamChannel, log: FakeLog, pieces: int) -> None:
    """Put pieces on the ring, for as long as someone follows."""
    for number in range(pieces):
        before = source._tail.next
        log.write(0, number, text="x" * 10_000)
        source.wake()
        await until(lambda before=before: source._tail.next > before)  # type: ignore[misc]


@asynccontextmanager
async def filled(count: int) -> AsyncIterator[StreamChannel]:
    """A channel with so many events in its ring, and one follower that stays."""
    log = FakeLog(1)
    source = channel(log)
    async with aclosing(source.follow("latest")) as staying:  # type: ignore[type-var]
        await anext(staying)
        await until(lambda: source._tail.now is not None)
        await fill(source, log, count)
        yield source


def test_filters_that_nobody_uses_any_more_cost_nothing() -> None:
    """This includes a stream without new events: there the ring does not advance."""

    async def main() -> None:
        async with filled(20) as source:
            size = sum(entry.size for entry in source._tail._ring)
            for number in range(30):
                seen = source.through(f"n >= 0 OR n = {-number}", None)
                assert await first_change(seen, stream_cursor(1, {0: 0})) == [0]
            assert sum(entry.size for entry in source._tail._ring) == size

    run(main())


def test_filters_in_use_do_not_take_the_ring_over_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower whose piece has left the ring reads it from the log."""
    monkeypatch.setattr(tail_module, "RING_BYTES_MAX", 1_000_000)

    async def main() -> None:
        async with filled(20) as source:
            row_filters = [source.through(f"n >= 0 OR n = {-number}", None) for number in range(30)]
            followers = [seen.follow(stream_cursor(1, {0: 0})) for seen in row_filters]
            for follower in followers:
                received = list[int]()
                while len(received) < 20:
                    delivery = await anext(follower)
                    received += numbers(delivery) if delivery.kind == "change" else []
                assert received == list(range(20))
            assert sum(entry.size for entry in source._tail._ring) <= 1_000_000
            for follower in followers:
                await follower.aclose()  # type: ignore[attr-defined]

    run(main())


def test_those_who_come_back_at_once_with_the_same_filter_share_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Counter[Any] = Counter()
    go = threading.Event()

    def counted(generation: int, piece: Any, row_filter: Any) -> Any:
        if row_filter:
            looks[piece.start[0]] += 1
            assert go.wait(60)
        return change_of(generation, piece, row_filter)

    monkeypatch.setattr(tail_module, "change_of", counted)

    async def main() -> None:
        async with filled(3) as source:
            seen = source.through("n >= 0", None)
            coming = [asyncio.create_task(first_change(seen, stream_cursor(1, {0: 0}))) for _ in range(20)]
            await until(lambda: looks.total() > 0 and source.describe()["readers"] == 21)
            go.set()
            assert await asyncio.gather(*coming) == [[0]] * 20
            assert looks[0] == 1

    run(main())


def test_filters_of_one_caller_delay_neither_those_without_one_nor_the_filters_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are more of them than threads, and none ends before the others have their events."""
    costly, go = set[Any](), threading.Event()

    def held(generation: int, piece: Any, row_filter: Any) -> Any:
        if row_filter in costly:
            assert go.wait(60)
        return change_of(generation, piece, row_filter)

    monkeypatch.setattr(tail_module, "change_of", held)

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        slow = [source.asked_by("ann").through(f"n > {-number}", None) for number in range(1, 9)]
        shared = [source.asked_by(who).through("n < 100", None) for who in ("ann", "bob")]
        costly.update(channel._row_filter for channel in slow)
        streams = [channel.follow("latest") for channel in (*slow, *shared, source)]
        for stream in streams:
            await anext(stream)
        await until(lambda: source._tail.now is not None)
        first = [asyncio.create_task(_changes(stream, 3)) for stream in streams]
        for number in range(3):
            before = source._tail.next
            log.write(0, number)
            source.wake()
            await until(lambda before=before: source._tail.next > before)  # type: ignore[misc]
        async with asyncio.timeout(30):
            assert await asyncio.gather(*first[len(slow) :]) == [[0, 1, 2]] * 3
        assert not any(task.done() for task in first[: len(slow)])
        go.set()
        assert await asyncio.gather(*first) == [[0, 1, 2]] * len(first)
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]

    try:
        run(main())
    finally:
        go.set()


async def _changes(deliveries: AsyncIterator[Delivery], events: int) -> list[int]:
    """Return the next events of a follower."""
    received = list[int]()
    while len(received) < events:
        delivery = await anext(deliveries)
        received += numbers(delivery) if delivery.kind == "change" else []
    return received


def test_a_filter_that_many_callers_use_is_looked_through_by_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers whose turn comes later find it done."""
    looked = list[Any]()

    def counted(generation: int, piece: Any, row_filter: Any) -> Any:
        looked.append(row_filter)
        return change_of(generation, piece, row_filter)

    monkeypatch.setattr(tail_module, "change_of", counted)

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        followers = [source.asked_by(f"{who}").through("n < 100", None).follow("latest") for who in range(200)]
        for follower in followers:
            await anext(follower)
        await until(lambda: source._tail.now is not None)
        first = [asyncio.create_task(_changes(follower, 1)) for follower in followers]
        log.write(0, 7)
        source.wake()
        assert await asyncio.gather(*first) == [[7]] * len(followers)
        assert 1 <= len(looked) <= 2 * THREADS  # a slot is free a moment before its result is given out
        for follower in followers:
            await follower.aclose()  # type: ignore[attr-defined]

    run(main())


def test_a_turn_ends_with_the_first_filter_that_is_done_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FakeLog(1)
    log.write(0, 5)
    row_filters = [channel(log).through(f"n > {number}", None)._row_filter for number in range(3)]
    entry = TailEntry(1, read_run(log, "x", {0: 0}, {0: 1}, events_max=10, bytes_max=10_000))
    monkeypatch.setattr(tail_module, "TURN_S", 600)
    assert len(entry.make(row_filters)) == 3
    monkeypatch.setattr(tail_module, "TURN_S", 0)
    assert len(entry.make(row_filters)) == 1
