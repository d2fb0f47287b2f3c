"""The source that polls, against a real server that behaves badly."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.collect.sources.http.poll import ItemSelection, PollMark, fresh, poll
from penstock.collect.sources.http.positions import MARK_LENGTH_MAX, REMEMBER_MAX, mark_of
from penstock.core.contracts import SourceStatus
from penstock.core.errors import DeclarationError, SourceFailed
from tests.clocks import until
from tests.collect.sources.origin import (
    QUICK,
    Reply,
    Unreliable,
    event,
    outcome,
    pulling,
    serving,
    stored,
    survives_kills,
)
from tests.collect.support import in_loop, opened
from tests.memory_log import MemoryLog
from tests.network import Asked

WAYS: dict[str, dict[str, Any]] = {"position": {"position": "n"}, "unique": {"unique": "n", "newest_first": True}}


class Document:
    """A server of one document with an ETag, and the requests that it received."""

    def __init__(self, body: bytes = b"", **headers: str) -> None:
        self.body = body
        self.headers = headers
        self.seen: list[Asked] = []

    async def __call__(self, asked: Asked, reply: Reply) -> None:
        self.seen.append(asked)
        tag = f'"{hash(self.body)}"'
        if asked.headers.get("if-none-match") == tag:
            return await reply.all(status=304, ETag=tag)
        return await reply.all(self.body, 200, ETag=tag, **self.headers)


@pytest.mark.parametrize("way", WAYS)
@in_loop
async def test_each_item_of_overlapping_pages_is_stored_once_and_in_order(way: str) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    log, total = MemoryLog(), 500
    async with opened(log) as rig:
        server = Unreliable(random.Random(seed), total, lambda: len(stored(log)))
        async with serving(server) as url:
            source = poll(f"{url}/poll", every=0.001, items="data.items", answer_s=0.2, **WAYS[way], **QUICK)
            async with pulling(rig, source) as status:
                await until(lambda: len(stored(log)) >= total)
    assert [json.loads(raw) for raw in stored(log)] == [json.loads(event(number)) for number in range(total)]
    assert status.received == total


@pytest.mark.parametrize("way", WAYS)
@in_loop
async def test_readers_that_are_killed_leave_each_item_once(way: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"every": 0.001, "items": "data.items", "answer_s": 0.3} | WAYS[way]
    await survives_kills("poll", tmp_path / "streams", 100, **options)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
@in_loop
async def test_readers_that_are_killed_for_long_leave_each_item_once(way: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"every": 0.001, "items": "data.items", "answer_s": 0.3} | WAYS[way]
    await survives_kills("poll", tmp_path / "streams", 3000, parts=10, **options)


@in_loop
async def test_a_document_is_an_event_each_time_it_changes_also_over_a_restart() -> None:
    log, server = MemoryLog(), Document(b'{"v": 1}')
    async with opened(log) as rig, serving(server) as url:
        for version in (1, 2):
            async with pulling(rig, poll(url, every=0.002, **QUICK)) as status:
                asked = len(server.seen)
                await until(lambda: len(server.seen) > asked + 5)  # noqa: B023
                server.body = b'{"v": %d}' % (version + 1)
                await until(lambda: len(stored(log)) == version + 1)  # noqa: B023
                assert status.state == "connected"
    assert stored(log) == [b'{"v": 1}', b'{"v": 2}', b'{"v": 3}']


@in_loop
async def test_the_date_of_a_document_is_sent_back() -> None:
    server, date = Document(b"x", Last_Modified="Thu, 01 Jan 2026 12:00:00 GMT"), "Thu, 01 Jan 2026 12:00:00 GMT"
    async with opened(MemoryLog()) as rig, serving(server) as url, pulling(rig, poll(url, every=0.002)):
        await until(lambda: len(server.seen) == 2)
    assert server.seen[0].headers.get("if-modified-since") is None
    assert server.seen[1].headers["if-modified-since"] == date


@in_loop
async def test_a_page_that_was_stored_in_part_is_asked_for_whole() -> None:
    """The ETag counts with the last item: with an earlier one, the rest would never be sent again."""
    log, server = MemoryLog(), Document(json.dumps([{"n": number} for number in range(50)]).encode())
    async with opened(log) as rig, serving(server) as url:
        marks: list[str] = []
        source_writer: Any = rig.ingress.writer_for_source("feed", "raw")
        put = source_writer.put

        async def noting(raw: bytes, mark: str) -> Any:
            marks.append(mark)
            return await put(raw, mark)

        source_writer.put = noting
        task = asyncio.create_task(poll(url, every=60, items="", position="n").run(source_writer, SourceStatus()))
        await until(lambda: len(stored(log)) == 50)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    places = list(map(json.loads, marks))
    assert [place["at"] for place in places] == [str(number) for number in range(50)]
    assert ["etag" in place for place in places] == [False] * 49 + [True]


@in_loop
async def test_the_position_is_sent_and_pages_are_asked_for_until_nothing_is_new() -> None:
    asked: list[str | None] = []

    async def handler(request: Asked, reply: Reply) -> None:
        """Give all pages one ETag, that of the data: it must not stop the paging."""
        since = request.query.get("since")
        asked.append(since)
        if "if-none-match" in request.headers and since != "6":
            return await reply.all(status=304)
        first = int(since or 0) + 1
        items = [{"id": number} for number in range(first, min(first + 3, 7))]
        return await reply.all(json.dumps({"items": items}).encode(), ETag='"all"')

    log = MemoryLog()
    async with opened(log) as rig, serving(handler) as url:
        async with pulling(rig, poll(url, every=0.001, items="items", position="id", resume="since")):
            await until(lambda: len(asked) >= 5)
    assert asked[:4] == [None, "3", "6", "6"]
    assert [json.loads(raw)["id"] for raw in stored(log)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("status", [429, 503])
@in_loop
async def test_a_server_is_left_alone_for_as_long_as_it_asks(status: int) -> None:
    times: list[float] = []

    async def handler(asked: Asked, reply: Reply) -> None:
        times.append(asyncio.get_running_loop().time())
        await reply.all(b"x", status=status if len(times) < 3 else 200, Retry_After="1")

    log = MemoryLog()
    async with opened(log) as rig, serving(handler) as url, pulling(rig, poll(url, every=60, **QUICK)):
        await until(lambda: len(stored(log)) == 1)
    assert all(after - before >= 1 for before, after in pairwise(times))


@in_loop
async def test_polls_come_at_their_pace() -> None:
    server = Document(b"x")
    async with opened(MemoryLog()) as rig, serving(server) as url:
        clock = asyncio.get_running_loop().time
        began = clock()
        async with pulling(rig, poll(url, every=0.1)):
            await until(lambda: len(server.seen) == 6)
        assert clock() - began >= 5 * 0.09


@in_loop
async def test_an_answer_that_is_too_large_or_too_slow_or_cut_is_no_event() -> None:
    async def endless(asked: Asked, reply: Reply) -> None:
        await reply.head()
        while True:
            await reply.send(b" ")
            await asyncio.sleep(0.01)

    async def cut(asked: Asked, reply: Reply) -> None:
        await reply.head(chunked=False)
        await reply.send(b'{"half": ')

    bomb = Document(gzip.compress(b"x" * 50_000_000), Content_Encoding="gzip")
    half = Document(gzip.compress(b'{"half": "x"}')[:-3], Content_Encoding="gzip")
    for handler, word in ((bomb, "body_bytes_max"), (endless, "longer than"), (cut, "cut off"), (half, "incomplete")):
        log = MemoryLog()
        async with opened(log) as rig, serving(handler) as url:
            answer_s = 0.3 if handler is endless else 60
            async with pulling(rig, poll(url, every=0.001, answer_s=answer_s, **QUICK)) as status:
                await until(lambda: status.reconnects >= 1 and status.state == "waiting")
                assert word in str(status.error)
        assert stored(log) == []


@in_loop
async def test_an_empty_answer_is_no_event_and_one_without_the_array_is_an_error_of_this_time() -> None:
    log, server = MemoryLog(), Document(b"")
    async with opened(log) as rig, serving(server) as url:
        async with pulling(rig, poll(url, every=0.001, items="data", **QUICK)) as status:
            await until(lambda: len(server.seen) >= 3)
            assert (status.state, status.reconnects) == ("connected", 0)
            server.body = b'{"data": {}}'
            await until(lambda: status.error is not None)
            assert "`data`" in str(status.error)
            server.body = b'{"data": [1, 2]}'
            await until(lambda: len(stored(log)) == 2)


@pytest.mark.parametrize("items", [b"[{}]", b'[{"n": "x"}, {"n": "y"}]', b'[{"n": 1}, {"n": 1, "m": 2}]'])
@in_loop
async def test_positions_that_could_lose_items_end_the_source(items: bytes) -> None:
    error = await outcome(Document(items), "poll", every=1, items="", position="n")
    assert isinstance(error, SourceFailed)


def numbers(*values: int) -> bytes:
    return json.dumps([{"n": value} for value in values]).encode()


def taken(choice: ItemSelection, *bodies: bytes) -> list[list[int]]:
    """Return the new items of each document in a sequence of documents."""
    place, new_numbers = PollMark(), []
    for body in bodies:
        new = fresh(body, choice, place)
        assert new is not None
        new_numbers.append([json.loads(raw)["n"] for raw, _ in new])
        place = new[-1][1] if new else place
    return new_numbers


def test_items_are_taken_in_the_order_of_their_positions() -> None:
    choice = ItemSelection("", position="n")
    assert taken(choice, numbers(3, 2, 1), numbers(2, 3), numbers(10, 9, 3)) == [[1, 2, 3], [], [9, 10]]
    assert taken(ItemSelection("", position="n", order=None), numbers(3, 1), numbers(3)) == [[3, 1], [3]]


def test_an_item_is_remembered_as_long_as_it_is_in_the_document() -> None:
    choice = ItemSelection("", unique="n", remember=3)
    pages = [numbers(0, number) for number in range(1, 50)]
    assert taken(choice, *pages) == [[0, 1], *([number] for number in range(2, 50))]
    assert taken(choice, numbers(1, 1, 2), numbers(2, 1)) == [[1, 2], []]


def test_items_without_the_field_count_by_their_whole_content() -> None:
    choice = ItemSelection("", unique="id")
    assert taken(choice, numbers(1, 2), numbers(2, 3)) == [[1, 2], [3]]


def test_a_document_with_more_items_than_can_be_remembered_is_refused() -> None:
    with pytest.raises(SourceFailed):
        taken(ItemSelection("", unique="n"), numbers(*range(REMEMBER_MAX + 1)))


def test_the_largest_mark_fits() -> None:
    items = fresh(numbers(*range(REMEMBER_MAX)), ItemSelection("", unique="n"), PollMark())
    assert items is not None
    place = PollMark("e" * 1024, "m" * 1024, None, items[-1][1].seen)
    assert len(mark_of(place)) <= MARK_LENGTH_MAX


@pytest.mark.parametrize(
    "options",
    [{"every": 0}, {"position": "a", "unique": "b"}, {"resume": "since"}, {"remember": 0, "unique": "a"}, {"order": 1}],
)
def test_options_that_cannot_work_are_refused_when_they_are_declared(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        poll("http://x", **({"every": 1.0} | options))
