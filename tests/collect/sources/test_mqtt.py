"""The MQTT source against a real Mosquitto."""

from __future__ import annotations

import asyncio
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from penstock.collect.sources.mqtt.source import MqttSource, Tls, mqtt
from penstock.core.contracts import SourceStatus
from penstock.core.errors import DeclarationError, SourceFailed
from penstock.core.settings import Settings
from tests.clocks import until
from tests.collect.sources.mqtt_broker import Mosquitto, mosquitto, publisher
from tests.collect.support import Rig, at_work, body, fix, in_loop, opened
from tests.memory_log import DEADLINE_S, MemoryLog

both = pytest.mark.parametrize("version", [5, 3])


def mqtt_source(broker: Mosquitto, topics: str | list[str], **options: Any) -> MqttSource:
    return mqtt(broker.url, topics, backoff_s=0.01, backoff_max_s=0.05, **options)


pulling = partial(at_work, connected=True)


async def failing(rig: Rig, source: MqttSource) -> str:
    with pytest.raises(SourceFailed) as caught:
        await asyncio.wait_for(source.run(rig.ingress.writer_for_source("feed", "raw"), SourceStatus()), DEADLINE_S)
    return caught.value.message


def stored(log: MemoryLog) -> list[bytes]:
    return [row["data"] for row in log.rows["raw"][0]]


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
@in_loop
async def test_each_message_is_one_event_in_order_with_the_fields_of_its_topic(
    tmp_path: Path, version: int, qos: int
) -> None:
    log = MemoryLog()
    with mosquitto(tmp_path) as broker, publisher(broker) as sender:
        source = mqtt_source(broker, "plant/{machine}/temperature", qos=qos, version=version, value="celsius")
        async with opened(log) as rig, pulling(rig, source) as status:
            for number in range(300):
                sender.send(f"plant/m{number % 3}/temperature", b"%d" % number, qos)
            await until(lambda: len(stored(log)) == 300)
            assert status.received == 300
        events = [msgspec.json.decode(raw) for raw in stored(log)]
        assert events == [{"celsius": number, "machine": f"m{number % 3}"} for number in range(300)]


@both
@pytest.mark.parametrize("qos", [1, 2])
@in_loop
async def test_what_is_published_while_we_are_away_comes_when_we_are_back_and_nothing_comes_twice(
    tmp_path: Path, version: int, qos: int
) -> None:
    """The client id is created by the first run, and reused by the next."""
    log = MemoryLog()
    with mosquitto(tmp_path) as broker, publisher(broker) as sender:
        source = mqtt_source(broker, "t/#", qos=qos, version=version)
        async with opened(log) as rig:
            for round_ in range(5):
                async with pulling(rig, source):
                    sender.send("t", b"here %d" % round_, qos)
                    await until(lambda: stored(log)[-1:] == [b"here %d" % round_])  # noqa: B023
                await asyncio.to_thread(sender.send, "t/away", b"away %d" % round_, qos)
                await asyncio.to_thread(sender.flush)
            async with pulling(rig, source):
                await until(lambda: len(stored(log)) >= 10)
        assert stored(log) == [word + b" %d" % round_ for round_ in range(5) for word in (b"here", b"away")]
        assert len({line.split(" as ")[1] for line in broker.seen().splitlines() if " as penstock-" in line}) == 1


@both
@in_loop
async def test_the_session_outlives_a_restart_of_the_broker(tmp_path: Path, version: int) -> None:
    log = MemoryLog()
    with mosquitto(tmp_path) as broker, publisher(broker) as sender:
        async with opened(log) as rig, pulling(rig, mqtt_source(broker, "t", qos=2, version=version)) as status:
            for round_ in range(3):
                sender.send("t", b"%d" % round_, 2)
                await until(lambda: len(stored(log)) == round_ + 1)  # noqa: B023
                await asyncio.to_thread(broker.stop)
                await until(lambda: status.state == "waiting")
                assert status.error
                await asyncio.to_thread(broker.start)
            await asyncio.to_thread(sender.flush)
            await until(lambda: status.state == "connected")
        assert stored(log) == [b"0", b"1", b"2"]


