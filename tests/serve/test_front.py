"""The front of a view and the tail of a stream: changes handed to those who wait, in one pass."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.contracts import Change, Channel, Delivery, Style
from penstock.schema import event_schema
from penstock.serve.channels import front as front_module
from penstock.serve.channels.cuts import INLINE_ROWS, Offered, cut_all
from penstock.serve.channels.lens import Lens
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.threads import THREADS
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import SLICE_BYTES, following
from penstock.serve.frames import IDS_MAX, LARGE, delivered, frame
from penstock.serve.sse import chunk, encode
from penstock.settings import Settings
from tests.serve.fakes import FakeLog, FakeView, Reading, body, numbers, run, until

CALM = Settings(heartbeat_s=600, buffered_changes=16)
LARGE_CHANGE = INLINE_ROWS + 1
"""So many rows are not looked at in the event loop."""


def channel(view: FakeView, settings: Settings = CALM) -> ViewChannel:
    return ViewChannel("x", view, settings, key=["k"])


def values(deliveries: Sequence[Delivery]) -> list[int]:
    return [row["v"] for each in deliveries for row in body(each).get("upserts", ())]


def shown_values(deliveries: Sequence[Delivery]) -> list[int]:
    """Those of a first snapshot, too."""
    first = [row["v"] for each in deliveries[:1] for row in body(each).get("rows", ())]
    return first + values(deliveries)


def events(deliveries: Sequence[Delivery]) -> list[int]:
    return [number for each in deliveries if each.kind == "change" for number in numbers(each)]


class Reader:
    """One that takes what comes, unless it does not feel like it; and then is given it."""

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


@pytest.mark.parametrize("seed", random.sample(range(10**6), 3))
def test_what_is_taken_is_not_given_again_and_what_is_refused_is_given(seed: int) -> None:
    """Whoever takes some and refuses some has everything once, in order."""

    async def main() -> None:
        source = random.Random(seed)
        view = FakeView()
        shown = channel(view, Settings(heartbeat_s=600, buffered_changes=1_000)).through("v % 3 <> 1", None)
        readers = [Reader(chance, source) for chance in (0.0, 0.3, 0.7, 0.95) for _ in range(5)]
        tasks = [asyncio.create_task(each.follow(shown)) for each in readers]
        await until(lambda: shown._shared.lenses.readers == len(readers))
        for number in range(201):
            view.put({f"{number}": number})
            for _ in range(source.randrange(3)):
                await asyncio.sleep(0)
        await until(lambda: all(values(reader.got)[-1:] == [200] for reader in readers))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for reader in readers:
            assert values(reader.got) == [number for number in range(201) if number % 3 != 1]
        assert min(sum(each.taken for each in readers), sum(each.given for each in readers)) > 500

    run(main())


@pytest.mark.parametrize("seed", random.sample(range(10**6), 3))
def test_events_of_a_stream_are_taken_or_given_and_never_both(seed: int) -> None:
    """The same for a stream, whose followers may also come late, and read up to the tail by themselves."""

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
        await until(lambda: all(events(reader.got)[-1:] == [200] for reader in readers))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for reader in readers:
            assert events(reader.got) == [number for number in range(201) if number % 3 != 1]
        assert min(sum(each.taken for each in readers), sum(each.given for each in readers)) > 0

    run(main())


def test_a_filter_that_fails_fails_for_those_who_look_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others go on."""

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        failing, fine = source.through("v > 1", None), source.through("v > 2", None)

        def broken(offered: Offered, lens: Lens, key: tuple[str, ...]) -> list[Change]:
            if lens == failing._lens:
                raise ArithmeticError("cannot be")
            return cut_all(offered, lens, key)

        monkeypatch.setattr(front_module, "cut_all", broken)
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
    costly, go = set[Lens](), threading.Event()

    def held(offered: Offered, lens: Lens, key: tuple[str, ...]) -> list[Change]:
        if lens in costly:
            assert go.wait(60)
        return cut_all(offered, lens, key)

    monkeypatch.setattr(front_module, "cut_all", held)

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        slow = [source.asked_by("ann").through(f"v > {-number}", None) for number in range(1, 9)]
        shared = [source.asked_by(who).through("v < 100", None) for who in ("ann", "bob")]
        costly.update(each._lens for each in slow)
        followers = [each.follow("latest") for each in (*slow, *shared, source)]
        for each in followers:
            await anext(each)
        first = [asyncio.create_task(_values(each, 3 * LARGE_CHANGE)) for each in followers]
        fronts = source._shared.fronts
        for number in range(3):
            view.put({f"{each}": number for each in range(LARGE_CHANGE)})
            await until(lambda: fronts._reached == view.version)
        expected = [number for number in range(3) for _ in range(LARGE_CHANGE)]
        async with asyncio.timeout(30):
            assert await asyncio.gather(*first[len(slow) :]) == [expected] * 3
        assert not any(each.done() for each in first[: len(slow)])
        go.set()
        assert await asyncio.gather(*first) == [expected] * len(first)
        for each in followers:
            await each.aclose()  # type: ignore[attr-defined]
        assert fronts._lanes == {}

    try:
        run(main())
    finally:
        go.set()


async def _values(deliveries: AsyncIterator[Delivery], count: int) -> list[int]:
    """So many values of one who follows."""
    found = list[int]()
    while len(found) < count:
        found += values([await anext(deliveries)])
    return found


