"""When an answer may be sent and which messages count as copies, against a scripted broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.collect.sources.mqtt.source import MqttSource
from penstock.core.contracts import SourceStatus
from penstock.core.errors import SourceFailed, SyncFailed
from penstock.core.settings import Settings
from penstock.queue.writer import MARK_CHARS_MAX
from tests.clocks import until
from tests.collect.sources.mqtt_script import ScriptedBroker, connack, disconnect, publish, pubrel, scripted, suback
from tests.collect.support import Rig, at_work, in_loop, opened
from tests.memory_log import DEADLINE_S, MemoryLog

both = pytest.mark.parametrize("version", [5, 3])


def mqtt_source(broker: ScriptedBroker, version: int, **options: Any) -> MqttSource:
    chosen: dict[str, Any] = {"topics": ("t",), "qos": 2, "client_id": "us"}
    chosen |= {"backoff_s": 0.001, "backoff_max_s": 0.01, **options}
    return MqttSource(broker.url, version=version, close_s=0.2, **chosen)


async def failing(rig: Rig, source: MqttSource) -> tuple[SourceFailed, SourceStatus]:
    """Return the error by which a source ends."""
    status = SourceStatus()
    with pytest.raises(SourceFailed) as caught:
        await asyncio.wait_for(source.run(rig.ingress.writer_for_source("feed", "raw"), status), DEADLINE_S)
    return caught.value, status


def stored(log: MemoryLog) -> list[bytes]:
    return [row["data"] for row in log.rows["raw"][0]]


@both
@in_loop
async def test_answers_leave_once_the_event_is_durable_and_in_order(version: int) -> None:
    log = MemoryLog()
    async with opened(log) as rig, scripted(version) as broker, at_work(rig, mqtt_source(broker, version)):
        peer = await broker.peer()
        await peer.greet(session=False)
        await until(lambda: "confirmed" in log.marks("raw").get("feed", ""))
        log.gate.clear()
        peer.send(publish(version, "t", b"0"))
        peer.send(publish(version, "t", b"1", qos=2, packet_id=9))
        peer.send(publish(version, "t", b"2", qos=1, packet_id=3))
        peer.send(publish(version, "t", b"3", qos=2, packet_id=1))
        assert await peer.quiet()
        log.gate.set()
        assert [await peer.answer() for _ in range(3)] == [("PUBREC", 9), ("PUBACK", 3), ("PUBREC", 1)]
        assert stored(log) == [b"0", b"1", b"2", b"3"]


@both
@in_loop
async def test_an_id_is_given_back_once_its_release_is_durable(version: int) -> None:
    """After PUBCOMP the broker may use it for another message: that must not look like a copy, after a crash either."""
    log = MemoryLog()
    async with opened(log) as rig, scripted(version) as broker, at_work(rig, mqtt_source(broker, version)):
        peer = await broker.peer()
        await peer.greet(session=False)
        peer.send(publish(version, "t", b"one", qos=2, packet_id=5))
        assert await peer.answer() == ("PUBREC", 5)
        before = log.marks("raw")["feed"]
        log.gate.clear()
        peer.send(pubrel(5))
        assert await peer.quiet()
        assert log.marks("raw")["feed"] == before
        log.gate.set()
        assert await peer.answer() == ("PUBCOMP", 5)
        assert log.marks("raw")["feed"] != before
        peer.send(publish(version, "t", b"one", qos=2, packet_id=5))
        assert await peer.answer() == ("PUBREC", 5)
        assert stored(log) == [b"one", b"one"]


@both
@pytest.mark.parametrize("dup", [True, False])
@in_loop
async def test_a_message_under_a_taken_id_is_answered_and_not_put_again_after_a_crash_either(
    version: int, dup: bool
) -> None:
    log = MemoryLog()
    message = publish(version, "t", b"one", qos=2, packet_id=5)
    copy = publish(version, "t", b"one", qos=2, packet_id=5, dup=dup)
    async with opened(log) as rig, scripted(version) as broker:
        async with at_work(rig, mqtt_source(broker, version)):
            peer = await broker.peer()
            await peer.greet(session=False)
            peer.send(message, copy)
            assert [await peer.answer() for _ in range(2)] == [("PUBREC", 5)] * 2
            peer.cut()
            peer = await broker.peer()
            await peer.greet(session=True)
            peer.send(copy)
            assert await peer.answer() == ("PUBREC", 5)
        async with at_work(rig, mqtt_source(broker, version)):  # all that it knows is the mark, as after kill -9
            peer = await broker.peer()
            await peer.greet(session=True)
            peer.send(copy, pubrel(5), pubrel(5))
            assert [await peer.answer() for _ in range(3)] == [("PUBREC", 5), ("PUBCOMP", 5), ("PUBCOMP", 5)]
        assert stored(log) == [b"one"]


@both
@in_loop
async def test_another_message_under_a_taken_id_is_put(version: int) -> None:
    """A broker forgot the id and yet claims to have the session: the message is not a copy, so it must not be lost."""
    log = MemoryLog()
    async with opened(log) as rig, scripted(version) as broker, at_work(rig, mqtt_source(broker, version)):
        peer = await broker.peer()
        await peer.greet(session=False)
        peer.send(publish(version, "t", b"one", qos=2, packet_id=5), publish(version, "t", b"two", qos=2, packet_id=5))
        peer.send(publish(version, "t", b"two", qos=2, packet_id=5, dup=True))
        assert [await peer.answer() for _ in range(3)] == [("PUBREC", 5)] * 3
        assert stored(log) == [b"one", b"two"]


@both
@in_loop
async def test_a_broker_that_repeats_what_it_had_released_is_seen_through(version: int) -> None:
    """Mosquitto does this after two cuts. A copy is recognised unless its answer to a ping proves that it knows the id
    is free."""
    log = MemoryLog()
    message = publish(version, "t", b"one", qos=2, packet_id=500)
    again = publish(version, "t", b"one", qos=2, packet_id=500, dup=True)
    async with opened(log) as rig, scripted(version) as broker:
        async with at_work(rig, mqtt_source(broker, version)):
            peer = await broker.peer()
            await peer.greet(session=False)
            peer.send(message)
            assert await peer.answer() == ("PUBREC", 500)
            peer.mute = True
            peer.send(pubrel(500))
            assert await peer.answer() == ("PUBCOMP", 500)
            peer.cut()
        async with at_work(rig, mqtt_source(broker, version)):
            peer = await broker.peer()
            await peer.greet(session=True)
            peer.send(again, pubrel(500))
            assert [await peer.answer() for _ in range(2)] == [("PUBREC", 500), ("PUBCOMP", 500)]
            assert stored(log) == [b"one"]
            peer.send(message)
            assert await peer.answer() == ("PUBREC", 500)
            peer.send(pubrel(500))
            assert await peer.answer() == ("PUBCOMP", 500)
            assert await peer.quiet()  # it reads our ping and answers that
            peer.send(again)
            assert await peer.answer() == ("PUBREC", 500)
            assert stored(log) == [b"one", b"one", b"one"]


@both
@in_loop
async def test_if_the_broker_has_no_session_every_id_is_free_and_that_is_durable_before_anything_is_asked_for(
    version: int,
) -> None:
    log = MemoryLog()
    message = publish(version, "t", b"same", qos=2, packet_id=5)
    async with opened(log) as rig, scripted(version) as broker, at_work(rig, mqtt_source(broker, version)):
        peer = await broker.peer()
        await peer.greet(session=False)
        peer.send(message)
        assert await peer.answer() == ("PUBREC", 5)
        before = log.marks("raw")["feed"]
        log.gate.clear()
        peer.cut()
        peer = await broker.peer()
        assert (await peer.got())[0] == 0x10
        peer.send(connack(version))
        await until(lambda: rig.ingress.stream_ingress("raw").group_commit._busy)
        assert log.marks("raw")["feed"] == before
        log.gate.set()
        first, _ = await peer.got()
        assert first == 0x82
        assert log.marks("raw")["feed"] != before
        peer.send(suback(version, 1, 2), message)
        assert await peer.answer() == ("PUBREC", 5)
        assert stored(log) == [b"same", b"same"]


@both
@in_loop
async def test_what_was_put_and_is_not_yet_durable_is_not_put_again_on_the_next_connection(version: int) -> None:
    log = MemoryLog()
    message = publish(version, "t", b"one", qos=2, packet_id=5, dup=True)
    async with opened(log) as rig, scripted(version) as broker, at_work(rig, mqtt_source(broker, version)) as status:
        peer = await broker.peer()
        await peer.greet(session=False)
        await until(lambda: status.state == "connected")
        log.gate.clear()
        peer.send(message)
        await until(lambda: status.received == 1)
        peer.cut()
        peer = await broker.peer()
        await peer.greet(session=True)
        peer.send(message)
        assert await peer.quiet()
        log.gate.set()
        assert await peer.answer() == ("PUBREC", 5)
        log.gate.clear()
        peer.send(pubrel(5))
        assert await peer.quiet()
        peer.cut()
        peer = await broker.peer()
        await peer.greet(session=True)
        peer.send(pubrel(5))
        assert await peer.quiet()  # the release is known but not durable: the answer still waits
        log.gate.set()
        assert await peer.answer() == ("PUBCOMP", 5)
        assert stored(log) == [b"one"]


@both
@pytest.mark.parametrize("limits", [Settings(), Settings(request_events_max=1, pending_events_max=1)])
@in_loop
async def test_a_disk_that_takes_nothing_holds_back_answers_and_not_pings(version: int, limits: Settings) -> None:
    """This holds whether the messages have room in memory, so that reading continues, or not."""
    log = MemoryLog()
    async with opened(log, limits) as rig, scripted(version) as broker:
        async with at_work(rig, mqtt_source(broker, version, keep_alive_s=0.1)) as status:
            peer = await broker.peer()
            await peer.greet(session=False)
            await until(lambda: status.state == "connected")
            log.gate.clear()
            for packet_id in range(1, 9):
                peer.send(publish(version, "t", b"x", qos=2, packet_id=packet_id))
            answer = asyncio.create_task(peer.answer())
            await until(lambda: peer.pings >= 10)
            assert not answer.done()
            log.gate.set()
            assert await answer == ("PUBREC", 1)
            assert [await peer.answer() for _ in range(7)] == [("PUBREC", packet_id) for packet_id in range(2, 9)]
            assert (status.reconnects, len(stored(log))) == (0, 8)


@both
@in_loop
async def test_a_broker_that_is_silent_is_left(version: int) -> None:
    async with opened(MemoryLog()) as rig, scripted(version) as broker:
        async with at_work(rig, mqtt_source(broker, version, keep_alive_s=0.1)) as status:
            peer = await broker.peer()
            await peer.greet(session=False)
            await until(lambda: status.error is not None)
            assert status.error == "the broker sent nothing for 0.05 s"
            assert await broker.peer()
        async with at_work(rig, mqtt_source(broker, version, open_s=0.05)) as status:
            await until(lambda: status.error == "the broker did not respond within 0.05 s")


@both
@in_loop
async def test_a_topic_that_is_refused_is_named(version: int) -> None:
    async with opened(MemoryLog()) as rig, scripted(version) as broker:
        ending = asyncio.create_task(failing(rig, mqtt_source(broker, version, topics=("open/{x}", "closed/{x}"))))
        peer = await broker.peer()
        await peer.got()
        peer.send(connack(version))
        await peer.got()
        peer.send(suback(version, 1, 2, 0x87 if version == 5 else 0x80))
        error, status = await ending
        assert "refuses the topic 'closed/+'" in error.message
        assert (status.state, status.error) == ("failed", error.message)


@both
@in_loop
async def test_a_topic_that_is_granted_with_less_is_an_error(version: int) -> None:
    async with opened(MemoryLog()) as rig, scripted(version) as broker:
        ending = asyncio.create_task(failing(rig, mqtt_source(broker, version)))
        peer = await broker.peer()
        await peer.greet(session=False, qos=1)
        error, _ = await ending
        assert "'t' only with QoS 1: declare qos=1" in error.message


@pytest.mark.parametrize(
    ("version", "code", "words"),
    [
        (5, 0x84, "declare a different version"), (3, 1, "declare a different version"),
        (5, 0x85, "declare a different client_id"), (3, 2, "declare a different client_id"),
        (5, 0x86, "bad user name or password"), (3, 4, "bad user name or password"),
        (5, 0x87, "not authorised"), (3, 5, "not authorised"), (5, 1, "declare a different version"),
    ],
)  # fmt: skip
@in_loop
async def test_a_refusal_that_another_try_does_not_mend_ends_the_source(version: int, code: int, words: str) -> None:
    async with opened(MemoryLog()) as rig, scripted(version) as broker:
        ending = asyncio.create_task(failing(rig, mqtt_source(broker, version, username="u", password="hidden")))
        peer = await broker.peer()
        await peer.got()
        peer.send(connack(version, code))
        error, _ = await ending
        assert words in error.message
        assert "hidden" not in error.message


@pytest.mark.parametrize(
    ("version", "answer", "words"),
    [
        (5, connack(5, 0x89), "the broker refused the connection: the broker is busy"),
        (3, connack(3, 3), "the broker refused the connection: the broker is unavailable"),
        (5, b"HTTP/1.1 400 Bad Request\r\n\r\n", "malformed packet"),
        (3, publish(3, "t", b"early"), "malformed packet: a connection must begin with one ConnAck"),
        (5, connack(5) + connack(5), "malformed packet: a connection must begin with one ConnAck"),
        (5, connack(5) + disconnect(0x8E, "go"), "another client has connected with this client id ('go')"),
        (5, connack(5) + suback(5, 1, 2, 2), "malformed packet: a SubAck does not match"),
    ],
)
@in_loop
async def test_what_another_try_may_mend_is_tried_again_and_the_status_says_why(
    version: int, answer: bytes, words: str
) -> None:
    async with opened(MemoryLog()) as rig, scripted(version) as broker:
        async with at_work(rig, mqtt_source(broker, version, backoff_s=0.2, backoff_max_s=0.2)) as status:
            peer = await broker.peer()
            await peer.got()
            peer.send(answer)
            await until(lambda: status.error is not None)
            assert words in str(status.error)
            await until(lambda: status.reconnects > 0)


@both
@in_loop
async def test_a_message_over_the_bound_ends_the_source_with_its_topic_and_the_remedy(version: int) -> None:
    log = MemoryLog()
    async with opened(log) as rig, scripted(version) as broker:
        ending = asyncio.create_task(failing(rig, mqtt_source(broker, version, packet_bytes_max=2000)))
        peer = await broker.peer()
        await peer.greet(session=False)
        peer.send(publish(version, "t", b"x" * 3000, qos=1, packet_id=1))
        error, _ = await ending
        assert "bytes on 't' exceeds packet_bytes_max (2000); the broker keeps it" in error.message
        assert stored(log) == []


@both
@in_loop
async def test_a_failed_sync_ends_the_source_and_nothing_is_answered(version: int) -> None:
    log = MemoryLog()
    async with opened(log) as rig, scripted(version) as broker:
        status = SourceStatus()
        source = mqtt_source(broker, version)
        task = asyncio.create_task(source.run(rig.ingress.writer_for_source("feed", "raw"), status))
        peer = await broker.peer()
        await peer.greet(session=False)
        await until(lambda: status.state == "connected")
        log.faults = [SyncFailed("the disk is gone")]
        peer.send(publish(version, "t", b"one", qos=1, packet_id=1))
        with pytest.raises(SyncFailed):
            await asyncio.wait_for(task, DEADLINE_S)
        assert (status.state, status.error) == ("failed", "the disk is gone")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await peer.answer()


@both
@in_loop
async def test_a_shutdown_takes_no_more_but_answers_what_was_taken(version: int) -> None:
    log = MemoryLog()
    async with opened(log) as rig, scripted(version) as broker:
        status = SourceStatus()
        task = asyncio.create_task(
            mqtt_source(broker, version).run(rig.ingress.writer_for_source("feed", "raw"), status)
        )
        peer = await broker.peer()
        await peer.greet(session=False)
        await until(lambda: status.state == "connected")
        log.gate.clear()
        peer.send(publish(version, "t", b"one", qos=1, packet_id=1))
        await until(lambda: status.received == 1)
        task.cancel()
        peer.send(publish(version, "t", b"two", qos=1, packet_id=2))
        await asyncio.sleep(0)
        log.gate.set()
        assert await peer.answer() == ("PUBACK", 1)
        assert (await peer.got())[0] == 0xE0
        peer.cut()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stored(log) == [b"one"]


@both
@in_loop
async def test_a_shutdown_at_the_very_moment_of_connecting_is_a_shutdown(version: int) -> None:
    tasks: list[asyncio.Task[None]] = []

    class Impatient(SourceStatus):
        def __setattr__(self, name: str, value: Any) -> None:
            if value == "connected":
                tasks[0].cancel()
            super().__setattr__(name, value)

    async with opened(MemoryLog()) as rig, scripted(version) as broker:
        source = mqtt_source(broker, version)
        for session in (False, True):
            running = source.run(rig.ingress.writer_for_source("feed", "raw"), Impatient())
            tasks[:] = [asyncio.create_task(running)]
            peer = await broker.peer()
            await peer.greet(session=session)
            await asyncio.wait(tasks, timeout=DEADLINE_S / 2)
            assert tasks[0].cancelled()


@in_loop
async def test_more_in_flight_than_was_asked_for_is_slow_and_not_lost() -> None:
    """A broker that knows no bound: its messages use every id, and no PUBREL comes before the last."""
    log, count = MemoryLog(), 1500
    async with opened(log) as rig, scripted(3) as broker, at_work(rig, mqtt_source(broker, 3, receive_max=10)):
        peer = await broker.peer()
        await peer.greet(session=False)
        for packet_id in range(1, count + 1):
            peer.send(publish(3, "t", b"%d" % packet_id, qos=2, packet_id=packet_id))
        assert [await peer.answer() for _ in range(count)] == [
            ("PUBREC", packet_id) for packet_id in range(1, count + 1)
        ]
        for packet_id in range(1, count + 1):
            peer.send(pubrel(packet_id))
        assert [await peer.answer() for _ in range(count)] == [
            ("PUBCOMP", packet_id) for packet_id in range(1, count + 1)
        ]
        assert len(stored(log)) == count
        assert len(log.marks("raw")["feed"]) < MARK_CHARS_MAX
