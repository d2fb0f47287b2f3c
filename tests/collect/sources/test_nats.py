"""The NATS source, against a real server: the events read from streams of each kind, and the gaps reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.collect.sources.nats import consumer, inbox
from penstock.collect.sources.nats.consumer import NatsMark
from penstock.core.settings import Settings
from tests.clocks import until
from tests.collect.sources.nats_server import (
    NatsServer,
    consumers,
    failure,
    is_empty,
    messages,
    numbers,
    publish,
    pulling,
    read,
    stored,
    talking,
    until_async,
)
from tests.collect.support import in_loop, opened
from tests.memory_log import MemoryLog

if TYPE_CHECKING:
    from nats.js import JetStreamContext

pytest.importorskip("nats")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats").running() as started:
        yield started


@in_loop
async def test_each_event_is_stored_once_and_in_order_and_a_later_run_goes_on_after_it(server: NatsServer) -> None:
    log = MemoryLog()
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e.>"])
        await publish(js, "e.a", numbers(1, 2500))
        status = await read(server.url, log, 2500)
        assert (status.received, status.reconnects, status.error) == (2500, 0, None)
        await publish(js, "e.b", numbers(2501, 2600))
        assert (await read(server.url, log, 2600)).received == 100
        assert stored(log) == numbers(1, 2600)
        assert await messages(js) == 2600


@in_loop
async def test_an_event_arrives_at_once_while_the_source_waits_for_it(server: NatsServer) -> None:
    log = MemoryLog()
    async with talking(server.url) as js, opened(log) as rig:
        await js.add_stream(name="EVENTS", subjects=["e"])
        async with pulling(rig, server.url) as status:
            await until(lambda: status.state == "connected")
            for number in range(1, 6):
                await publish(js, "e", [b"%d" % number])
                await until(lambda so_far=number: len(stored(log)) == so_far)  # type: ignore[misc]


@in_loop
async def test_a_stream_that_was_made_anew_is_read_from_its_first_event(server: NatsServer) -> None:
    log = MemoryLog()
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"])
        await publish(js, "e", numbers(1, 10))
        await read(server.url, log, 10)
        await js.delete_stream("EVENTS")
        await js.add_stream(name="EVENTS", subjects=["e"])
        await publish(js, "e", numbers(11, 15))
        await read(server.url, log, 15)
    assert stored(log) == numbers(1, 15)


@in_loop
async def test_from_now_on_means_from_the_first_connection_even_if_that_brought_no_event(server: NatsServer) -> None:
    log = MemoryLog()
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"])
        await publish(js, "e", numbers(1, 10))
        await read(server.url, log, 0, since="latest")
        await publish(js, "e", numbers(11, 15))
        await read(server.url, log, 5, since="latest")
    assert stored(log) == numbers(11, 15)


@in_loop
async def test_a_work_queue_keeps_an_event_until_it_is_durable_here(server: NatsServer) -> None:
    log = MemoryLog()
    async with talking(server.url) as js, opened(log) as rig:
        await js.add_stream(name="EVENTS", subjects=["e"], retention="workqueue")
        await publish(js, "e", numbers(1, 100))
        log.gate.clear()
        async with pulling(rig, server.url, durable="us") as status:
            await until(lambda: status.received == 100)
            assert await messages(js) == 100
            log.gate.set()
            await until_async(lambda: is_empty(js))
    assert stored(log) == numbers(1, 100)


@in_loop
async def test_what_was_taken_before_is_acknowledged_and_not_taken_again(server: NatsServer) -> None:
    log = MemoryLog()
    async with talking(server.url) as js:
        info = await js.add_stream(name="EVENTS", subjects=["e"], retention="workqueue")
        assert info.created is not None
        await publish(js, "e", numbers(1, 5))
        log.marked["raw"] = {"feed": NatsMark(info.created.isoformat(), 3).text}
        async with opened(log) as rig, pulling(rig, server.url, durable="us"):
            await until_async(lambda: is_empty(js))
    assert stored(log) == numbers(4, 5)


@in_loop
async def test_a_new_connection_waits_until_what_the_last_one_read_is_durable(server: NatsServer) -> None:
    log = MemoryLog()
    async with talking(server.url) as js, opened(log) as rig:
        await js.add_stream(name="EVENTS", subjects=["e"], retention="workqueue")
        await publish(js, "e", numbers(1, 5))
        log.gate.clear()
        async with pulling(rig, server.url, durable="us") as status:
            await until(lambda: status.received == 5)
            await js.delete_consumer("EVENTS", "us")
            await until(lambda: status.reconnects == 1)
            await publish(js, "e", numbers(6, 10))
            assert await consumers(js) == []
            log.gate.set()
            await until_async(lambda: is_empty(js))
    assert stored(log) == numbers(1, 10)


@in_loop
async def test_a_stop_acknowledges_what_it_has_settled(server: NatsServer) -> None:
    log = MemoryLog()
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"], retention="workqueue")
        await publish(js, "e", numbers(1, 50))
        async with opened(log) as rig, pulling(rig, server.url, durable="us") as status:
            log.gate.clear()
            await until(lambda: status.received == 50)
            asyncio.get_running_loop().call_later(0.05, log.gate.set)
        await until_async(lambda: is_empty(js))


@in_loop
async def test_an_interest_stream_keeps_for_us_what_comes_while_we_are_away(server: NatsServer) -> None:
    """Nothing is taken away from another reader; and events that both have are deleted."""
    log = MemoryLog()
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"], retention="interest")
        other = await js.pull_subscribe("e", durable="other", stream="EVENTS")
        await publish(js, "e", numbers(1, 5))
        for start in range(0, 25, 5):
            await read(server.url, log, start + 5, durable="us")
            await publish(js, "e", numbers(start + 6, start + 10))
            assert await consumers(js) == ["other", "us"]
        await read(server.url, log, 30, durable="us")
        assert stored(log) == numbers(1, 30)
        assert await messages(js) == 30
        for message in await other.fetch(30):
            await message.ack_sync()
        assert await messages(js) == 0


@pytest.mark.parametrize("left", [["us-keep"], ["us", "us-keep"], ["us"]])
@in_loop
async def test_a_kill_between_two_consumers_drops_nothing(server: NatsServer, left: list[str]) -> None:
    """This holds for whatever a killed predecessor has left at the server."""
    log = MemoryLog()
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"], retention="interest")
        for name in left:
            await js.add_consumer("EVENTS", name=name, durable_name=name, description=consumer.DESCRIPTION)
        await publish(js, "e", numbers(1, 20))
        await read(server.url, log, 20, durable="us")
        assert stored(log) == numbers(1, 20)
        assert await consumers(js) == ["us"]
        await until_async(lambda: is_empty(js))


@in_loop
async def test_an_event_that_is_given_again_is_not_taken_again(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "ACK_WAIT_S", 0.2)
    log = MemoryLog()
    async with talking(server.url) as js, opened(log) as rig:
        await js.add_stream(name="EVENTS", subjects=["e"], retention="workqueue")
        await publish(js, "e", numbers(1, 100))
        log.gate.clear()
        async with pulling(rig, server.url, durable="us", pending_max=10) as status:
            await until_async(lambda: _is_redelivered(js))
            assert status.received <= 10
            log.gate.set()
            await until_async(lambda: is_empty(js))
    assert stored(log) == numbers(1, 100)


async def _is_redelivered(js: JetStreamContext) -> bool:
    infos = await js.consumers_info("EVENTS")
    return bool(infos and infos[0].num_redelivered)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
@in_loop
async def test_a_stream_that_deletes_what_was_acknowledged_asks_for_a_name(server: NatsServer, retention: str) -> None:
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"], retention=retention)
    assert f"its retention is {retention}" in await failure(server.url)


@in_loop
async def test_a_work_queue_is_not_thrown_away(server: NatsServer) -> None:
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"], retention="workqueue")
        await publish(js, "e", numbers(1, 5))
        assert "would discard work" in await failure(server.url, durable="us", since="latest")
        assert await messages(js) == 5


@in_loop
async def test_a_consumer_of_somebody_else_is_left_alone(server: NatsServer) -> None:
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"])
        await js.add_consumer("EVENTS", name="theirs", durable_name="theirs")
        assert "was not created by Penstock" in await failure(server.url, durable="theirs")
        assert await consumers(js) == ["theirs"]


@in_loop
async def test_events_that_were_removed_before_they_were_read_are_counted(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    log = MemoryLog()
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"], max_msgs=10)
        await publish(js, "e", numbers(1, 5))
        await read(server.url, log, 5)
        await publish(js, "e", numbers(6, 30))
        status = await read(server.url, log, 15)
        assert stored(log) == numbers(1, 5) + numbers(21, 30)
        sentence = "15 events were removed from the stream EVENTS before they could be read"
        assert status.error == sentence
        assert sentence + " (15 of them after event 5)" in caplog.text
        assert (await read(server.url, log, 15)).error is None


@in_loop
async def test_with_a_filter_the_number_of_removed_events_is_a_bound(server: NatsServer) -> None:
    log = MemoryLog()
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e.*"], max_msgs=10)
        await publish(js, "e.a", numbers(1, 5))
        await read(server.url, log, 5, subjects=("e.a",))
        await publish(js, "e.b", numbers(100, 119))
        await publish(js, "e.a", numbers(6, 8))
        status = await read(server.url, log, 8, subjects=("e.a",))
        assert stored(log) == numbers(1, 8)
        assert str(status.error).startswith("up to 13 events were removed")


@in_loop
async def test_events_that_were_for_others_are_not_missed(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the source is connected and idle, it records how far the stream has come."""
    monkeypatch.setattr(inbox, "EXPIRES_S", 0.2)
    log = MemoryLog()
    async with talking(server.url) as js:
        info = await js.add_stream(name="EVENTS", subjects=["e.*"], max_msgs=10)
        assert info.created is not None
        await publish(js, "e.a", numbers(1, 5))
        async with opened(log) as rig, pulling(rig, server.url, subjects=("e.a",)):
            await until(lambda: len(stored(log)) == 5)
            await publish(js, "e.b", numbers(1, 30))
            await until(lambda: NatsMark.parse(log.marked["raw"]["feed"]).seen == 35)
        await publish(js, "e.b", numbers(1, 10))
        await publish(js, "e.a", numbers(6, 6))
        status = await read(server.url, log, 6, subjects=("e.a",))
        assert (status.error or "").startswith("up to 1 events")  # of the last eleven, one is gone
        assert (await read(server.url, log, 6, subjects=("e.a",))).error is None


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
@in_loop
async def test_events_that_others_have_acknowledged_are_not_missed(server: NatsServer, retention: str) -> None:
    log = MemoryLog()
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e.*"], retention=retention)
        other = await js.pull_subscribe("e.b", durable="other", stream="EVENTS")
        await publish(js, "e.a", numbers(1, 5))
        await read(server.url, log, 5 if retention == "workqueue" else 0, subjects=("e.a",), durable="us")
        await publish(js, "e.b", numbers(1, 10))
        for message in await other.fetch(10):
            await message.ack_sync()
        await publish(js, "e.a", numbers(6, 8))
        status = await read(server.url, log, 8 if retention == "workqueue" else 3, subjects=("e.a",), durable="us")
        assert status.error is None
        assert stored(log)[-3:] == numbers(6, 8)


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
@pytest.mark.parametrize("ahead", [0, 1, 5])
@in_loop
async def test_a_stream_that_lost_its_end_goes_on_with_what_was_stored_after(
    server: NatsServer, caplog: pytest.LogCaptureFixture, retention: str, ahead: int
) -> None:
    """The source has more than the stream has, and the stream has reused those numbers since, or not yet (`ahead`)."""
    log = MemoryLog()
    async with talking(server.url) as js:
        info = await js.add_stream(name="EVENTS", subjects=["e"], retention=retention)
        await js.add_consumer("EVENTS", name="us", durable_name="us", description=consumer.DESCRIPTION)
        assert info.created is not None
        await publish(js, "e", numbers(1, 5))
        fifth = (await js.get_msg("EVENTS", 5)).time
        assert fifth is not None
        mark = NatsMark(info.created.isoformat(), 6 + ahead, int(fifth.timestamp() * 1e6) * 1000 + 999)
        await publish(js, "e", numbers(6, 8))
        log.marked["raw"] = {"feed": mark.text}
        status = await read(server.url, log, 3, durable="us")
        assert status.error is None
        assert stored(log) == numbers(6, 8)
        assert "has lost its newest events" in caplog.text


