"""The source of server-sent events, against real servers: one that behaves badly, and our own."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.collect.source_buffer import SourceBuffer
from penstock.collect.sources.http.client import Paced, SourceEndpoint
from penstock.collect.sources.http.client import ServerDelays as Wishes
from penstock.collect.sources.http.sse import SseSource, sse
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus
from penstock.core.errors import DeclarationError, SourceFailed, SyncFailed
from penstock.core.settings import Settings
from penstock.serve.channels.stream import StreamChannel
from tests.clocks import until
from tests.collect.sources.origin import (
    QUICK,
    Handler,
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
from tests.serve.fakes import FakeLog, background, make_deps
from tests.serve.fakes import serving as serving_penstock

EVENTS = "text/event-stream"


def test_what_a_server_asks_for_is_waited_in_full_and_spread_out() -> None:
    asked = Wishes()
    paced = Paced(0.5, 30.0, asked=asked)
    assert paced.wait_s(3, 1.0) == 0.5, "a connection that brought something begins anew"
    asked.fruitless = 4
    assert paced.wait_s(3, 1.0) == 4.0
    asked.first_s = 2.0
    assert (paced.wait_s(0, 0.0), paced.wait_s(0, 1.0)) == (2.0, 4.0)
    asked.first_s = 1e9
    assert paced.wait_s(9, 1.0) == 60.0
    asked.first_s, asked.after_s = 0.0, 120.0
    assert paced.wait_s(0, 0.0) == 120.0


def saying(*texts: bytes, seen: list[Asked] | None = None) -> Handler:
    """A server that sends this to the first connection, and nothing to later ones."""
    left = list(texts)

    async def handler(asked: Asked, reply: Reply) -> None:
        if seen is not None:
            seen.append(asked)
        await reply.head(Content_Type=EVENTS)
        while left:
            await reply.send(left.pop(0))
        await reply.stall()

    return handler


@in_loop
async def test_each_event_is_stored_once_and_in_order_whatever_the_server_does() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    log, total = MemoryLog(), 1500
    server = Unreliable(random.Random(seed), total, lambda: 0)
    async with opened(log) as rig, serving(server) as url:
        async with pulling(rig, sse(f"{url}/sse", silence_s=0.2, **QUICK)) as status:
            await until(lambda: len(stored(log)) >= total)
        assert stored(log) == [event(number) for number in range(total)]
        assert (status.received, status.reconnects > 0) == (total, True)


@in_loop
async def test_readers_that_are_killed_leave_each_event_once(tmp_path: Path) -> None:
    await survives_kills("sse", tmp_path / "streams", 500, silence_s=0.3)


@in_loop
async def test_readers_that_are_killed_leave_each_item_of_an_array_once(tmp_path: Path) -> None:
    """This holds even if the server groups the items differently the next time."""
    await survives_kills("sse", tmp_path / "streams", 500, path="groups", silence_s=0.3, items="events")


@pytest.mark.soak
@in_loop
async def test_readers_that_are_killed_for_long_leave_each_event_once(tmp_path: Path) -> None:
    await survives_kills("sse", tmp_path / "streams", 10_000, parts=10, silence_s=0.3)


@in_loop
async def test_a_reconnect_and_a_restart_send_the_last_id() -> None:
    seen: list[Asked] = []

    async def handler(asked: Asked, reply: Reply) -> None:
        seen.append(asked)
        await reply.head(Content_Type=EVENTS)
        await reply.send(b"id: %d\ndata: e\n\nid: lost\ndata: cut" % len(seen))

    log = MemoryLog()
    async with opened(log) as rig, serving(handler) as url:
        for count in (3, 6):
            async with pulling(rig, sse(url, remember=0, **QUICK)):
                await until(lambda: len(stored(log)) >= count)  # noqa: B023
    ids = [request.headers.get("last-event-id") for request in seen]
    assert ids[:3] == [None, "1", "2"]
    assert ids == [None, *(str(number) for number in range(1, len(ids)))]


@in_loop
async def test_an_event_is_durable_with_the_id_that_stands_after_it() -> None:
    log = MemoryLog()
    async with opened(log) as rig, serving(saying(b"data: a\nid: 1\n\ndata: b\n\nid:\ndata: c\n\n")) as url:
        async with pulling(rig, sse(url, remember=0, **QUICK)):
            await until(lambda: len(stored(log)) == 3)
    assert json.loads(log.marked["raw"]["feed"]) == {"id": "", "seen": "", "skip": 0}


@in_loop
async def test_the_id_of_what_is_not_taken_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[SseSource.__module__], "NOTE_S", 0.0)
    log = MemoryLog()
    text = (
        b"event: change\nid: 1\ndata: a\n\nevent: progress\nid: 2\ndata: {}\n\nevent: change\nid: 3\ndata:\n\nid: 4\n\n"
    )
    async with opened(log) as rig, serving(saying(text)) as url, pulling(rig, sse(url, events=["change"])) as status:
        await until(lambda: '"id":"4"' in log.marked.get("raw", {}).get("feed", ""))
        assert (stored(log), status.received) == ([b"a"], 1)


@in_loop
async def test_an_event_that_is_sent_again_is_known_and_one_with_an_old_id_and_other_data_is_taken() -> None:
    text = b"id: 1\ndata: a\n\nid: 2\ndata: b\n\nid: 1\ndata: a\n\nid: 2\ndata: other\n\ndata: b\n\ndata: b\n\n"
    log = MemoryLog()
    async with opened(log) as rig, serving(saying(text)) as url, pulling(rig, sse(url)):
        await until(lambda: len(stored(log)) == 5)
        assert stored(log) == [b"a", b"b", b"other", b"b", b"b"]


@in_loop
async def test_each_item_of_an_array_is_an_event_and_the_id_counts_with_the_last() -> None:
    text = (
        b'id: 1\ndata: {"events": [{"n": 1}, {"n": 2},{"n": 3}]}\n\nid: 2\ndata: {"events": []}\n\nid: 3\ndata: {}\n\n'
    )
    log = MemoryLog()
    async with opened(log) as rig, serving(saying(text)) as url, pulling(rig, sse(url, items="events")) as status:
        await until(lambda: len(stored(log)) == 4)
        assert stored(log) == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}', b"{}"]
        assert status.received == 4


def frames(*groups: tuple[str, range]) -> bytes:
    return b"".join(
        b'id: %b\ndata: {"events": %b}\n\n' % (name.encode(), json.dumps([{"n": n} for n in numbers]).encode())
        for name, numbers in groups
    )


@pytest.mark.parametrize("cut", range(12))
@in_loop
async def test_a_group_larger_than_a_commit_is_taken_up_where_it_was_left(cut: int) -> None:
    """The reader ends after a part of it; the server then sends the same items in other groups."""
    log = MemoryLog()
    async with opened(log, Settings(request_events_max=1)) as rig:
        async with serving(saying(frames(("1", range(5)), ("2", range(5, 12)), ("3", range(12, 40))))) as url:
            async with pulling(rig, sse(url, items="events")):
                await until(lambda: len(stored(log)) > cut)
        reached = json.loads(log.marked["raw"]["feed"])["id"]
        again = [("1", range(3)), ("1b", range(3, 5)), ("1c", range(5, 7)), ("2", range(7, 12)), ("3", range(12, 40))]
        rest = [group for group in again if group[0] > reached and (reached != "1" or group[0] != "1b")]
        async with serving(saying(frames(*rest))) as url, pulling(rig, sse(url, items="events")):
            await until(lambda: len(stored(log)) >= 40)
    assert [json.loads(raw)["n"] for raw in stored(log)] == list(range(40))


@in_loop
async def test_a_stream_of_another_penstock_is_followed_over_restarts_of_both() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    theirs, log, total = FakeLog(), MemoryLog(), 2000
    settings = Settings(heartbeat_s=0.02, page_events=50, buffered_changes=4)

    async def write() -> None:
        number = 0
        while number < total:
            count = min(total - number, draw.randrange(1, 90))
            theirs.write(draw.randrange(2), *range(number, number + count), at_s=float(number))
            number += count
            await asyncio.sleep(0.002)

    async with opened(log, Settings(request_events_max=draw.choice([7, 50_000]))) as rig, background(write()):
        while len(stored(log)) < total:
            channel = StreamChannel("x", theirs, settings)
            before = len(stored(log))
            async with serving_penstock(make_deps(streams={"x": channel})) as port:
                source = sse(
                    f"http://127.0.0.1:{port}/v1/streams/x/live?since=earliest",
                    events=["change"],
                    warn=["reset", "error"],
                    items="events",
                    **QUICK,
                )
                async with pulling(rig, source):
                    await until(lambda: len(stored(log)) > before)  # noqa: B023
                    await asyncio.sleep(draw.random() * 0.1)
    assert [json.loads(raw)["n"] for raw in stored(log)] == list(range(total))


@in_loop
async def test_what_the_server_warns_of_is_logged_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    text = b"event: reset\nid: 1\ndata: {}\n\n"
    async with opened(MemoryLog()) as rig, serving(saying(text)) as url:
        async with pulling(rig, sse(url, warn=["reset"])) as status:
            await until(lambda: status.error is not None)
            assert status.error == "the server sent reset: {}"
    assert "the server sent reset" in caplog.text


@in_loop
async def test_a_wait_that_the_server_asks_for_is_kept() -> None:
    times: list[float] = []

    async def handler(asked: Asked, reply: Reply) -> None:
        times.append(asyncio.get_running_loop().time())
        await reply.head(Content_Type=EVENTS)
        await reply.send(b"retry: 150\n\ndata: x\n\n")
        await reply.end()

    async with opened(MemoryLog()) as rig, serving(handler) as url:
        async with pulling(rig, sse(url, backoff_s=0.001, backoff_max_s=1)):
            await until(lambda: len(times) == 3)
    assert all(after - before >= 0.15 for before, after in pairwise(times))


@pytest.mark.parametrize("status", [204, 301, 400, 401, 403, 404, 410])
@in_loop
async def test_an_answer_that_stays_as_it_is_ends_the_source_with_a_sentence(status: int) -> None:
    async def handler(asked: Asked, reply: Reply) -> None:
        await reply.all(status=status, Location="http://user:pass@other/?key=secret")

    error = await outcome(handler, "sse", "/feed?token=secret", headers={"Authorization": "secret"})
    assert isinstance(error, SourceFailed)
    assert str(status) in error.message
    assert "secret" not in error.message
    assert "pass" not in error.message


@in_loop
async def test_an_event_over_the_bound_ends_the_source_and_says_what_to_raise() -> None:
    error = await outcome(saying(b"data: " + b"x" * 8000), "sse", event_bytes_max=1000)
    assert isinstance(error, SourceFailed)
    assert "event_bytes_max" in error.message


@pytest.mark.parametrize("last", [b"id: a\x0cb", b"id: " + b"x" * 20_000])
@in_loop
async def test_an_id_that_could_not_be_sent_back_or_kept_ends_the_source(last: bytes) -> None:
    assert isinstance(await outcome(saying(last + b"\ndata: x\n\n"), "sse"), SourceFailed)


@in_loop
async def test_a_page_of_another_type_is_not_read_and_asked_for_again() -> None:
    async def handler(asked: Asked, reply: Reply) -> None:
        await reply.all(b"data: no event\n\n", Content_Type="text/html; charset=utf-8")

    log = MemoryLog()
    async with opened(log) as rig, serving(handler) as url, pulling(rig, sse(url, **QUICK)) as status:
        await until(lambda: status.reconnects >= 3)
        assert stored(log) == []
        assert "text/html" in str(status.error)


@in_loop
async def test_a_full_buffer_stops_the_reading_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0
    replies: list[Reply] = []

    async def handler(asked: Asked, reply: Reply) -> None:
        nonlocal sent
        replies.append(reply)
        await reply.head(Content_Type=EVENTS)
        for number in range(2000):
            await reply.send(b"id: %d\ndata: %04d%b\n\n" % (number, number, b"x" * 8000))
            sent += 1
        await reply.stall()

    log = MemoryLog()
    limits = Settings(request_events_max=10, pending_events_max=10)
    log.gate.clear()
    async with opened(log, limits) as rig, serving(handler) as url:
        source_writer = SourceBuffer("feed", rig.ingress.stream_ingress("raw"), limits)
        monkeypatch.setattr(rig.ingress, "writer_for_source", lambda *names: source_writer)
        async with pulling(rig, sse(url)) as status:
            await until(lambda: status.received >= 11 and source_writer._is_full())
            await until(lambda: replies[0].writer.transport.get_write_buffer_size() > 0 or sent == 2000)
            assert status.received <= 21  # one group at the disk, one in the buffer, one event in hand
            assert sent < 2000
            log.gate.set()
            await until(lambda: len(stored(log)) == 2000)
        assert [int(raw[:4]) for raw in stored(log)] == list(range(2000))


@in_loop
async def test_a_failed_sync_ends_the_source() -> None:
    log = MemoryLog()
    log.faults = [SyncFailed("the disk is gone")]

    async def handler(asked: Asked, reply: Reply) -> None:
        await reply.head(Content_Type=EVENTS)
        while True:
            await reply.send(b"data: x\n\n")
            await asyncio.sleep(0.001)

    async with opened(log) as rig, serving(handler) as url:
        with pytest.raises(SyncFailed):
            await asyncio.wait_for(sse(url).run(rig.ingress.writer_for_source("feed", "raw"), SourceStatus()), 60)


@pytest.mark.parametrize(
    "url", ["ws://x", "feed.example", "", "http://?x", "http://h:port/", "http://h/a b", "http://h/\nx", "http://[::"]
)
def test_what_is_no_address_is_refused_when_it_is_declared_and_not_repeated(url: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        sse(url)
    assert url == "" or url not in str(refused.value)


@pytest.mark.parametrize(
    "options", [{"headers": {"X": "hidden\r\nY: 1"}}, {"headers": {"X Y": "1"}}, {"remember": 5000}, {"silence_s": 0}]
)
def test_options_that_cannot_work_are_refused_when_they_are_declared(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError) as refused:
        sse("http://x", **options)
    assert "hidden" not in str(refused.value)


def test_the_function_and_the_class_have_the_same_defaults() -> None:
    assert sse("http://x") == SseSource(SourceEndpoint("http://x"), backoff=Backoff())
