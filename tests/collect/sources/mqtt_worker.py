"""A process that runs MQTT sources into a real log until it is killed.

`python -m tests.collect.sources.mqtt_worker ...` starts it.

Messages of QoS 2 go into a stream without ids, so that a copy would show; those of QoS 1 into one with ids and, by a
second source, into one without.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

from penstock.app import App
from penstock.collect.door import FrontDoor
from penstock.collect.sources.mqtt.source import MqttSource
from penstock.collect.sources.reconnect import Backoff
from penstock.contracts import SourceStatus
from penstock.errors import PenstockError
from penstock.queue import EmbeddedLog
from penstock.runtime.clock import WallClock
from penstock.schema import Event
from penstock.settings import Settings
from tests.contracts.log import ROOT

STREAMS = {"once": ("q2/{device}", 2), "least": ("q1/{device}", 1), "with_ids": ("q1/{device}", 1)}


class Plain(Event):
    number: int
    device: str


class Numbered(Event, id="number"):
    number: int
    device: str


def app() -> App:
    found = App("test")
    found.stream("once", Plain)
    found.stream("least", Plain)
    found.stream("with_ids", Numbered)
    return found


def opened(directory: Path) -> tuple[EmbeddedLog, FrontDoor]:
    log = EmbeddedLog(directory, disk_reserve_bytes=0)

    def fatal(error: Exception) -> None:
        print(error, file=sys.stderr, flush=True)
        os._exit(74)

    return log, FrontDoor(app().streams, log, Settings(), WallClock(), fatal, lambda stream: None)


def counts(directory: Path) -> dict[str, int]:
    """How many each stream holds, while a process may be writing."""
    log = EmbeddedLog(directory, read_only=True)
    try:
        return {stream: sum(log.ends(stream).values()) for stream in STREAMS}
    except PenstockError:  # the first process has not got that far
        return dict.fromkeys(STREAMS, 0)
    finally:
        log.close()


def numbers(directory: Path, stream: str) -> list[int]:
    """What a stream holds, in order of each partition."""
    log = EmbeddedLog(directory, read_only=True)
    found = [
        number
        for partition, end in log.ends(stream).items()
        for batch in log.read(stream, partition, 0, end)
        for number in batch.column("number").to_pylist()
    ]
    log.close()
    return found


def start(directory: Path, port: int, version: int) -> subprocess.Popen[bytes]:
    """A reader. It ends when the process that started it is gone."""
    command = [sys.executable, "-m", "tests.collect.sources.mqtt_worker", str(directory), str(port), str(version)]
    with open(directory.parent / "worker.log", "ab") as output:
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=output, stderr=output)


def end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


async def main(directory: str, port: str, version: str) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    _, door = opened(Path(directory))
    sources = [
        MqttSource(
            f"mqtt://127.0.0.1:{port}",
            (topic,),
            qos=qos,
            client_id=f"reader-{stream}",
            version=int(version),
            keep_alive_s=2,
            open_s=1,
            backoff=Backoff(0.02, 0.1),
        ).run(door.intake_for_source("feed", stream), SourceStatus())
        for stream, (topic, qos) in STREAMS.items()
    ]
    await asyncio.gather(*sources)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
