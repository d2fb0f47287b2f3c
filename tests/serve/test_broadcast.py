"""The broadcasts of a view and the tail of a stream: changes are given to waiting followers, in one pass."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from penstock.core.contracts import Channel, Delivery, Style, ViewChange
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.core.tasks import cancel_all
from penstock.http.frames import IDS_MAX, LARGE, delivered, frame
from penstock.serve.channels import broadcast as front_module
from penstock.serve.channels.filter_cache import INLINE_ROWS, FilterInput, filter_changes
from penstock.serve.channels.row_filter import RowFilter
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.threads import THREADS
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import SLICE_BYTES, following
from penstock.serve.sse import chunk, encode
from tests.clocks import until
from tests.serve.fakes import FakeLog, FakeView, Reading, body, numbers, run

CALM = Settings(heartbeat_s=600, buffered_changes=16)
LARGE_CHANGE = INLINE_ROWS + 1
"""Changes with this many rows are not filtered in the event loop."""


def channel(view: FakeView, settings: Settings = CALM) -> ViewChannel:
    return ViewChannel("x", view, settings, key=["k"])


def values(deliveries: Sequence[Delivery]) -> list[int]:
    return [row["v"] for delivery in deliveries for row in body(delivery).get("upserts", ())]


def shown_values(deliveries: Sequence[Delivery]) -> list[int]:
    """Return the values shown, including those of a first snapshot."""
    first = [row["v"] for delivery in deliveries[:1] for row in body(delivery).get("rows", ())]
    return first + values(deliveries)


def events(deliveries: Sequence[Delivery]) -> list[int]:
    return [number for delivery in deliveries if delivery.kind == "change" for number in numbers(delivery)]


class Reader:
    """A reader that takes or refuses changes at random; refused ones are given to it."""

    def __init__(self, chance: float, source: random.Random) -> None:
        self.style = Style(take=self.take)
        self.got: list[Delivery] = []
        self.taken = self.given = 0
        self._chance, self._random = chance, source

    def take(self, deliveries: Sequence[Delivery]) -> bool:
        if self._random.random() >= self._chance:
            return False
        self.got += deliveries
        self.taken += len(deliveries)
        return True

    async def follow(self, source: Channel, since: str = "latest") -> None:
        async with following(source, since, self.style) as deliveries:
            async for delivery in deliveries:
                if delivery.kind != "progress":
                    self.got.append(delivery)
                    self.given += 1
                if self._random.random() < 0.2:
                    await asyncio.sleep(0)


async def require_all(
    readers: list[Reader],
    numbers_of: Callable[[list[Delivery]], list[int]],
    tasks: list[asyncio.Task[None]],
    least: int,
) -> None:
    """Wait until the readers have the last number, end their tasks, and fail unless each has every number that fits,
    and more than `least` deliveries were taken, and as many given."""
    await until(lambda: all(numbers_of(reader.got)[-1:] == [200] for reader in readers))
    await cancel_all(tasks)
    for reader in readers:
        assert numbers_of(reader.got) == [number for number in range(201) if number % 3 != 1]
    assert min(sum(reader.taken for reader in readers), sum(reader.given for reader in readers)) > least


@pytest.mark.parametrize("seed", random.sample(range(10**6), 3))
def test_what_is_taken_is_not_given_again_and_what_is_refused_is_given(seed: int) -> None:
    """A reader that takes some and refuses some has everything once, in order."""

    async def main() -> None:
        source = random.Random(seed)
        view = FakeView()
        shown = channel(view, Settings(heartbeat_s=600, buffered_changes=1_000)).through("v % 3 <> 1", None)
        readers = [Reader(chance, source) for chance in (0.0, 0.3, 0.7, 0.95) for _ in range(5)]
        tasks = [asyncio.create_task(reader.follow(shown)) for reader in readers]
        await until(lambda: shown._shared.row_filters.readers == len(readers))
        for number in range(201):
            view.put({f"{number}": number})
            for _ in range(source.randrange(3)):
                await asyncio.sleep(0)
        await require_all(readers, values, tasks, least=500)

    run(main())


@pytest.mark.parametrize("seed", random.sample(range(10**6), 3))
def test_events_of_a_stream_are_taken_or_given_and_never_both(seed: int) -> None:
    """The same holds for a stream, whose followers may also come late, and read up to the tail by themselves."""

    async def main() -> None:
        source = random.Random(seed)
        log = FakeLog(1)
        whole = StreamChannel("x", log, Settings(heartbeat_s=600), lambda: event_schema(Reading))
        shown = whole.through("n % 3 <> 1", None)
        readers = [Reader(chance, source) for chance in (0.0, 0.3, 0.7, 0.95) for _ in range(3)]
        tasks = list[asyncio.Task[None]]()
        for number in range(201):
            if number % 10 == 0 and len(tasks) < len(readers):
                tasks.append(asyncio.create_task(readers[len(tasks)].follow(shown, "earliest")))
            log.write(0, number)
            whole.wake()
            if source.random() < 0.7:
                await asyncio.sleep(0.001)
        await require_all(readers, events, tasks, least=0)

    run(main())


def test_a_filter_that_fails_fails_for_those_who_look_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other readers continue."""

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        failing, fine = source.through("v > 1", None), source.through("v > 2", None)

        def broken(offered: FilterInput, row_filter: RowFilter, key: tuple[str, ...]) -> list[ViewChange]:
            if row_filter == failing._row_filter:
                raise ArithmeticError("cannot be")
            return filter_changes(offered, row_filter, key)

        monkeypatch.setattr(front_module, "filter_changes", broken)
        async with following(failing, "latest", None) as one, following(fine, "latest", None) as other:
            await anext(one), await anext(other)
            for number in (5, 6):
                view.put({"a": number})
                assert values([await anext(other)]) == [number]
            with pytest.raises(ArithmeticError):
                await anext(one)

    run(main())


