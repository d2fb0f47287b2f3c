"""The receivers for the WebSocket, MQTT and UDP benchmarks, each in its own process: `python -m bench.receivers JSON`.

A receiver is either the gateway or a bare receiver that only counts. It responds to each line on standard input with
the count, and shuts down cleanly when standard input is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
import uvloop

from bench.readings import Reading
from penstock import App, collect
from penstock.core.settings import Settings, from_environment
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.gateway import SWITCH_INTERVAL_S, Gateway, server_config

SAMPLE_S = 0.005
ANEW = "anew"
TOPIC = "readings"
BUFFER_BYTES = 4 * 1024 * 1024
"""The buffer size that both UDP receivers request from the kernel."""
ACK_EVERY = 20
"""The bare WebSocket acknowledges after this many messages."""
WINDOW = Settings().publish_window


class Wish(msgspec.Struct):
    """The inputs to receive: the HTTP and UDP ports to listen on, and the port of the MQTT broker to connect to. 0
    means none."""

    who: str
    folder: str
    http: int = 0
    mqtt: int = 0
    udp: int = 0
    qos: int = 0


class Report(msgspec.Struct):
    """The number of events so far, and the times at which the count was first and last seen to grow, by a clock that
    all processes share."""

    count: int
    first_s: float
    last_s: float

    @property
    def per_second(self) -> float:
        return self.count / (self.last_s - self.first_s)


class Receiver:
    """A child process that runs a receiver."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def report(self, line: str = "") -> Report:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Report)

    def count_anew(self) -> None:
        """Discard the counts so far."""
        self.report(ANEW)

    def settled(self, least: int = 1, quiet_s: float = 1.0, timeout_s: float = 60.0) -> Report:
        """Return the report once there are at least `least` events and no more arrive, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            report = self.report()
            is_quiet = report.count >= least and time.monotonic() - report.last_s > quiet_s
            if is_quiet or time.monotonic() > deadline:
                return report
            time.sleep(0.05)


@contextlib.contextmanager
def receiving(wish: Wish) -> Iterator[Receiver]:
    command = [sys.executable, "-m", "bench.receivers", msgspec.json.encode(wish).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        receiver = Receiver(process)
        receiver.report()  # it is there
        yield receiver
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def app_for(wish: Wish) -> App:
    app = App("ways")
    readings = app.stream("readings", Reading, key="sensor")
    if wish.mqtt:
        url = f"mqtt://127.0.0.1:{wish.mqtt}"
        app.source("mqtt", collect.mqtt(url, TOPIC, qos=wish.qos, client_id="receiver"), into=readings)
    if wish.udp:
        app.source("udp", collect.udp("127.0.0.1", wish.udp, buffer_bytes=BUFFER_BYTES), into=readings)
    return app


async def gateway(wish: Wish) -> None:
    directory = DataDirectory(Path(wish.folder))
    directory.make()
    gateway = Gateway(app_for(wish), EmbeddedStorage(directory), from_environment())
    listener = socket.create_server(("127.0.0.1", wish.http), backlog=1024)
    serving = asyncio.create_task(gateway.run(listener))
    audit = gateway.ingress.audits()["readings"]
    await answering(lambda: audit.total().accepted)
    gateway.stop()
    await serving


async def bare_websocket(wish: Wish) -> None:
    count = 0

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal count
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": f'{{"event":"open","window":{WINDOW}}}'})
        mine = 0
        while (await receive())["type"] == "websocket.receive":
            mine, count = mine + 1, count + 1
            if mine % ACK_EVERY == 0:
                await send({"type": "websocket.send", "text": f'{{"event":"ack","seq":{mine - 1}}}'})

    server = uvicorn.Server(server_config(application, Settings()))
    listener = socket.create_server(("127.0.0.1", wish.http), backlog=1024)
    serving = asyncio.create_task(server._serve([listener]))
    await answering(lambda: count)
    server.should_exit = True
    await serving


async def bare_mqtt(wish: Wish) -> None:
    """Receive with paho, as most Python programs would. Its session survives a lost connection, as ours does."""
    from paho.mqtt import client as paho
    from paho.mqtt.enums import CallbackAPIVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    count = 0

    def take(*_: object) -> None:
        nonlocal count
        count += 1

    client = paho.Client(CallbackAPIVersion.VERSION2, "receiver", protocol=paho.MQTTv5)

    def subscribe(*_: object) -> None:
        client.subscribe(TOPIC, wish.qos)

    client.on_message, client.on_connect = take, subscribe
    session = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    session.SessionExpiryInterval, session.ReceiveMaximum = 3600, 100
    client.connect("127.0.0.1", wish.mqtt, clean_start=False, properties=session)
    client.loop_start()
    await answering(lambda: count)
    client.disconnect()
    client.loop_stop()


async def bare_udp(wish: Wish) -> None:
    count = 0
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    opened.bind(("127.0.0.1", wish.udp))

    def take() -> None:
        nonlocal count
        while True:
            opened.recv(65_535)
            count += 1

    threading.Thread(target=take, daemon=True).start()
    await answering(lambda: count)


async def answering(count: Callable[[], int]) -> None:
    """Watch the count, and print a report for each line on standard input until it is closed."""
    report, before = Report(0, time.monotonic(), time.monotonic()), 0

    async def watch() -> None:
        while True:
            now, total = time.monotonic(), count() - before
            if total > report.count:
                report.first_s = report.first_s if report.count else now
                report.count, report.last_s = total, now
            await asyncio.sleep(SAMPLE_S)

    watching = asyncio.create_task(watch())
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line.strip() == ANEW:
            report.count, before = 0, count()
        print(msgspec.json.encode(report).decode(), flush=True)
    watching.cancel()


async def main(wish: Wish) -> None:
    bare = bare_websocket if wish.http else bare_mqtt if wish.mqtt else bare_udp
    await (gateway if wish.who == "gateway" else bare)(wish)


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Wish)))