@both
@in_loop
async def test_a_topic_that_is_no_longer_declared_is_given_up(tmp_path: Path, version: int) -> None:
    log = MemoryLog()
    with mosquitto(tmp_path) as broker, publisher(broker) as sender:
        async with opened(log) as rig:
            async with pulling(rig, mqtt_source(broker, ["old", "kept/{x}"], version=version)):
                pass
            sender.send("old", b"queued for what nobody wants any more", 1)
            await asyncio.to_thread(sender.flush)
            async with pulling(rig, mqtt_source(broker, ["kept/{x}", "new"], version=version)):
                for topic in ("old", "kept/1", "new"):
                    sender.send(topic, b"{}", 1)
                await until(lambda: len(stored(log)) == 2)
            assert stored(log) == [b'{"x":"1"}', b"{}"]
            assert broker.seen().count("Received UNSUBSCRIBE from") == 1


@both
@in_loop
async def test_a_retained_message_is_taken_once_or_not_at_all(tmp_path: Path, version: int) -> None:
    log = MemoryLog()
    with mosquitto(tmp_path) as broker, publisher(broker) as sender:
        sender.send("t/state", b"retained", 1, retain=True)
        await asyncio.to_thread(sender.flush)
        async with opened(log) as rig:
            for _ in range(3):
                async with pulling(rig, mqtt_source(broker, "t/#", version=version)):
                    await until(lambda: len(stored(log)) >= 1)
            assert stored(log) == [b"retained"]
            async with pulling(
                rig, mqtt_source(broker, "+/state", version=version, client_id="b", qos=2, retained=False)
            ):
                sender.send("t/state", b"changed", 2, retain=True)
                await until(lambda: stored(log)[-1] == b"changed")
            assert stored(log) == [b"retained", b"changed"]


@both
@in_loop
async def test_copies_of_qos_1_are_left_out_by_the_id_of_their_event(tmp_path: Path, version: int) -> None:
    log = MemoryLog()
    with mosquitto(tmp_path) as broker, publisher(broker) as sender:
        async with opened(log) as rig, pulling(rig, mqtt_source(broker, "fixes/{vehicle}", version=version), "fixes"):
            sender.send("fixes/v1", body(fix(1)), 1)
            sender.send("fixes/v1", body(fix(1)), 1)
            sender.send("fixes/v2", b"not JSON", 1)
            sender.send("fixes/v3", body(fix(2, "overruled")), 1)
            await until(lambda: len(log.events("fixes")) == 2 and len(log.events("fixes.rejected")) == 1)
            assert [row["vehicle"] for row in log.events("fixes")] == ["v1", "v3"]
            assert log.events("fixes.rejected")[0]["raw"] == b"not JSON"


@both
@in_loop
async def test_an_event_over_its_bound_is_a_dead_letter_and_the_source_goes_on(tmp_path: Path, version: int) -> None:
    log = MemoryLog()
    with mosquitto(tmp_path) as broker, publisher(broker) as sender:
        source = mqtt_source(broker, "t", qos=2, version=version)
        async with opened(log, Settings(event_bytes_max=1000)) as rig, pulling(rig, source):
            sender.send("t", b"x" * 100_000, 2)
            sender.send("t", b"small", 2)
            await until(lambda: stored(log) == [b"small"])
            [letter] = log.events("raw.rejected")
            assert letter["reason"] == "The event is 100000 bytes long; the limit is 1000"