def test_filters_of_one_caller_delay_neither_those_without_one_nor_the_filters_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are more of them than threads, and none ends before the others have their changes."""
    costly, go = set[RowFilter](), threading.Event()

    def held(offered: FilterInput, row_filter: RowFilter, key: tuple[str, ...]) -> list[ViewChange]:
        if row_filter in costly:
            assert go.wait(60)
        return filter_changes(offered, row_filter, key)

    monkeypatch.setattr(front_module, "filter_changes", held)

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        slow = [source.asked_by("ann").through(f"v > {-number}", None) for number in range(1, 9)]
        shared = [source.asked_by(who).through("v < 100", None) for who in ("ann", "bob")]
        costly.update(channel._row_filter for channel in slow)
        followers = [channel.follow("latest") for channel in (*slow, *shared, source)]
        for follower in followers:
            await anext(follower)
        first = [asyncio.create_task(_values(follower, 3 * LARGE_CHANGE)) for follower in followers]
        broadcasts = source._shared.broadcasts
        for number in range(3):
            view.put({f"{key}": number for key in range(LARGE_CHANGE)})
            await until(lambda: broadcasts._end == view.version)
        expected = [number for number in range(3) for _ in range(LARGE_CHANGE)]
        async with asyncio.timeout(30):
            assert await asyncio.gather(*first[len(slow) :]) == [expected] * 3
        assert not any(task.done() for task in first[: len(slow)])
        go.set()
        assert await asyncio.gather(*first) == [expected] * len(first)
        for follower in followers:
            await follower.aclose()  # type: ignore[attr-defined]
        assert broadcasts._lanes == {}

    try:
        run(main())
    finally:
        go.set()


async def _values(deliveries: AsyncIterator[Delivery], count: int) -> list[int]:
    """Return the next values of a follower."""
    received = list[int]()
    while len(received) < count:
        received += values([await anext(deliveries)])
    return received


def test_a_filter_that_many_callers_use_is_looked_through_by_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers whose turn comes later find it done."""
    looked = list[RowFilter]()

    def counted(offered: FilterInput, row_filter: RowFilter, key: tuple[str, ...]) -> list[ViewChange]:
        looked.append(row_filter)
        return filter_changes(offered, row_filter, key)

    monkeypatch.setattr(front_module, "filter_changes", counted)

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        followers = [source.asked_by(f"{who}").through("v < 100", None).follow("latest") for who in range(200)]
        for follower in followers:
            await anext(follower)
        first = [asyncio.create_task(_values(follower, LARGE_CHANGE)) for follower in followers]
        view.put({f"{key}": 1 for key in range(LARGE_CHANGE)})
        assert await asyncio.gather(*first) == [[1] * LARGE_CHANGE] * len(followers)
        assert 1 <= len(looked) <= 2 * THREADS  # a slot is free a moment before its result is given out
        for follower in followers:
            await follower.aclose()  # type: ignore[attr-defined]

    run(main())


