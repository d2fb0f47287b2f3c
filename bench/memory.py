"""Check that the gateway's memory does not grow: `python -m bench memory`, six minutes in which events arrive by POST,
WebSocket, MQTT and UDP together at a steady rate.

Only a few ids are remembered, so that they do not use more and more memory. The slope is that of a straight line fitted
to the size of the process over the last five minutes. The first minute does not count, because threads are started and
buffers and caches fill up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect

from bench.broker import broker, program, publisher
from bench.events import event
from bench.receivers import TOPIC, Wish, receiving
from bench.report import Absent, Figure
from bench.running import free_port

MINUTES = 6.0
WARM_S = 60.0
PER_SECOND = 500
"""Events per second on each of the four ingestion paths."""
EVERY_S = 0.1
SAMPLE_S = 10.0
IDS = 10_000
Sample = tuple[float, float]
"""Seconds, and MiB."""


def run() -> Iterator[Figure | Absent]:
    if program() is None:
        yield Absent("memory", "mosquitto is not installed")
        return
    os.environ["PENSTOCK_DEDUPE_IDS_MAX"] = str(IDS)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, broker(Path(folder)) as port:
        wish = Wish("gateway", f"{folder}/data", http=free_port(), mqtt=port, udp=free_port(), qos=1)
        samples: list[Sample] = []
        with receiving(wish) as receiver, _sending(wish) as is_sending:
            began = time.monotonic()
            while not samples or samples[-1][0] < MINUTES * 60:
                time.sleep(SAMPLE_S)
                assert is_sending(), "a sender broke"
                samples.append((time.monotonic() - began, _resident_mib(receiver.pid)))
                yield Figure(f"memory: after {samples[-1][0]:.0f} s", samples[-1][1], "MiB")
            taken = receiver.report().count
    later = [sample for sample in samples if sample[0] >= WARM_S]
    slope = statistics.linear_regression([sample[0] for sample in later], [sample[1] for sample in later]).slope
    yield Figure("memory: slope after the first minute", slope * 60 * 1024, "KiB a minute")
    yield Figure("memory: events taken in that time", taken, "events")


@contextlib.contextmanager
def _sending(wish: Wish) -> Iterator[Callable[[], bool]]:
    """Run all senders in a thread, and yield a function that returns True while they are still sending. The first
    failure stops all of them."""
    stop = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def send() -> None:
        loops.append(asyncio.get_running_loop())
        ways = (_posting(wish.http), _publishing(wish.http), _by_mqtt(wish.mqtt), _by_udp(wish.udp), stop.wait())
        tasks = [asyncio.create_task(way) for way in ways]
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in done:
            task.result()

    thread = threading.Thread(target=asyncio.run, args=(send(),))
    thread.start()
    try:
        yield thread.is_alive
    finally:
        if thread.is_alive():
            loops[0].call_soon_threadsafe(stop.set)
        thread.join()


async def _steadily(send: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """A few times a second, call `send` with the number of events that are due. Never returns."""
    began, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began) * PER_SECOND) - sent
        await send(due)
        sent += due
        await asyncio.sleep(EVERY_S)


async def _posting(port: int) -> None:
    async with httpx.AsyncClient(timeout=30) as client:

        async def send(count: int) -> None:
            """Send lines, ten per request, because sending them one by one would keep the client too busy."""
            for begin in range(0, count, 10):
                lines = b"\n".join(event() for _ in range(min(10, count - begin)))
                headers = {"content-type": "application/x-ndjson"}
                url = f"http://127.0.0.1:{port}/v1/streams/readings"
                (await client.post(url, content=lines, headers=headers)).raise_for_status()

        await _steadily(send)


async def _publishing(port: int) -> None:
    url = f"ws://127.0.0.1:{port}/v1/streams/readings/publish?producer=memory"
    async with connect(url, compression=None) as connection:
        seq = 0

        async def send(count: int) -> None:
            nonlocal seq
            for _ in range(count):
                await connection.send(b'{"seq":%d,"event":%b}' % (seq, event()))
                seq += 1

        async def hear() -> None:
            async for message in connection:
                assert json.loads(message)["event"] in ("open", "ack"), message

        async with asyncio.TaskGroup() as group:
            group.create_task(hear())
            group.create_task(_steadily(send))


async def _by_mqtt(port: int) -> None:
    with publisher(port) as sender:

        async def send(count: int) -> None:
            for _ in range(count):
                sender.send(TOPIC, event(), 1)

        await _steadily(send)


async def _by_udp(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:

        async def send(count: int) -> None:
            for _ in range(count):
                sender.sendto(event(), ("127.0.0.1", port))

        await _steadily(send)


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")
