"""`python -m examples.driving`: sends the simulated fleet to an app that is already running, until standard input is
closed."""

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
from examples.driving.play import Message, drive, routes

SEND_S = 0.25
TELL_S = 10.0
TOGETHER_MAX = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.driving", description="An invented fleet.")
    parser.add_argument("--to", required=True, metavar="URL", help="address of the app")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    parser.add_argument("--rate", type=float, default=40.0, help="fixes per second, for the whole fleet")
    parser.add_argument("--vehicles", type=int, default=40, help="number of vehicles")
    parser.add_argument("--fixes", type=int, default=0, help="stop after this many fixes; 0 means never")
    chosen = parser.parse_args()
    stop = until_eof()
    with suppress(Stopped, KeyboardInterrupt):
        client = Client(chosen.to, stop)
        given = client.post("routes", routes(chosen.seed, chosen.vehicles))
        count = given["accepted"] + given["duplicates"]
        print(f"fleet: {chosen.vehicles} vehicles on the road, {count} of them with a route", flush=True)
        messages = drive(chosen.seed, datetime.now(UTC), chosen.vehicles, chosen.rate)
        send(client, stop, itertools.islice(messages, chosen.fixes or None))
        stop.wait()


def send(client: Client, stop: threading.Event, messages: Iterable[Message]) -> None:
    """Send each fix when it is due. Fixes that are due at the same time are sent in one request."""
    waiting: list[dict[str, Any]] = []
    sent, reported_at = 0, time.monotonic()
    for message in messages:
        early_s = (message.at - datetime.now(UTC)).total_seconds()
        if waiting and (early_s > 0 or len(waiting) == TOGETHER_MAX):
            client.post("fixes", waiting)
            sent, waiting = sent + len(waiting), []
            if early_s > 0 and stop.wait(early_s + SEND_S):
                return
        waiting.append(message.fix)
        if time.monotonic() > reported_at + TELL_S:
            reported_at = time.monotonic()
            _tell(client, sent)
    if waiting:
        client.post("fixes", waiting)
    _tell(client, sent + len(waiting))


def _tell(client: Client, sent: int) -> None:
    ends = {stream["name"]: stream["end"] for stream in client.app()["streams"]}
    words = {"Violation": "violations", "Return": "returns", "Refused": "refused"}
    counts = ", ".join(f"{ends.get(f'geofence.{name}', 0):,} {word}" for name, word in words.items())
    print(f"fleet: {sent:,} fixes sent; totals: {counts}", flush=True)


if __name__ == "__main__":
    main()
