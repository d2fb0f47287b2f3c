"""Random schedules: in any order of events, a follower's copy equals its filter applied to the rows.

Each seed makes one schedule of changes, trims and re-creations, with several followers that are slow, reconnect,
merge, take, and use filters. After every delivery, a follower's copy must equal the visible rows up to the
cursor of that delivery.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from penstock.core.contracts import Channel, Delivery, Style
from penstock.core.cursor import StreamCursor, ViewCursor, decode, stream_cursor
from penstock.core.errors import Busy
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.serve.channels import broadcast, filter_cache, stream, tail, view
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.threads import for_follower, for_reader
from penstock.serve.channels.view import ViewChannel
from tests.clocks import until
from tests.serve.fakes import FakeLog, FakeView, Reading, run

SMALL = Settings(heartbeat_s=0.01, buffered_changes=2, page_events=2, filters_max=50)
KEYS = "abcdef"
Row = dict[str, Any]
Rows = dict[str, Row]
SIGHTS: list[tuple[str | None, str | None, Callable[[Row], Row | None]]] = [
    (None, None, lambda row: row),
    ("v > 4", None, lambda row: row if row["v"] > 4 else None),
    (None, "v > 4 AS high", lambda row: {"k": row["k"], "high": row["v"] > 4}),
    ("v < 7", "v % 2 AS odd", lambda row: {"k": row["k"], "odd": row["v"] % 2} if row["v"] < 7 else None),
    ("v > 100", None, lambda row: None),
]


class Watched(FakeView):
    """A view that keeps its rows at every version."""

    def __init__(self, kept: int, *, remembers: bool) -> None:
        super().__init__(kept, remembers=remembers)
        self.history: dict[tuple[int, int], Rows] = {(1, 0): {}}

    def put(self, upserts: Any, deletes: Sequence[str] = ()) -> None:
        super().put(upserts, deletes)
        self.history[self.generation, self.version] = {key: json.loads(row) for key, row in self.rows.items()}

    def remake(self) -> None:
        super().remake()
        self.history[self.generation, 0] = {}

    def wait(self, after: int, timeout_s: float) -> Any:
        return super().wait(after, timeout_s)


class Copy:
    """A client's copy of a view, with its checks."""

    def __init__(self, of: Watched, sight: Callable[[Row], Row | None], *, strict: bool) -> None:
        self._of, self._sight, self._strict = of, sight, strict
        self.rows: Rows = {}
        self.cursor: str | None = None
        self.started = False

    def take(self, deliveries: Sequence[Delivery]) -> bool:
        for delivery in deliveries:
            self.hear(delivery.kind, json.loads(delivery.data), delivery.cursor)
        return True

    def hear(self, kind: str, data: Any, cursor: str) -> None:
        if kind == "reset":
            self.rows, self.started = {}, False
        elif kind == "snapshot":
            self.rows, self.started = {row["k"]: row for row in data["rows"]}, True
        elif kind == "change":
            self._apply(data, cursor)
        self.cursor = cursor
        place = _place(cursor)
        if kind in ("snapshot", "change", "progress"):
            expected = self.expected(place.generation, place.version)
            assert self.rows == expected, f"{kind} at {place}: {self.rows} is not {expected}"

    def _apply(self, data: Any, cursor: str) -> None:
        for row in data["upserts"]:
            self.rows[row["k"]] = row
        for key in data["deletes"]:
            known = self.rows.pop(key["k"], None) is not None or self._came_and_went(key["k"], cursor)
            assert known or not self._strict, f"it was told of {key}, which it never saw"

    def _came_and_went(self, key: str, cursor: str) -> bool:
        """Return whether a row was visible after the last delivery and before this one: the changes may have been
        merged."""
        first, last = _place(self.cursor or cursor), _place(cursor)
        return any(key in self.expected(last.generation, version) for version in range(first.version, last.version))

    def expected(self, generation: int, version: int) -> Rows:
        rows = self._of.history[generation, version]
        return {key: seen for key, row in rows.items() if (seen := self._sight(row)) is not None}

    @property
    def is_whole(self) -> bool:
        return self.cursor is not None and self.rows == self.expected(self._of.generation, self._of.version)


def _place(cursor: str) -> ViewCursor:
    place = decode(cursor)
    assert isinstance(place, ViewCursor)
    return place


async def follow_view(channel: Channel, copy: Copy, chance: random.Random, over: asyncio.Event) -> None:
    """Read in all ways, reconnect now and then, and never lose the position."""
    while not over.is_set():
        if copy.cursor is not None and chance.random() < 0.3:
            await poll(channel, copy, chance)
            continue
        style = Style(merge=chance.random() < 0.3)
        if chance.random() < 0.5:
            style.take = lambda given: chance.random() < 0.7 and copy.take(given)
        await hear_some(channel, copy, style, chance, over)


