"""Guarantees of every transport: a client that resumes with its cursor gets the next change, no gap, no repeat; one
whose position is gone gets a reset; and a filter shows the same on all of them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.contracts import Channel
from penstock.core.cursor import stream_cursor, view_cursor
from penstock.core.schema import Event, Record, event_schema
from penstock.core.settings import Settings
from penstock.serve.channels.feed import FeedChannel
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from tests.serve.clients import SILENCE, TRANSPORTS, Received, said
from tests.serve.fakes import FakeLog, FakeView, Reading, background, make_deps, run, serving

LIVELY = Settings(heartbeat_s=0.05, page_events=6, buffered_changes=8)
TOTAL = 200
DELIVERIES = dict.fromkeys(TRANSPORTS, 1) | {"webhook": 4}
"""Registering a webhook takes several commits: it stays a little longer."""


@pytest.mark.parametrize("seed", random.sample(range(10**6), 2))
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stream_is_resumed_at_every_position(transport: str, seed: int) -> None:
    """Two clients repeatedly leave after a random number of deliveries, while events are written."""
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def write(log: FakeLog, source: StreamChannel) -> None:
        number = 0
        while number < TOTAL:
            count = min(TOTAL - number, chance.randrange(1, 6))
            log.write(chance.randrange(2), *range(number, number + count), at_s=number)
            log.tick(chance.randrange(2), at_s=number)
            source.wake()
            number += count
            await asyncio.sleep(chance.random() * 0.01)

    async def read(port: int, cursor: str) -> list[int]:
        numbers: list[int] = []
        while len(numbers) < TOTAL:
            async with TRANSPORTS[transport](port, "stream", cursor) as deliveries:
                for _ in range(chance.randrange(1, 8)):
                    received = await anext(deliveries)
                    cursor = received.cursor
                    assert received.kind in ("change", "progress", SILENCE)
                    numbers += [event["n"] for event in received.data.get("events", ())]
        return numbers

    async def main() -> None:
        log = FakeLog()
        source = StreamChannel("x", log, LIVELY)
        async with serving(make_deps(streams={"x": source}, settings=LIVELY)) as port:
            async with background(write(log, source)):
                results = await asyncio.gather(read(port, "earliest"), read(port, "earliest"))
        for numbers in results:
            assert sorted(numbers) == list(range(TOTAL))

    run(main())


@pytest.mark.parametrize("seed", random.sample(range(10**6), 2))
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_view_is_resumed_at_every_position(transport: str, seed: int) -> None:
    """A client that leaves and resumes at random sees each value of a counter once, and ends with the view's rows."""
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def write(view: FakeView) -> None:
        for number in range(1, TOTAL + 1):
            view.put({f"{number:06}": number})
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.01)

    async def main() -> None:
        view = FakeView()
        source = ViewChannel("x", view, Settings(heartbeat_s=0.05), key=["k"])
        seen: list[int] = []
        cursor: str | None = None
        async with serving(make_deps(views={"x": source})) as port:
            async with background(write(view)):
                while TOTAL not in seen:
                    async with TRANSPORTS[transport](port, "view", cursor) as deliveries:
                        for _ in range(chance.randrange(1, 8) * DELIVERIES[transport]):
                            received = await anext(deliveries)
                            cursor = received.cursor
                            seen += rows_of(received.data)
        assert seen == list(range(1, TOTAL + 1))

    def rows_of(data: Any) -> list[int]:
        return [row["v"] for row in [*data.get("rows", ()), *data.get("upserts", ())]]

    run(main())


def folded(rows: dict[str, int], received: Received) -> dict[str, int]:
    """Return the rows of a view that a client has after a delivery."""
    if received.kind == "reset":
        return {}
    if received.kind == "snapshot":
        return {row["k"]: row["v"] for row in received.data["rows"]}
    if received.kind == "change":
        gone = {key["k"] for key in received.data["deletes"]}
        kept = {key: value for key, value in rows.items() if key not in gone}
        return kept | {row["k"]: row["v"] for row in received.data["upserts"]}
    return rows


