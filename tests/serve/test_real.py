"""The channels on the real log and the real store: results that other tests show with fakes hold with files."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.clock import WallClock
from penstock.core.columns import tick_batch, to_batch
from penstock.core.contracts import Output, Retention, StreamSpec
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.queue.embedded import EmbeddedLog
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import following
from penstock.store.live import InMemoryView
from penstock.store.spec import ViewSpec
from penstock.store.table import ViewTable
from tests.serve.clients import TRANSPORTS
from tests.serve.fakes import Reading, background, make_deps, numbers, run, serving
from tests.serve.test_view import fold

TOTAL = 300
SETTINGS = Settings(heartbeat_s=0.05, page_events=9, buffered_changes=6)
SPEC = ViewSpec("x", ("k",), None, None, None, changes_kept=10_000, changes_bytes=2**30)


def declared(directory: Path, partitions: int = 2) -> EmbeddedLog:
    log = EmbeddedLog(directory)
    log.declare(StreamSpec("x", event_schema(Reading), partitions))
    return log


def batch(*values: int) -> pa.RecordBatch:
    events = [Reading(n=value) for value in values]
    ids = [str(value) for value in values]
    return to_batch(Reading, events, ids=ids, keys=ids, now=datetime.now(UTC))


def write(log: EmbeddedLog, chance: random.Random) -> None:
    """Write events and ticks in a thread, in commits of random sizes, merged now and then."""
    number = 0
    while number < TOTAL:
        count = min(TOTAL - number, chance.randrange(1, 10))
        log.admit("x", {chance.randrange(2): batch(*range(number, number + count))})
        log.admit("x", {chance.randrange(2): tick_batch(event_schema(Reading), datetime.now(UTC))})
        number += count
        if chance.random() < 0.2:
            log.merge("x")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stream_in_files_is_resumed_without_gap_or_repeat(transport: str, tmp_path: Path) -> None:
    """A client that leaves and resumes gets each event once, while the files are written and merged beside it."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def read(port: int) -> list[int]:
        cursor, events = "earliest", list[int]()
        while len(events) < TOTAL:
            async with TRANSPORTS[transport](port, "stream", cursor) as deliveries:
                for _ in range(chance.randrange(1, 8)):
                    received = await anext(deliveries)
                    cursor = received.cursor
                    events += [event["n"] for event in received.data.get("events", ())]
        return events

    async def main() -> None:
        writer, reader = declared(tmp_path), EmbeddedLog(tmp_path, read_only=True)
        source = StreamChannel("x", reader, SETTINGS)
        async with serving(make_deps(streams={"x": source}, settings=SETTINGS)) as port:
            async with background(asyncio.to_thread(write, writer, random.Random(seed))):
                assert sorted(await read(port)) == list(range(TOTAL))
        reader.close()
        writer.close()

    run(main())


@pytest.mark.usefixtures("dense")
def test_a_follower_of_files_is_reset_by_retention(tmp_path: Path) -> None:
    """Events trimmed before the follower reached them are a `reset`, then the first kept event follows."""

    async def main() -> None:
        log = declared(tmp_path, partitions=1)
        for number in range(10):
            log.admit("x", {0: batch(number)})
        source = StreamChannel("x", log, Settings(page_events=2))
        async with following(source, "earliest") as deliveries:
            assert numbers(await anext(deliveries)) == [0, 1]
            starts = log.trim("x", Retention(timedelta(0), 2**40, {0: 7}))
            assert starts == {0: 7}
            assert (await anext(deliveries)).kind == "reset"
            assert numbers(await anext(deliveries)) == [7, 8]
        log.close()

    run(main())


def test_a_client_of_a_view_in_files_ends_with_its_rows(tmp_path: Path) -> None:
    """Through every resume and however far behind, the client's rows are the view's."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)

    def commit(table: ViewTable) -> None:
        for number in range(TOTAL):
            rows = pa.table({"k": [chance.choice("abcdef") for _ in range(3)], "v": [number] * 3})
            table.commit(Output(number, str(number), str(number + 1), 1, rows))

    async def main() -> None:
        path = tmp_path / "x.db"
        live = InMemoryView(path, SPEC, buffered_changes=4)
        source = ViewChannel("x", live, Settings(heartbeat_s=0.02, buffered_changes=4), key=["k"])
        table = ViewTable(path, SPEC, clock=WallClock())
        running = asyncio.create_task(live.run())
        rows: dict[str, Any] = {}
        cursor: str | None = None
        async with background(asyncio.to_thread(commit, table)):
            while live.version < TOTAL or rows != {row["k"]: row["v"] for row in map(json.loads, live.snapshot().rows)}:
                async with following(source, cursor) as deliveries:
                    for _ in range(chance.randrange(1, 6)):
                        delivery = await anext(deliveries)
                        rows, cursor = fold(rows, delivery), delivery.cursor
                        await asyncio.sleep(chance.random() * 0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        table.close()

    run(main())