async def poll(channel: Channel, copy: Copy, chance: random.Random) -> None:
    page = await channel.page(copy.cursor, 10, wait_s=chance.choice([0, 0.01]))
    answer = json.loads(page.body + page.end)
    if "rows" in answer:
        copy.hear("reset", {}, page.cursor)
        copy.hear("snapshot", answer, page.cursor)
        return
    for change in answer["changes"][:-1]:
        copy._apply(change, page.cursor)
    copy.hear("change", answer["changes"][-1] if answer["changes"] else {"upserts": [], "deletes": []}, page.cursor)


async def hear_some(channel: Channel, copy: Any, style: Style, chance: random.Random, over: asyncio.Event) -> None:
    """Take some deliveries of one connection, the last of which may be broken off at any point."""
    async with aclosing(channel.follow(copy.cursor, style)) as deliveries:  # type: ignore[type-var]
        for _ in range(chance.randint(1, 12)):
            try:
                async with asyncio.timeout(chance.choice([0.002, 0.05, None])):
                    delivery = await anext(deliveries)
            except TimeoutError:
                return
            copy.hear(delivery.kind, json.loads(delivery.data), delivery.cursor)
            if chance.random() < 0.2 and not over.is_set():
                await asyncio.sleep(chance.random() * 0.02)
            style.merge = style.merge if chance.random() < 0.8 else not style.merge


async def change_view(of: Watched, chance: random.Random, steps: int) -> None:
    for _ in range(steps):
        for _ in range(chance.choice([1, 1, 1, 2, 6])):
            keys = chance.sample(KEYS, chance.randint(1, 4))
            gone = [key for key in keys if key in of.rows and chance.random() < 0.3]
            of.put({key: chance.randint(0, 9) for key in keys if key not in gone}, gone)
        if chance.random() < 0.05:
            of.remake()
        await asyncio.sleep(chance.choice([0, 0, 0.001, 0.005]))


def slow_threads(monkeypatch: pytest.MonkeyPatch, chance: random.Random) -> None:
    """Run everything in slow threads, or in the event loop, at random."""
    inline = chance.choice([0, 2, 64])
    for module in (filter_cache, broadcast, view):
        monkeypatch.setattr(module, "INLINE_ROWS", inline)
    for module in (broadcast, view):
        monkeypatch.setattr(module, "CHECK_S", 0.01)
    monkeypatch.setattr(asyncio, "to_thread", _late(asyncio.to_thread, chance))
    for module in (filter_cache, stream, view):
        monkeypatch.setattr(module, "for_reader", _late(for_reader, chance))
    for module in (stream, tail):
        monkeypatch.setattr(module, "for_follower", _late(for_follower, chance))


def _late(work: Callable[..., Any], chance: random.Random) -> Callable[..., Any]:
    async def late(*given: Any, **named: Any) -> Any:
        await asyncio.sleep(chance.choice([0, 0, 0.003]))
        outcome = await work(*given, **named)
        await asyncio.sleep(chance.choice([0, 0, 0.003]))
        return outcome

    return late