@in_loop
async def test_subjects_choose_and_their_named_levels_become_fields(server: NatsServer) -> None:
    log = MemoryLog()
    subjects = ("plant.{machine}.temperature", "room.{room}.*.{sensor}")
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["plant.>", "room.>"])
        await publish(js, "plant.m1.temperature", [b'{"c":21.50}', b"22.5"])
        await publish(js, "plant.m1.pressure", [b"1013"])
        await publish(js, "room.r1.x.s7", [b"warm"])
        await read(server.url, log, 3, subjects=subjects, value="c")
    assert stored(log) == [
        b'{"c":21.50,"machine":"m1"}',
        b'{"c":22.5,"machine":"m1"}',
        b'{"c":"warm","room":"r1","sensor":"s7"}',
    ]


@in_loop
async def test_events_larger_than_all_that_may_wait_come_one_by_one(server: NatsServer) -> None:
    log = MemoryLog()
    large = [b"%d" % number + b"x" * 300_000 for number in range(12)]
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"])
        await publish(js, "e", large)
        await read(server.url, log, 12, pending_bytes_max=1000)
    assert stored(log) == large


@in_loop
async def test_events_larger_than_the_server_takes_nowadays_are_read_too(tmp_path: Path) -> None:
    log = MemoryLog()
    large = [b"%d" % number + b"x" * 300_000 for number in range(3)]
    with NatsServer(tmp_path / "nats").running() as before:
        async with talking(before.url) as js:
            await js.add_stream(name="EVENTS", subjects=["e"])
            await publish(js, "e", [*large, b"small"])
    with NatsServer(tmp_path / "nats", "max_payload: 10000").running() as after:
        status = await read(after.url, log, 4, pending_bytes_max=1000)
    assert stored(log) == [*large, b"small"]
    assert status.reconnects == 0


@in_loop
async def test_a_log_that_stands_still_stops_the_reading(server: NatsServer) -> None:
    log = MemoryLog()
    limits = Settings(request_events_max=10, pending_events_max=10)
    async with talking(server.url) as js, opened(log, limits) as rig:
        await js.add_stream(name="EVENTS", subjects=["e"])
        await publish(js, "e", numbers(1, 1000))
        log.gate.clear()
        async with pulling(rig, server.url, pending_max=20) as status:
            await until(lambda: status.received > 10)  # a full group after the one that waits, of one event or more
            info = (await js.consumers_info("EVENTS"))[0]
            assert info.delivered is not None
            assert info.delivered.stream_seq <= 20 + 10  # two groups in the source buffer, one request of ours
            log.gate.set()
            await until(lambda: len(stored(log)) == 1000)
    assert stored(log) == numbers(1, 1000)
