"""`python -m examples.playing DEMO`: sends a play to an app that is already running, until standard input is closed."""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from examples.client import Client, Stopped, until_eof
from examples.playing.message import Message
from examples.playing.plays import FEEDS

SEND_S = 0.25
TELL_S = 10.0
TOGETHER_MAX = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.playing", description="The feed for a demo.")
    parser.add_argument("demo", choices=sorted(FEEDS), help="name of the demo")
    parser.add_argument("--to", required=True, metavar="URL", help="address of the app")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    parser.add_argument("--rate", type=float, required=True, help="events per second")
    parser.add_argument("--events", type=int, default=0, help="stop after this many events; 0 means never")
    chosen = parser.parse_args()
    feed, stop = FEEDS[chosen.demo], until_eof()
    with suppress(Stopped, KeyboardInterrupt):
        messages = feed.play(chosen.seed, datetime.now(UTC), chosen.rate)
        send(Client(chosen.to, stop), stop, feed.stream, itertools.islice(messages, chosen.events or None))
        stop.wait()


def send(client: Client, stop: threading.Event, stream: str, messages: Iterable[Message]) -> None:
    """Send each event when it is due. Events that are due at the same time are sent in one request."""
    waiting: list[dict[str, Any]] = []
    sent, reported_at = 0, time.monotonic()
    for message in messages:
        early_s = (message.at - datetime.now(UTC)).total_seconds()
        if waiting and (early_s > 0 or len(waiting) == TOGETHER_MAX):
            client.post(stream, waiting)
            sent, waiting = sent + len(waiting), []
            if time.monotonic() > reported_at + TELL_S:
                reported_at = time.monotonic()
                print(f"feed: {sent:,} events sent to {stream}", flush=True)
            if early_s > 0 and stop.wait(early_s + SEND_S):
                return
        waiting.append(message.event)
    if waiting:
        client.post(stream, waiting)
    print(f"feed: {sent + len(waiting):,} events sent to {stream}, done", flush=True)


if __name__ == "__main__":
    main()
