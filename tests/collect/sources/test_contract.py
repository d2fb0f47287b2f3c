"""Each kind of source keeps the promises of the contract."""

from __future__ import annotations

import socket
from pathlib import Path

from penstock.collect.sources.files.folder import FolderSource
from penstock.collect.sources.files.tail import TailSource
from penstock.collect.sources.http.ndjson import ndjson
from penstock.collect.sources.http.poll import poll
from penstock.collect.sources.http.sse import sse
from penstock.collect.sources.mqtt.source import MqttSource, Tls, mqtt
from penstock.collect.sources.nats.source import NatsLogin, NatsSource
from penstock.collect.sources.udp.source import udp
from penstock.collect.sources.websocket import websocket
from penstock.core.contracts import Source
from tests.contracts.source import SourceContract
from tests.network import unlikely_port

HERE = "127.0.0.1"
URL = "https://user:hidden@feed.example:9443/live?token=hidden"
HEADERS = {"X-Key": "hidden"}


def nowhere(scheme: str) -> str:
    """Return an address on loopback at which nothing listens."""
    return f"{scheme}://{HERE}:{unlikely_port()}"


class TestFolder(SourceContract):
    KIND, ADDRESS = "folder", "in"

    def declared(self) -> Source:
        return FolderSource("in")

    def absent(self, tmp_path: Path) -> Source:
        return FolderSource(tmp_path)


class TestTail(SourceContract):
    KIND, ADDRESS = "tail", "/var/log/x"

    def declared(self) -> Source:
        return TailSource("/var/log/x")

    def absent(self, tmp_path: Path) -> Source:
        return TailSource(tmp_path / "none.log")


class TestNdjson(SourceContract):
    KIND, ADDRESS = "ndjson", "https://feed.example:9443/live"

    def declared(self) -> Source:
        return ndjson(URL, headers=HEADERS)

    def absent(self, tmp_path: Path) -> Source:
        return ndjson(nowhere("http"))


class TestPoll(SourceContract):
    KIND, ADDRESS = "poll", "https://feed.example:9443/live"

    def declared(self) -> Source:
        return poll(URL, every=60, headers=HEADERS)

    def absent(self, tmp_path: Path) -> Source:
        return poll(nowhere("http"), every=60)


class TestSse(SourceContract):
    KIND, ADDRESS = "sse", "https://feed.example:9443/live"

    def declared(self) -> Source:
        return sse(URL, headers=HEADERS)

    def absent(self, tmp_path: Path) -> Source:
        return sse(nowhere("http"))


class TestMqtt(SourceContract):
    KIND, ADDRESS = "mqtt", "mqtts://host:9883"

    def declared(self) -> Source:
        tls = Tls("ca.pem", "cert.pem", "key.pem", "hidden")
        return mqtt("mqtts://host:9883", "a/{b}", username="u", password="hidden", tls=tls)

    def absent(self, tmp_path: Path) -> Source:
        source = mqtt(nowhere("mqtt"), "a")
        assert isinstance(source, MqttSource)
        return source


class TestNats(SourceContract):
    KIND, ADDRESS = "nats", "nats://a:4222,nats://b EVENTS"

    def declared(self) -> Source:
        return NatsSource("nats://u:hidden@a:4222, nats://hidden@b", "EVENTS", login=NatsLogin("u", "hidden"))

    def absent(self, tmp_path: Path) -> Source:
        return NatsSource(nowhere("nats"), "EVENTS")


class TestUdp(SourceContract):
    KIND, ADDRESS = "udp", "udp://127.0.0.1:9999"

    def declared(self) -> Source:
        return udp(HERE, 9999)

    def absent(self, tmp_path: Path) -> Source:
        return udp(HERE, unlikely_port(socket.SOCK_DGRAM))


class TestWebSocket(SourceContract):
    KIND, ADDRESS = "websocket", "wss://feed.example:9443/live"

    def declared(self) -> Source:
        return websocket("wss://user:hidden@feed.example:9443/live?token=hidden", hello="hidden")

    def absent(self, tmp_path: Path) -> Source:
        return websocket(nowhere("ws"))
