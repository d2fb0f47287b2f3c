"""One promise on every transport: a client that comes back with its cursor gets the next change, no gap, no repeat."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from penstock.serve.stream import StreamChannel
from penstock.serve.view import ViewChannel
from penstock.settings import Settings
from tests.serve.clients import TRANSPORTS
from tests.serve.fakes import FakeLog, FakeView, background, make_deps, run, serving

LIVELY = Settings(heartbeat_s=0.05, page_events=6, buffered_changes=8)
TOTAL = 200


@pytest.mark.parametrize("seed", random.sample(range(10**6), 2))
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stream_is_resumed_at_every_position(transport: str, seed: int) -> None:
    """Two clients leave after a random number of deliveries, again and again, while events are written."""
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def write(log: FakeLog, source: StreamChannel) -> None:
        number = 0
        while number < TOTAL:
            count = min(TOTAL - number, chance.randrange(1, 6))
            log.write(chance.randrange(2), *range(number, number + count), at_s=number)
            log.tick(chance.randrange(2), at_s=number)
            source.wake()
            number += count
            await asyncio.sleep(chance.random() * 0.01)

    async def read(port: int, cursor: str) -> list[int]:
        found: list[int] = []
        while len(found) < TOTAL:
            async with TRANSPORTS[transport](port, "stream", cursor) as deliveries:
                for _ in range(chance.randrange(1, 8)):
                    received = await anext(deliveries)
                    cursor = received.cursor
                    assert received.kind in ("change", "progress")
                    found += [event["n"] for event in received.data.get("events", ())]
        return found

    async def main() -> None:
        log = FakeLog()
        source = StreamChannel("x", log, LIVELY)
        async with serving(make_deps(streams={"x": source}, settings=LIVELY)) as port:
            async with background(write(log, source)):
                results = await asyncio.gather(read(port, "earliest"), read(port, "earliest"))
        for found in results:
            assert sorted(found) == list(range(TOTAL))

    run(main())


@pytest.mark.parametrize("seed", random.sample(range(10**6), 2))
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_view_is_resumed_at_every_position(transport: str, seed: int) -> None:
    """A client that leaves and resumes at random sees each value of a counter once, and ends with the view's rows."""
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def write(view: FakeView) -> None:
        for number in range(1, TOTAL + 1):
            view.put({str(number): number})
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.01)

    async def main() -> None:
        view = FakeView()
        source = ViewChannel("x", view, Settings(heartbeat_s=0.05), key=["k"])
        seen: list[int] = []
        cursor: str | None = None
        async with serving(make_deps(views={"x": source})) as port:
            async with background(write(view)):
                while TOTAL not in seen:
                    async with TRANSPORTS[transport](port, "view", cursor) as deliveries:
                        for _ in range(chance.randrange(1, 8)):
                            received = await anext(deliveries)
                            cursor = received.cursor
                            seen += rows_of(received.data)
        assert seen == list(range(1, TOTAL + 1))

    def rows_of(data: Any) -> list[int]:
        return [row["v"] for row in [*data.get("rows", ()), *data.get("upserts", ())]]

    run(main())
