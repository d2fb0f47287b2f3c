"""The tail of a stream through many filters: each piece is looked at once for each, and what is kept is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from penstock.contracts import Delivery
from penstock.cursor import stream_cursor
from penstock.schema import event_schema
from penstock.serve.channels import tail as tail_module
from penstock.serve.channels.pieces import read_piece
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.tail import Entry, change_of
from penstock.serve.channels.threads import THREADS
from penstock.settings import Settings
from tests.serve.fakes import FakeLog, Reading, numbers, run, until

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
    """Pieces on the ring, for as long as someone follows."""
    for number in range(pieces):
        before = source._tail.next
        log.write(0, number, text="x" * 10_000)
        source.wake()
        await until(lambda before=before: source._tail.next > before)  # type: ignore[misc]


def test_filters_that_nobody_uses_any_more_cost_nothing() -> None:
    """On a stream to which nothing new comes, too: there the ring does not move on."""

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        async with aclosing(source.follow("latest")) as staying:  # type: ignore[type-var]
            await anext(staying)
            await until(lambda: source._tail.now is not None)
            await fill(source, log, 20)
            size = sum(entry.size for entry in source._tail._ring)
            for number in range(30):
                seen = source.through(f"n >= 0 OR n = {-number}", None)
                assert await first_change(seen, stream_cursor(1, {0: 0})) == [0]
            assert sum(entry.size for entry in source._tail._ring) == size

    run(main())


def test_filters_in_use_do_not_take_the_ring_over_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds its piece gone from the ring reads it from the log."""
    monkeypatch.setattr(tail_module, "RING_BYTES_MAX", 1_000_000)

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        async with aclosing(source.follow("latest")) as staying:  # type: ignore[type-var]
            await anext(staying)
            await until(lambda: source._tail.now is not None)
            await fill(source, log, 20)
            lenses = [source.through(f"n >= 0 OR n = {-number}", None) for number in range(30)]
            followers = [seen.follow(stream_cursor(1, {0: 0})) for seen in lenses]
            for each in followers:
                found = list[int]()
                while len(found) < 20:
                    delivery = await anext(each)
                    found += numbers(delivery) if delivery.kind == "change" else []
                assert found == list(range(20))
            assert sum(entry.size for entry in source._tail._ring) <= 1_000_000
            for each in followers:
                await each.aclose()  # type: ignore[attr-defined]

    run(main())


def test_those_who_come_back_at_once_with_the_same_filter_share_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Counter[Any] = Counter()
    go = threading.Event()

    def counted(generation: int, piece: Any, lens: Any) -> Any:
        if lens:
            looks[piece.start[0]] += 1
            assert go.wait(60)
        return change_of(generation, piece, lens)

    monkeypatch.setattr(tail_module, "change_of", counted)

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        async with aclosing(source.follow("latest")) as staying:  # type: ignore[type-var]
            await anext(staying)
            await until(lambda: source._tail.now is not None)
            await fill(source, log, 3)
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

    def held(generation: int, piece: Any, lens: Any) -> Any:
        if lens in costly:
            assert go.wait(60)
        return change_of(generation, piece, lens)

    monkeypatch.setattr(tail_module, "change_of", held)

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        slow = [source.asked_by("ann").through(f"n > {-number}", None) for number in range(1, 9)]
        shared = [source.asked_by(who).through("n < 100", None) for who in ("ann", "bob")]
        costly.update(each._lens for each in slow)
        streams = [each.follow("latest") for each in (*slow, *shared, source)]
        for each in streams:
            await anext(each)
        await until(lambda: source._tail.now is not None)
        first = [asyncio.create_task(_changes(each, 3)) for each in streams]
        for number in range(3):
            before = source._tail.next
            log.write(0, number)
            source.wake()
            await until(lambda before=before: source._tail.next > before)  # type: ignore[misc]
        async with asyncio.timeout(30):
            assert await asyncio.gather(*first[len(slow) :]) == [[0, 1, 2]] * 3
        assert not any(each.done() for each in first[: len(slow)])
        go.set()
        assert await asyncio.gather(*first) == [[0, 1, 2]] * len(first)
        for each in streams:
            await each.aclose()  # type: ignore[attr-defined]

    try:
        run(main())
    finally:
        go.set()


async def _changes(deliveries: AsyncIterator[Delivery], events: int) -> list[int]:
    """So many events of one who follows."""
    found = list[int]()
    while len(found) < events:
        delivery = await anext(deliveries)
        found += numbers(delivery) if delivery.kind == "change" else []
    return found


def test_a_filter_that_many_callers_use_is_looked_through_by_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose turn comes later finds it done."""
    looked = list[Any]()

    def counted(generation: int, piece: Any, lens: Any) -> Any:
        looked.append(lens)
        return change_of(generation, piece, lens)

    monkeypatch.setattr(tail_module, "change_of", counted)

    async def main() -> None:
        log = FakeLog(1)
        source = channel(log)
        followers = [source.asked_by(f"{who}").through("n < 100", None).follow("latest") for who in range(200)]
        for each in followers:
            await anext(each)
        await until(lambda: source._tail.now is not None)
        first = [asyncio.create_task(_changes(each, 1)) for each in followers]
        log.write(0, 7)
        source.wake()
        assert await asyncio.gather(*first) == [[7]] * len(followers)
        assert 1 <= len(looked) <= 2 * THREADS  # a place is free a moment before what was done in it is handed out
        for each in followers:
            await each.aclose()  # type: ignore[attr-defined]

    run(main())


def test_a_turn_ends_with_the_first_filter_that_is_done_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FakeLog(1)
    log.write(0, 5)
    lenses = [channel(log).through(f"n > {number}", None)._lens for number in range(3)]
    entry = Entry(1, read_piece(log, "x", {0: 0}, {0: 1}, events_max=10, bytes_max=10_000))
    monkeypatch.setattr(tail_module, "TURN_S", 600)
    assert len(entry.make(lenses)) == 3
    monkeypatch.setattr(tail_module, "TURN_S", 0)
    assert len(entry.make(lenses)) == 1
