"""`python -m examples.nexmark_queries.play`: sends people, auctions and bids to a running app until standard input is
closed."""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from examples.client import until_eof
from examples.nexmark_queries.generator import Generator, Happening, apart
from penstock.client import Client

SEND_S = 0.25
TELL_S = 10.0
TOGETHER_MAX = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.nexmark_queries.play", description="An auction house.")
    parser.add_argument("--to", default="http://127.0.0.1:8080", metavar="URL", help="address of the app")
    parser.add_argument("--seed", type=int, default=1, help="random seed (1)")
    parser.add_argument("--rate", type=int, default=200, help="events per second (200)")
    parser.add_argument("--events", type=int, default=0, help="stop after this many events; 0 (default) means never")
    chosen = parser.parse_args()
    events = Generator(chosen.events or sys.maxsize, seed=chosen.seed, per_second=chosen.rate, start=datetime.now(UTC))
    asyncio.run(play(chosen.to, events, until_eof()))


async def play(url: str, events: Generator, stop: threading.Event) -> None:
    """Send each event when it is due. An event that is sent again because there was no response counts only once."""
    sent, reported_at = 0, time.monotonic()
    async with Client(url) as client:
        async for together in due(events):
            for stream, stream_events in apart(together).items():
                if stream_events:
                    await client.publish(stream, stream_events)
            sent += len(together)
            if time.monotonic() > reported_at + TELL_S:
                reported_at = time.monotonic()
                print(f"nexmark: {sent:,} events sent", flush=True)
            if stop.is_set():
                return
    print(f"nexmark: {sent:,} events sent, done", flush=True)


async def due(events: Generator) -> AsyncIterator[list[Happening]]:
    """Yield lists of the events that are due."""
    waiting: list[Happening] = []
    for event in events:
        early_s = (event.dateTime - datetime.now(UTC)).total_seconds()
        if waiting and (early_s > 0 or len(waiting) == TOGETHER_MAX):
            yield waiting
            waiting = []
            await asyncio.sleep(max(0.0, early_s + SEND_S))
        waiting.append(event)
    yield waiting


if __name__ == "__main__":
    main()
