"""A real Mosquitto for tests, in a separate process on a free loopback port, and a client that publishes to it."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests import packages
from tests.memory_log import DEADLINE_S
from tests.network import unlikely_port

WAIT_S = 0.01
FLUSH_S = 60.0


class Mosquitto:
    """Saves its sessions and messages in `directory` when it is stopped, and has them when it starts again."""

    def __init__(self, directory: Path, *options: str, inflight_max: int = 200) -> None:
        self.port = unlikely_port()
        self._config = directory / "mosquitto.conf"
        self._log = directory / "mosquitto.log"
        common = ["persistence true", f"persistence_location {directory}/", "max_queued_messages 0", "user root"]
        common += [f"max_inflight_messages {inflight_max}"]
        common += [f"log_dest file {self._log}", "log_type all", f"listener {self.port} 127.0.0.1"]
        self._config.write_text("\n".join([*common, *(options or ["allow_anonymous true"])]) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> Mosquitto:
        program = packages.need("mosquitto")
        self._process = subprocess.Popen([program, "-c", str(self._config)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            time.sleep(WAIT_S)
        raise AssertionError(f"mosquitto did not start:\n{self._log.read_text()}")

    def stop(self) -> None:
        """Stop it as an operator does: it saves its state."""
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(DEADLINE_S) in (0, -15)
            self._process = None

    def log_size(self) -> int:
        return self._log.stat().st_size

    def seen(self, since: int = 0) -> str:
        """Its log of packets, from that byte on."""
        with self._log.open("rb") as log:
            log.seek(since)
            return log.read().decode()

    def sent_again(self, client: str) -> int:
        """Return how often it resent a message of QoS 2 after the client had confirmed it, which the standard forbids.

        Mosquitto does that if a connection breaks while it repeats its PUBRELs: on the next one it treats their
        messages as unsent. To a client that has released the id, such a message is a new one.
        """
        confirmed: set[str] = set()
        count = 0
        for line in self.seen().splitlines():
            if match := re.search(rf"Received PUBREC from {client} \(Mid: (\d+)", line):
                confirmed.add(match[1])
            elif match := re.search(rf"Received PUBCOMP from {client} \(Mid: (\d+)", line):
                confirmed.discard(match[1])
            elif (match := re.search(rf"Sending PUBLISH to {client} \(.*, m(\d+),", line)) and match[1] in confirmed:
                confirmed.discard(match[1])
                count += 1
        return count


@contextmanager
def mosquitto(directory: Path, *options: str, inflight_max: int = 200) -> Iterator[Mosquitto]:
    """Run a Mosquitto. With a limit on messages in flight it never stops counting interrupted ones, and at last refuses
    all."""
    broker = Mosquitto(directory, *options, inflight_max=inflight_max).start()
    try:
        yield broker
    finally:
        broker.stop()


class Publisher:
    """A client that resends until the broker has the message, over restarts of the broker, and if it refuses it."""

    def __init__(self, broker: Mosquitto, name: str = "publisher") -> None:
        self._client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        self._client.reconnect_delay_set(1, 1)
        self._client.max_inflight_messages_set(50)
        expiry = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        expiry.SessionExpiryInterval = 3600
        self._client.connect("127.0.0.1", broker.port, clean_start=False, properties=expiry)
        self._client.on_publish = self._published
        self._open: dict[int, tuple[str, bytes, int, bool]] = {}
        self._answers: deque[tuple[int, bool]] = deque()  # filled by the client's thread
        self._client.loop_start()

    def send(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Send a message; while the broker is away, the client keeps it."""
        self._open[self._client.publish(topic, payload, qos, retain=retain).mid] = (topic, payload, qos, retain)
        self._hear()

    def _published(self, client: object, data: object, message: int, reason: ReasonCode, more: object) -> None:
        self._answers.append((message, reason.is_failure))

    def _hear(self) -> None:
        for _ in range(len(self._answers)):
            message, refused = self._answers.popleft()
            sent = self._open.pop(message)
            if refused:
                self.send(sent[0], sent[1], sent[2], retain=sent[3])

    def flush(self) -> None:
        """Return once the broker has everything."""
        deadline = time.monotonic() + FLUSH_S
        while self._open:
            assert time.monotonic() < deadline, f"{len(self._open)} messages are not published"
            time.sleep(WAIT_S)
            self._hear()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def publisher(broker: Mosquitto) -> Iterator[Publisher]:
    client = Publisher(broker)
    try:
        yield client
    finally:
        client.close()