@pytest.mark.parametrize("seed", random.sample(range(10**6), 3))
def test_what_callers_look_at_in_turns_comes_to_each_reader_once_and_in_order(seed: int) -> None:
    """There are large changes and small ones, shared filters, and readers that come while others are behind."""

    async def main() -> None:
        source = random.Random(seed)
        view = FakeView()
        whole = channel(view, Settings(heartbeat_s=600, buffered_changes=1_000))
        filters = {f"v % {number} <> 1": number for number in (2, 3, 5)}
        tasks, chosen, readers = list[asyncio.Task[None]](), list[int](), list[Reader]()
        for number in range(201):
            if number % 10 == 0:
                where = source.choice(list(filters))
                shown = whole.asked_by(source.choice(["ann", "bob", "cid"])).through(where, None)
                readers.append(Reader(source.random(), source))
                chosen.append(filters[where])
                tasks.append(asyncio.create_task(readers[-1].follow(shown, "earliest")))
            size = source.choice([1, 1, LARGE_CHANGE])
            view.put({f"{number:03}-{key}": number for key in range(size)})
            for _ in range(source.randrange(3)):
                await asyncio.sleep(0)
        view.put({"last": 6_000})
        await until(lambda: all(shown_values(reader.got)[-1:] == [6_000] for reader in readers))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        expected = [row["v"] for change in view.changes(0, 1_000) or () for row in json.loads(change.data)["upserts"]]
        for reader, divisor in zip(readers, chosen, strict=True):
            assert shown_values(reader.got) == [number for number in expected if number % divisor != 1]

    run(main())


def test_filters_that_fall_behind_what_is_kept_are_told_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of such a filter reads by itself then: missed changes come as one change."""
    begun, go = threading.Event(), threading.Event()

    def held(offered: FilterInput, row_filter: RowFilter, key: tuple[str, ...]) -> list[ViewChange]:
        begun.set()
        assert go.wait(60)
        return filter_changes(offered, row_filter, key)

    monkeypatch.setattr(front_module, "filter_changes", held)

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        follower = source.asked_by("ann").through("v < 100", None).follow("latest")
        await anext(follower)
        arriving = asyncio.create_task(_until_value(follower, 2 * CALM.buffered_changes))
        for number in range(2 * CALM.buffered_changes + 1):
            view.put({f"{key}": number for key in range(LARGE_CHANGE)})
            await until(lambda: source._shared.broadcasts._end == view.version)
        await until(begun.is_set)
        go.set()
        kinds = await arriving
        assert "stall" in kinds
        assert kinds.count("change") < CALM.buffered_changes
        await follower.aclose()  # type: ignore[attr-defined]

    try:
        run(main())
    finally:
        go.set()


async def _until_value(deliveries: AsyncIterator[Delivery], last: int) -> list[str]:
    """Return the kinds of deliveries until a value has come."""
    kinds = list[str]()
    async for delivery in deliveries:
        kinds.append(delivery.kind)
        if last in values([delivery]):
            return kinds
    raise AssertionError("a follower does not end")


def test_changes_that_nobody_filters_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sent as they were written."""
    apart: list[int] = []

    def counted(changes: Sequence[ViewChange]) -> FilterInput:
        apart.extend(change.version for change in changes)
        return FilterInput(changes)

    monkeypatch.setattr(front_module, "FilterInput", counted)

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        async with following(source, "latest", None) as deliveries:
            await anext(deliveries)
            view.put({"a": 1})
            assert values([await anext(deliveries)]) == [1]
            assert apart == []
            async with following(source.through("v > 1", None), "latest", None) as filtered:
                await anext(filtered)
                view.put({"a": 2})
                assert values([await anext(filtered)]) == [2]
                assert apart == [2]

    run(main())


