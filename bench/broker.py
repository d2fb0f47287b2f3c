"""A real Mosquitto broker for the benchmarks, and a client for publishing to it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.running import free_port

OPTIONS = [
    "allow_anonymous true",
    "max_queued_messages 0",
    "max_inflight_messages 200",
    "queue_qos0_messages true",
    "log_dest none",
    "user root",
]
START_S = 10.0
FLUSH_S = 120.0


def program() -> str | None:
    return shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/sbin")


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[int]:
    """Run a broker that keeps everything in memory, including messages for disconnected clients. Yield its port."""
    executable, port = program(), free_port()
    assert executable is not None
    config = folder / "mosquitto.conf"
    config.write_text("\n".join([f"listener {port} 127.0.0.1", *OPTIONS, ""]))
    with subprocess.Popen([executable, "-c", str(config)], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < deadline, "mosquitto did not start"
            time.sleep(0.01)
        try:
            yield port
        finally:
            process.terminate()


class Publisher:
    """Publishes messages, and waits until the broker has received them."""

    def __init__(self, port: int) -> None:
        from paho.mqtt import client as paho
        from paho.mqtt.enums import CallbackAPIVersion

        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.max_inflight_messages_set(100)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def send(self, topic: str, payload: bytes, qos: int) -> None:
        self._last = self._client.publish(topic, payload, qos)

    def flush(self) -> None:
        self._last.wait_for_publish(FLUSH_S)
        assert self._last.is_published()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextlib.contextmanager
def publisher(port: int) -> Iterator[Publisher]:
    publisher = Publisher(port)
    try:
        yield publisher
    finally:
        publisher.close()
