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

from penstock.app.app import App
from penstock.collect.ingress import Ingress
from penstock.collect.sources.mqtt.source import MqttSource
from penstock.core.clock import WallClock
from penstock.core.contracts import SourceStatus
from penstock.core.errors import PenstockError
from penstock.core.schema import Event
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from tests.contracts.log import ROOT

STREAMS = {"once": ("q2/{device}", 2), "least": ("q1/{device}", 1), "with_ids": ("q1/{device}", 1)}


class Plain(Event):
    number: int
    device: str


class Numbered(Event, id="number"):
    number: int
    device: str


def app() -> App:
    application = App("test")
    application.stream("once", Plain)
    application.stream("least", Plain)
    application.stream("with_ids", Numbered)
    return application


def opened(directory: Path) -> tuple[EmbeddedLog, Ingress]:
    log = EmbeddedLog(directory, disk_reserve_bytes=0)

    def fatal(error: Exception) -> None:
        print(error, file=sys.stderr, flush=True)
        os._exit(74)

    return log, Ingress(app().streams, log, Settings(), WallClock(), fatal, lambda stream: None)


def counts(directory: Path) -> dict[str, int]:
    """Return the number of events in each stream, while a process may be writing."""
    log = EmbeddedLog(directory, read_only=True)
    try:
        return {stream: log.rows_between(stream, {}, log.ends(stream)) for stream in STREAMS}
    except PenstockError:  # the first process has not got that far
        return dict.fromkeys(STREAMS, 0)
    finally:
        log.close()


def numbers(directory: Path, stream: str) -> list[int]:
    """Return the content of a stream, in order of each partition."""
    log = EmbeddedLog(directory, read_only=True)
    values = [
        number
        for partition, end in log.ends(stream).items()
        for batch in log.read(stream, partition, 0, end)
        for number in batch.column("number").to_pylist()
    ]
    log.close()
    return values


def start(directory: Path, port: int, version: int) -> subprocess.Popen[bytes]:
    """Start a reader. It ends when the process that started it is gone."""
    command = [sys.executable, "-m", "tests.collect.sources.mqtt_worker", str(directory), str(port), str(version)]
    with open(directory.parent / "worker.log", "ab") as output:
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=output, stderr=output)


def end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


async def main(directory: str, port: str, version: str) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    _, ingress = opened(Path(directory))
    sources = [
        MqttSource(
            f"mqtt://127.0.0.1:{port}",
            (topic,),
            qos=qos,
            client_id=f"reader-{stream}",
            version=int(version),
            keep_alive_s=2,
            open_s=1,
            backoff_s=0.02,
            backoff_max_s=0.1,
        ).run(ingress.writer_for_source("feed", stream), SourceStatus())
        for stream, (topic, qos) in STREAMS.items()
    ]
    await asyncio.gather(*sources)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