def test_one_that_fails_to_take_is_given_it_and_others_notice_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged."""

    def fails(_: Sequence[Delivery]) -> bool:
        raise ArithmeticError("cannot be")

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        async with following(source, "latest", Style(take=fails)) as one, following(source, "latest", None) as other:
            await anext(one), await anext(other)
            waits = [asyncio.ensure_future(anext(follower)) for follower in (one, other)]
            await asyncio.sleep(0)
            view.put({"a": 1})
            assert [values([await task]) for task in waits] == [[1], [1]]
        assert "callback failed" in caplog.text

    run(main())


def test_who_does_not_see_a_change_is_not_woken_for_it() -> None:
    """A thousand changes that a filter hides cost its readers nothing; their position advances all the same."""

    async def main() -> None:
        view = FakeView()
        source = channel(view).through("v < 0", None)
        async with following(source, "latest", None) as deliveries:
            first = await anext(deliveries)
            waiting = asyncio.ensure_future(anext(deliveries))
            for number in range(1_000):
                view.put({"a": number})
                await asyncio.sleep(0)
            assert not waiting.done()
            view.put({"b": -1})
            delivery = await waiting
            assert (delivery.kind, values([delivery])) == ("change", [-1])
            assert delivery.cursor != first.cursor

    run(main())


def test_many_filters_share_what_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps less then, and its followers miss nothing."""
    monkeypatch.setattr(front_module, "KEPT_BYTES_MAX", 10_000)

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        followers = [source.through(f"v > {-number}", None).follow("latest") for number in range(40)]
        for follower in followers:
            await anext(follower)
        for number in range(1, 13):
            view.put({f"{number}-{key}": number for key in range(10)})
        broadcasts = source._shared.broadcasts._broadcasts.values()
        await until(lambda: all(broadcast.end == view.version for broadcast in broadcasts))
        assert sum(broadcast._bytes for broadcast in broadcasts) <= front_module.FILTERS_KEPT * 10_000
        for follower in followers:
            numbers = [body(await anext(follower))["upserts"][0]["v"] for _ in range(12)]
            assert numbers == list(range(1, 13))
            await follower.aclose()  # type: ignore[attr-defined]

    run(main())


def test_a_frame_is_made_once_for_all_with_the_same_id() -> None:
    """Frames are cached for a few ids; large ones for one id."""
    small, large = (Delivery("change", json.dumps({"x": "y" * size}).encode(), "c") for size in (10, LARGE))
    assert delivered(small, "1") is delivered(small, "1")
    assert delivered(large, "1") is delivered(large, "1")
    assert delivered(large, "2") is not delivered(large, "2")
    for number in range(20):
        assert json.loads(delivered(small, str(number))[2:])["id"] == str(number)
    assert (len(small.encodings), len(large.encodings)) == (IDS_MAX, 1)


def test_a_chunk_is_made_once_for_all_unless_it_goes_out_in_slices() -> None:
    small, large = (Delivery("change", json.dumps({"x": "y" * size}).encode(), "c") for size in (10, SLICE_BYTES))
    data = chunk(small)
    assert data is not None
    assert data is chunk(small)
    size, _, rest = data.partition(b"\r\n")
    assert rest == b"".join(encode(small)) + b"\r\n"
    assert int(size, 16) == len(rest) - 2
    assert chunk(large) is None


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_frame_has_the_length_that_the_standard_wants(size: int) -> None:
    data = frame(bytes(size))
    head = 2 if size < 126 else 4 if size < 65_536 else 10
    assert (data[0], len(data)) == (0x81, head + size)
    assert data[1] == (size if head == 2 else 126 if head == 4 else 127)
    assert head == 2 or int.from_bytes(data[2:head], "big") == size
