"""Events per second by WebSocket, MQTT and UDP, for the gateway and for a bare receiver that only counts.

Both get the same bytes from the same sender. The gateway checks each event, drops duplicates by id, and counts an event
only after it has been written to disk. The two are measured alternately, and the median is used.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from bench import publishing
from bench.broker import broker, program, publisher
from bench.events import event
from bench.receivers import TOPIC, Receiver, Report, Wish, receiving
from bench.report import Absent, Figure
from bench.running import free_port

KINDS = ("bare", "gateway")
TURNS = 3
SECONDS = 5.0
CONNECTIONS = 8
MESSAGES = 50_000
DATAGRAMS = 300_000
PACED_PER_S = 20_000
PACED_S = 5.0
PACE_S = 0.001


def run() -> Iterator[Figure | Absent]:
    for count in (1, 100):
        yield websocket(count)
    for qos in (0, 1, 2):
        yield mqtt(qos)
    yield from udp()


def websocket(count: int) -> Figure:
    """Measure messages of `count` events each."""

    def messages() -> Iterator[bytes]:
        while True:
            yield b",".join(event() for _ in range(count))

    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind in KINDS * TURNS:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            wish = Wish(kind, folder, http=free_port())
            with receiving(wish):
                path = "/v1/streams/readings/publish"
                publishing.run(wish.http, path, messages(), CONNECTIONS, 1.0)
                result = publishing.run(wish.http, path, messages(), CONNECTIONS, SECONDS)
        assert result.errors == 0, f"{kind}: {result.errors} connections broke"
        rates[kind].append(result.per_second * count)
    name = "ingest: WebSocket, a message for each event" if count == 1 else f"ingest: WebSocket, {count} in a message"
    return _compared(name, rates, "a bare WebSocket on the same server")


def mqtt(qos: int) -> Figure | Absent:
    """Measure with a broker that already has all messages, so that neither the broker nor the publisher is measured."""
    name = f"ingest: MQTT, QoS {qos}"
    if program() is None:
        return Absent(name, "mosquitto is not installed")
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind in KINDS * TURNS:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            report = _drained(kind, Path(folder), qos)
        assert report.count >= MESSAGES, f"{kind} got {report.count} of {MESSAGES}"
        rates[kind].append(report.per_second)
    return _compared(name, rates, "paho-mqtt that counts messages")


def _drained(kind: str, folder: Path, qos: int) -> Report:
    with broker(folder) as port, publisher(port) as sender:
        wish = Wish(kind, str(folder / "data"), mqtt=port, qos=qos)
        with receiving(wish) as receiver:  # so that the broker knows for whom to keep messages
            while receiver.report().count == 0:
                sender.send(TOPIC, event(), 2)
                time.sleep(0.1)
            receiver.settled()
        for _ in range(MESSAGES):
            sender.send(TOPIC, event(), max(qos, 1))
        sender.flush()
        with receiving(wish) as receiver:
            return receiver.settled(MESSAGES)


def udp() -> Iterator[Figure]:
    datagrams = [event() for _ in range(DATAGRAMS)]
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    lost: dict[str, list[float]] = {kind: [] for kind in KINDS}
    lost_paced: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind in KINDS * TURNS:
        with _udp_receiver(kind) as (receiver, port):
            _send(port, datagrams, None)
            report = receiver.settled()
        rates[kind].append(report.per_second)
        lost[kind].append(100 * (1 - report.count / DATAGRAMS))
        with _udp_receiver(kind) as (receiver, port):
            paced = datagrams[: int(PACED_PER_S * PACED_S)]
            _send(port, paced, PACED_PER_S)
            lost_paced[kind].append(100 * (1 - receiver.settled().count / len(paced)))
    against = "a loop that receives and counts"
    yield _compared("ingest: UDP, sent as fast as can be", rates, against)
    yield _compared("ingest: the same, lost", lost, against, "%")
    yield _compared(f"ingest: UDP, {PACED_PER_S:,} a second, lost", lost_paced, against, "%")


@contextmanager
def _udp_receiver(kind: str) -> Iterator[tuple[Receiver, int]]:
    """Start a receiver. It is ready once a first datagram has arrived."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        wish = Wish(kind, folder, udp=free_port())
        with receiving(wish) as receiver:
            while receiver.report().count == 0:
                with suppress(ConnectionRefusedError):
                    _send(wish.udp, [event()], None)
                time.sleep(0.1)
            receiver.settled()
            receiver.count_anew()
            yield receiver, wish.udp


def _send(port: int, datagrams: list[bytes], per_s: int | None) -> None:
    """Send at the given rate, or as fast as possible."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", port))
        began, sent = time.perf_counter(), 0
        while sent < len(datagrams):
            due = len(datagrams) if per_s is None else int((time.perf_counter() - began) * per_s)
            for datagram in datagrams[sent:due]:
                sender.send(datagram)
            sent = max(sent, due)
            if per_s is not None:
                time.sleep(PACE_S)


def _compared(name: str, rates: dict[str, list[float]], against: str, unit: str = "events/s") -> Figure:
    bare, ours = (median(rates[kind]) for kind in KINDS)
    return Figure(name, ours, unit, bare, against)