def test_a_filter_that_many_callers_use_is_looked_through_by_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose turn comes later finds it done."""
    looked = list[Lens]()

    def counted(offered: Offered, lens: Lens, key: tuple[str, ...]) -> list[Change]:
        looked.append(lens)
        return cut_all(offered, lens, key)

    monkeypatch.setattr(front_module, "cut_all", counted)

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        followers = [source.asked_by(f"{who}").through("v < 100", None).follow("latest") for who in range(200)]
        for each in followers:
            await anext(each)
        first = [asyncio.create_task(_values(each, LARGE_CHANGE)) for each in followers]
        view.put({f"{each}": 1 for each in range(LARGE_CHANGE)})
        assert await asyncio.gather(*first) == [[1] * LARGE_CHANGE] * len(followers)
        assert 1 <= len(looked) <= 2 * THREADS  # a place is free a moment before what was done in it is handed out
        for each in followers:
            await each.aclose()  # type: ignore[attr-defined]

    run(main())


@pytest.mark.parametrize("seed", random.sample(range(10**6), 3))
def test_what_callers_look_at_in_turns_comes_to_each_reader_once_and_in_order(seed: int) -> None:
    """Large changes and small ones, filters that callers share, and readers that come while others are behind."""

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
            view.put({f"{number}-{each}": number for each in range(size)})
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
    """Its reader reads for itself then: what it has missed comes as one change."""
    begun, go = threading.Event(), threading.Event()

    def held(offered: Offered, lens: Lens, key: tuple[str, ...]) -> list[Change]:
        begun.set()
        assert go.wait(60)
        return cut_all(offered, lens, key)

    monkeypatch.setattr(front_module, "cut_all", held)

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        follower = source.asked_by("ann").through("v < 100", None).follow("latest")
        await anext(follower)
        arriving = asyncio.create_task(_until_value(follower, 2 * CALM.buffered_changes))
        for number in range(2 * CALM.buffered_changes + 1):
            view.put({f"{each}": number for each in range(LARGE_CHANGE)})
            await until(lambda: source._shared.fronts._reached == view.version)
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
    """The kinds of deliveries until a value has come."""
    kinds = list[str]()
    async for each in deliveries:
        kinds.append(each.kind)
        if last in values([each]):
            return kinds
    raise AssertionError("a follower does not end")


def test_changes_that_nobody_filters_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go out as they were written."""
    apart: list[int] = []

    def counted(changes: Sequence[Change]) -> Offered:
        apart.extend(change.version for change in changes)
        return Offered(changes)

    monkeypatch.setattr(front_module, "Offered", counted)

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
    """It is logged, as the mistake that it is."""

    def fails(_: Sequence[Delivery]) -> bool:
        raise ArithmeticError("cannot be")

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        async with following(source, "latest", Style(take=fails)) as one, following(source, "latest", None) as other:
            await anext(one), await anext(other)
            waits = [asyncio.ensure_future(anext(each)) for each in (one, other)]
            await asyncio.sleep(0)
            view.put({"a": 1})
            assert [values([await each]) for each in waits] == [[1], [1]]
        assert "could not take" in caplog.text

    run(main())


def test_who_does_not_see_a_change_is_not_woken_for_it() -> None:
    """A thousand changes that a filter does not show cost its readers nothing; their place moves on all the same."""

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
            found = await waiting
            assert (found.kind, values([found])) == ("change", [-1])
            assert found.cursor != first.cursor

    run(main())


def test_many_filters_share_what_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has less of it then, and its followers miss nothing."""
    monkeypatch.setattr(front_module, "KEPT_BYTES_MAX", 10_000)

    async def main() -> None:
        view = FakeView()
        source = channel(view)
        followers = [source.through(f"v > {-number}", None).follow("latest") for number in range(40)]
        for each in followers:
            await anext(each)
        for number in range(1, 13):
            view.put({f"{number}-{each}": number for each in range(10)})
        fronts = source._shared.fronts._fronts.values()
        await until(lambda: all(each.reached == view.version for each in fronts))
        assert sum(each._bytes for each in fronts) <= front_module.FILTERS_KEPT * 10_000
        for each in followers:
            found = [body(await anext(each))["upserts"][0]["v"] for _ in range(12)]
            assert found == list(range(1, 13))
            await each.aclose()  # type: ignore[attr-defined]

    run(main())


def test_a_frame_is_made_once_for_all_with_the_same_id() -> None:
    """And kept for a few ids; for one, if it is large."""
    small, large = (Delivery("change", json.dumps({"x": "y" * size}).encode(), "c") for size in (10, LARGE))
    assert delivered(small, "1") is delivered(small, "1")
    assert delivered(large, "1") is delivered(large, "1")
    assert delivered(large, "2") is not delivered(large, "2")
    for number in range(20):
        assert json.loads(delivered(small, str(number))[2:])["id"] == str(number)
    assert (len(small.made), len(large.made)) == (IDS_MAX, 1)


def test_a_chunk_is_made_once_for_all_unless_it_goes_out_in_slices() -> None:
    small, large = (Delivery("change", json.dumps({"x": "y" * size}).encode(), "c") for size in (10, SLICE_BYTES))
    made = chunk(small)
    assert made is not None
    assert made is chunk(small)
    size, _, rest = made.partition(b"\r\n")
    assert rest == b"".join(encode(small)) + b"\r\n"
    assert int(size, 16) == len(rest) - 2
    assert chunk(large) is None


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_frame_has_the_length_that_the_standard_wants(size: int) -> None:
    made = frame(bytes(size))
    head = 2 if size < 126 else 4 if size < 65_536 else 10
    assert (made[0], len(made)) == (0x81, head + size)
    assert made[1] == (size if head == 2 else 126 if head == 4 else 127)
    assert head == 2 or int.from_bytes(made[2:head], "big") == size