@both
@in_loop
async def test_bad_credentials_end_the_source_and_are_told_to_nobody(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, "alice", "right-word"], check=True)
    log = MemoryLog()
    with mosquitto(tmp_path, f"password_file {passwords}") as broker:
        async with opened(log) as rig:
            bad = mqtt_source(broker, "t", version=version, username="alice", password="wrong-word")
            said = await failing(rig, bad)
            assert said.startswith("the broker refused the connection: ")
            assert said.endswith("; check address, username and password")
            for text in (said, caplog.text, repr(bad), bad.address):
                assert "wrong-word" not in text
            await failing(rig, mqtt_source(broker, "t", version=version))
            good = mqtt_source(broker, "t", version=version, username="alice", password="right-word")
            async with pulling(rig, good) as status:
                assert status.state == "connected"


@in_loop
async def test_a_broker_that_gives_a_lower_qos_than_declared_ends_the_source(tmp_path: Path) -> None:
    with mosquitto(tmp_path, "allow_anonymous true", "max_qos 1") as broker:
        async with opened(MemoryLog()) as rig:
            assert "declare qos=1" in await failing(rig, mqtt_source(broker, "t", qos=2))


@both
@in_loop
async def test_tls_with_an_own_authority_and_a_certificate_of_the_client(tmp_path: Path, version: int) -> None:
    authority, log = trustme.CA(), MemoryLog()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("us@example.org", common_name="us")
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    for name, certificate in (("server", server), ("client", client)):
        (tmp_path / f"{name}.pem").write_bytes(certificate.cert_chain_pems[0].bytes())
        (tmp_path / f"{name}.key").write_bytes(certificate.private_key_pem.bytes())
    options = [f"cafile {tmp_path}/ca.pem", f"certfile {tmp_path}/server.pem", f"keyfile {tmp_path}/server.key"]
    with mosquitto(tmp_path, *options, "require_certificate true", "use_identity_as_username true") as broker:
        url = broker.url.replace("mqtt:", "mqtts:")
        tls = Tls(str(tmp_path / "ca.pem"), str(tmp_path / "client.pem"), str(tmp_path / "client.key"))
        async with opened(log) as rig:
            async with pulling(rig, mqtt(url, "t", version=version, tls=tls)) as status:
                assert status.state == "connected"
            distrusting = SourceStatus()
            source = mqtt(url, "t", version=version)
            task = asyncio.create_task(source.run(rig.ingress.writer_for_source("feed", "raw"), distrusting))
            await until(lambda: distrusting.error is not None)
            assert "certificate verify failed" in str(distrusting.error)
            task.cancel()
            await asyncio.wait([task])
            assert "cannot be used" in await failing(rig, mqtt(url, "t", tls=Tls(ca_file="/nowhere.pem")))


@in_loop
async def test_a_broker_that_is_away_is_tried_again_and_the_status_says_why(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path)
    async with opened(MemoryLog()) as rig:
        status = SourceStatus()
        task = asyncio.create_task(mqtt_source(broker, "t").run(rig.ingress.writer_for_source("feed", "raw"), status))
        await until(lambda: status.reconnects >= 3)
        assert str(status.error).startswith("could not connect: ")
        await asyncio.to_thread(broker.start)
        await until(lambda: status.state == "connected")
        task.cancel()
        await asyncio.wait([task])
    broker.stop()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://x", {}), ("mqtt://", {}), ("mqtt://x/path", {}), ("mqtt://user:secret@x", {}), ("", {}),
        ("mqtt://x", {"tls": Tls()}), ("mqtt://x", {"qos": 3}), ("mqtt://x", {"version": 4}),
        ("mqtt://x", {"receive_max": 0}), ("mqtt://x", {"client_id": ""}), ("mqtt://x", {"session_expiry_s": -1}),
        ("mqtt://x", {"version": 3, "password": "secret"}), ("mqtt://x", {"keep_alive_s": 0}),
        ("mqtt://x", {"packet_bytes_max": 10}),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_when_it_is_declared(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError) as caught:
        mqtt(url, "t", **options)
    assert "secret" not in caught.value.message


def test_one_topic_is_the_same_as_a_list_of_it() -> None:
    assert mqtt("mqtts://host:9883", "a/{b}") == mqtt("mqtts://host:9883", ["a/{b}"])