@pytest.mark.parametrize("seed", range(8))
def test_copies_of_a_view_are_what_their_filters_show(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    slow_threads(monkeypatch, chance)

    async def main() -> None:
        of = Watched(chance.choice([3, 8, 1000]), remembers=chance.random() < 0.7)
        channel = ViewChannel("x", of, SMALL, key=["k"])
        over = asyncio.Event()
        copies: list[Copy] = []
        async with asyncio.TaskGroup() as tasks:
            for number in range(10):
                where, select, sight = SIGHTS[number % len(SIGHTS)]
                strict = number >= len(SIGHTS) and where is not None
                seen: Channel = channel.limited(where, {}) if strict and where else channel
                seen = seen.through(None if strict else where, select)
                copies.append(Copy(of, sight, strict=strict))
                tasks.create_task(follow_view(seen, copies[-1], random.Random(seed * 100 + number), over))
            await change_view(of, chance, 120)
            await until(lambda: all(copy.is_whole for copy in copies))
            over.set()
        assert channel.describe()["readers"] == 0

    run(main())


class WatchedLog(FakeLog):
    """A log that keeps the number and the position of every event ever written: by generation and partition."""

    def __init__(self) -> None:
        super().__init__(2)
        self.history: dict[int, dict[int, list[tuple[int, int]]]] = {1: {0: [], 1: []}}
        self._number = 0

    def grow(self, partition: int, count: int, at_s: float) -> None:
        numbers = range(self._number, self._number + count)
        self._number += count
        self.write(partition, *numbers, at_s=at_s)
        offsets = self.offsets("x", partition)[-count:]
        self.history[self.generation("x")][partition] += zip(offsets, numbers, strict=True)

    def remake(self) -> None:
        self.history[self.generation("x") + 1] = {0: [], 1: []}
        super().remake()

    def between(self, first: StreamCursor, last: StreamCursor) -> list[int]:
        """Return the events of one generation from a position to another."""
        assert first.generation == last.generation
        return sorted(
            number
            for partition, written in self.history[last.generation].items()
            for offset, number in written
            if first.offsets[partition] <= offset < last.offsets[partition]
        )


class Heard:
    """The events that a client of a stream has received since it began, or lost its position: all visible ones, once
    each."""

    def __init__(self, of: WatchedLog, sight: Callable[[int], bool], cursor: str) -> None:
        self._of, self._sight = of, sight
        self._began = _position(cursor)
        self._numbers: list[int] = []
        self.cursor = cursor

    def hear(self, kind: str, data: Any, cursor: str) -> None:
        place = _position(cursor)
        self.cursor = cursor
        if kind == "reset":
            self._began, self._numbers = place, []
        self._numbers += [event.get("n", event.get("m")) for event in data.get("events", ())]
        expected = [number for number in self._of.between(self._began, place) if self._sight(number)]
        assert sorted(self._numbers) == expected, f"{kind} at {place}: {self._numbers} is not {expected}"

    @property
    def is_whole(self) -> bool:
        place = _position(self.cursor)
        return (place.generation, place.offsets) == (self._of.generation("x"), self._of.ends("x"))


def _position(cursor: str) -> StreamCursor:
    place = decode(cursor)
    assert isinstance(place, StreamCursor)
    return place


async def follow_stream(channel: Channel, heard: Heard, chance: random.Random, over: asyncio.Event) -> None:
    while not over.is_set():
        if chance.random() < 0.5:
            await hear_some(channel, heard, Style(), chance, over)
            continue
        try:
            page = await channel.page(heard.cursor, chance.randint(1, 4), wait_s=chance.choice([0, 0.01]))
        except Busy:  # it was trimmed or recreated at each of its tries: ask again
            continue
        answer = json.loads(page.body + page.end)
        if answer.get("reset"):  # it does not say where it begins, so its content is not checked
            heard.hear("reset", {}, page.cursor)
        else:
            heard.hear("change", answer, page.cursor)


async def change_log(of: WatchedLog, channel: StreamChannel, chance: random.Random, steps: int) -> None:
    for step in range(steps):
        for _ in range(chance.choice([1, 1, 2, 5])):
            at_s = step + chance.choice([0, 0, -2])
            if chance.random() < 0.2:
                of.tick(chance.randint(0, 1), at_s)
            else:
                of.grow(chance.randint(0, 1), chance.randint(1, 5), at_s)
        if chance.random() < 0.1:
            partition = chance.randint(0, 1)
            of.trim(partition, chance.randint(of.starts("x")[partition], of.ends("x")[partition]))
        if chance.random() < 0.04:
            of.remake()
        if chance.random() < 0.7:
            channel.wake()
        await asyncio.sleep(chance.choice([0, 0, 0.001, 0.005]))


SEEN: list[tuple[str | None, str | None, Callable[[int], bool]]] = [
    (None, None, lambda n: True),
    ("n % 3 = 0", None, lambda n: n % 3 == 0),
    (None, "n AS m", lambda n: True),
    ("n > 20", "n AS m", lambda n: n > 20),
    ("n < 0", None, lambda n: False),
]


@pytest.mark.parametrize("seed", range(6))
def test_who_follows_a_stream_hears_all_that_its_filter_shows_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    slow_threads(monkeypatch, chance)
    monkeypatch.setattr(tail, "LOOK_S", 0.01)
    monkeypatch.setattr(stream, "STALL_EVENTS", chance.choice([3, 10_000]))
    monkeypatch.setattr(stream, "SCAN_EVENTS_MAX", chance.choice([3, 10_000]))

    async def main() -> None:
        log = WatchedLog()
        channel = StreamChannel("x", log, SMALL, lambda: event_schema(Reading))
        over = asyncio.Event()
        followers: list[Heard] = []
        async with asyncio.TaskGroup() as tasks:
            for number in range(10):
                where, select, sight = SEEN[number % len(SEEN)]
                asked = channel.asked_by(f"caller {number % 3}")
                seen = asked.limited(where, {}) if number >= len(SEEN) and where else asked.through(where, None)
                followers.append(Heard(log, sight, stream_cursor(1, {0: 0, 1: 0})))
                work = follow_stream(
                    seen.through(None, select), followers[-1], random.Random(seed * 100 + number), over
                )
                tasks.create_task(work)
            await change_log(log, channel, chance, 100)
            await until(lambda: all(follower.is_whole for follower in followers))
            over.set()
        assert channel.describe()["readers"] == 0

    run(main())