async def read_in_stays(
    transport: str, port: int, count: int, stay: Callable[[], int], **filter: str
) -> list[dict[str, Any]]:
    """Read so many events of a stream, leaving after `stay()` deliveries, again and again."""
    cursor, events = "earliest", list[dict[str, Any]]()
    while len(events) < count:
        async with TRANSPORTS[transport](port, "stream", cursor, **filter) as deliveries:
            for _ in range(stay()):
                received = await anext(deliveries)
                cursor = received.cursor
                events += received.data.get("events", ())
    return events


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_filtered_stream_gives_each_event_that_fits_once(transport: str) -> None:
    """Clients leave and resume while events are written; the cursor moves on past events that they do not see."""
    chance = random.Random(7)

    async def write(log: FakeLog, source: StreamChannel) -> None:
        for number in range(TOTAL):
            log.write(chance.randrange(2), number, at_s=number, text="even" if number % 2 == 0 else "odd")
            source.wake()
            await asyncio.sleep(chance.random() * 0.005)

    async def read(port: int) -> list[Any]:
        filter = {"where": "text = 'even' AND n % 4 = 0", "select": "n * 10 AS tens"}
        return await read_in_stays(transport, port, TOTAL // 4, lambda: chance.randrange(1, 8), **filter)

    async def main() -> None:
        log = FakeLog()
        source = StreamChannel("x", log, LIVELY, lambda: event_schema(Reading))
        async with serving(make_deps(streams={"x": source}, settings=LIVELY)) as port:
            async with background(write(log, source)):
                results = await asyncio.gather(read(port), read(port))
        for events in results:
            assert sorted(event["tens"] for event in events) == list(range(0, TOTAL * 10, 40))
            assert all(set(event) == {"tens"} for event in events)

    run(main())


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_filtered_view_leads_to_exactly_the_rows_that_fit(transport: str, remembers: bool) -> None:
    """Rows begin and cease to match, while a client leaves and resumes; even if the previous rows are unknown."""
    chance = random.Random(11)

    async def write(view: FakeView) -> None:
        for _ in range(TOTAL):
            put = {str(chance.randrange(10)): chance.randrange(100) for _ in range(chance.randrange(3))}
            gone = [key for key in map(str, range(10)) if chance.random() < 0.05 and key not in put]
            view.put(put, gone)
            await asyncio.sleep(chance.random() * 0.005)
        view.put({"end": 99})

    async def main() -> None:
        view = FakeView(remembers=remembers)
        source = ViewChannel("x", view, LIVELY, key=["k"])
        rows: dict[str, int] = {}
        cursor: str | None = None
        async with serving(make_deps(views={"x": source}, settings=LIVELY)) as port:
            async with background(write(view)):
                while "end" not in rows:
                    async with TRANSPORTS[transport](port, "view", cursor, where="v >= 50") as deliveries:
                        for _ in range(chance.randrange(1, 8)):
                            received = await anext(deliveries)
                            cursor, rows = received.cursor, folded(rows, received)
        held = {key: json.loads(row)["v"] for key, row in view.rows.items()}
        assert rows == {key: value for key, value in held.items() if value >= 50}

    run(main())


class Topic(Record):
    urlkey: str | None


class Rsvp(Event, id="n"):
    n: int
    topics: list[Topic] | None


TOPICS: list[list[Topic] | None] = [
    [Topic(urlkey="sql"), Topic(urlkey="python")],
    [Topic(urlkey="sql"), Topic(urlkey=None)],
    [],
    None,
]
ABOUT_PYTHON = "exists(topics, t -> t.urlkey = 'python')"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_filter_by_the_elements_of_a_list_gives_each_event_that_fits_once(transport: str) -> None:
    """There are lists with such an element, without one, with a missing one, empty lists and null."""
    total = 80

    async def write(log: FakeLog, source: StreamChannel) -> None:
        for number in range(total):
            log.put(number % 2, Rsvp(n=number, topics=TOPICS[number // 2 % len(TOPICS)]), at_s=number)
            source.wake()
            await asyncio.sleep(0)

    async def main() -> None:
        log = FakeLog()
        source = StreamChannel("x", log, LIVELY, lambda: event_schema(Rsvp))
        async with serving(make_deps(streams={"x": source}, settings=LIVELY)) as port:
            async with background(write(log, source)):
                filter = {"where": ABOUT_PYTHON, "select": "n"}
                events = await read_in_stays(transport, port, total // len(TOPICS), lambda: 3, **filter)
        assert sorted(event["n"] for event in events) == [n for n in range(total) if n // 2 % len(TOPICS) == 0]

    run(main())


class ListView(FakeView):
    """A view whose rows have a list of texts."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("k", pa.string()), ("v", pa.list_(pa.string()))])


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_filter_by_the_elements_of_a_list_follows_rows_that_come_to_fit_and_cease_to(
    transport: str, remembers: bool
) -> None:
    lists: list[list[str | None] | None] = [["sql", "python"], ["sql"], [], None, [None, "python"], [None]]

    async def write(view: FakeView) -> None:
        for number in range(60):
            view.put({str(number % 5): lists[number % len(lists)]}, [str((number + 2) % 5)] if number % 7 == 0 else [])
            await asyncio.sleep(0)
        view.put({"end": ["python"]})

    async def main() -> None:
        view = ListView(remembers=remembers)
        source = ViewChannel("x", view, LIVELY, key=["k"])
        rows: dict[str, Any] = {}
        cursor: str | None = None
        async with serving(make_deps(views={"x": source}, settings=LIVELY)) as port:
            async with background(write(view)):
                while "end" not in rows:
                    filter = {"where": "exists(v, t -> t = 'python')"}
                    async with TRANSPORTS[transport](port, "view", cursor, **filter) as deliveries:
                        for _ in range(3):
                            received = await anext(deliveries)
                            cursor, rows = received.cursor, folded(rows, received)
        held = {key: json.loads(row)["v"] for key, row in view.rows.items()}
        assert rows == {key: value for key, value in held.items() if value and "python" in value}

    run(main())


@pytest.mark.usefixtures("dense")
@pytest.mark.parametrize("filter", [{}, {"where": "n >= 0"}])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_place_that_is_gone_is_told_and_then_comes_what_there_is(transport: str, filter: dict[str, str]) -> None:
    """The log was trimmed under a reader: it gets `reset`, and then every event that is kept."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, *range(10))
        cursor = stream_cursor(1, {0: 2})
        log.trim(0, 5)
        source = StreamChannel("x", log, LIVELY, lambda: event_schema(Reading))
        async with serving(make_deps(streams={"x": source}, settings=LIVELY)) as port:
            async with TRANSPORTS[transport](port, "stream", cursor, **filter) as deliveries:
                assert (await said(deliveries)).kind == "reset"
                numbers = list[int]()
                while len(numbers) < 5:
                    numbers += [event["n"] for event in (await anext(deliveries)).data.get("events", ())]
        assert numbers == [5, 6, 7, 8, 9]

    run(main())


SIGHTS: dict[str, Callable[[ViewChannel, str], Channel]] = {
    "rule of the operator": lambda view, shown: view.limited("k = claim('k')", {"k": shown}),
    "feed of the app": lambda view, shown: FeedChannel(view, f"k = '{shown}'", None),
}


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_who_is_shown_other_rows_than_before_is_told_and_gets_those(transport: str, sight: str) -> None:
    """A renewed token has other claims, or the app was started with another filter. Rows that are now hidden
    would stay in a copy for good, and rows that are now visible would be missing there until they change."""

    async def main() -> None:
        view = FakeView()
        view.put({"a": 1, "b": 2})
        source = ViewChannel("x", view, LIVELY, key=["k"])
        before, now = SIGHTS[sight](source, "a"), SIGHTS[sight](source, "b")
        cursor = (await before.page(None, None)).cursor
        async with serving(make_deps(views={"x": now}, settings=LIVELY)) as port:
            async with TRANSPORTS[transport](port, "view", cursor) as deliveries:
                messages = [await said(deliveries), await said(deliveries)]
            view.put({"b": 3})
            async with TRANSPORTS[transport](port, "view", messages[1].cursor) as deliveries:
                after = await said(deliveries)
        assert [message.kind for message in messages] == ["reset", "snapshot"]
        assert messages[1].data["rows"] == [{"k": "b", "v": 2}]
        assert (after.kind, after.data["upserts"]) == ("change", [{"k": "b", "v": 3}])

    run(main())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_view_that_was_made_anew_is_told_and_then_comes_its_snapshot(transport: str) -> None:
    """An earlier cursor leads to `reset` and the current rows."""

    async def main() -> None:
        view = FakeView()
        view.put({"old": 1})
        cursor = view_cursor(view.generation, view.version)
        view.remake()
        view.put({"new": 2})
        source = ViewChannel("x", view, LIVELY, key=["k"])
        async with serving(make_deps(views={"x": source}, settings=LIVELY)) as port:
            async with TRANSPORTS[transport](port, "view", cursor) as deliveries:
                kinds = [await said(deliveries), await said(deliveries)]
        assert [message.kind for message in kinds] == ["reset", "snapshot"]
        assert kinds[1].data["rows"] == [{"k": "new", "v": 2}]

    run(main())
