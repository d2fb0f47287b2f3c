"""A well-behaved client, which must not notice the attacks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import httpx

from tests.fuzz.gateway import RunningGateway
from tests.harness import wait_for

BATCH = 10
PATIENCE_S = 30.0
"""Time that it waits for an answer before it gives up."""


@dataclass
class GoodClient:
    """Posts orders, one request after the other, and records the answers."""

    running: RunningGateway
    name: str = field(default_factory=lambda: f"good {uuid4()}")
    over: threading.Event = field(default_factory=threading.Event)
    sent: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def work(self) -> None:
        with httpx.Client(base_url=self.running.url, timeout=PATIENCE_S) as client:
            while not self.over.is_set():
                names = [f"{self.name}/{len(self.sent) + number}" for number in range(BATCH)]
                began = time.perf_counter()
                try:
                    answer = client.post(
                        "/v1/streams/orders", json=[{"order": name, "buyer": self.name} for name in names]
                    )
                except httpx.HTTPError as error:
                    self.faults.append(repr(error))
                    return
                self.waits_s.append(time.perf_counter() - began)
                self.sent += names
                if answer.status_code != 200 or answer.json()["accepted"] != BATCH:
                    self.faults.append(f"{answer.status_code} {answer.text[:200]}")

    def require_unharmed(self) -> None:
        """Check that every answer was a success, and each of its orders is in the log, once."""
        assert self.faults == []
        assert self.sent
        stored = Counter(event["order"] for event in self.running.read("orders")[0] if event["buyer"] == self.name)
        wanted = Counter(self.sent)
        assert stored == wanted, f"lost: {sorted(wanted - stored)[:20]}, too many: {sorted(stored - wanted)[:20]}"

    def summary(self) -> str:
        waits = sorted(self.waits_s)
        half, most = waits[len(waits) // 2], waits[-1]
        return f"{len(waits)} requests, {half * 1000:.1f} ms each in the middle, {most * 1000:.0f} ms at most"


@contextmanager
def good_client(running: RunningGateway) -> Iterator[GoodClient]:
    """Run a good client while in the block, and check at the end that it was unharmed."""
    client = GoodClient(running)
    thread = threading.Thread(target=client.work, name="good client")
    thread.start()
    try:
        wait_for(lambda: client.sent or client.faults, what="its first answer")
        yield client
    finally:
        client.over.set()
        thread.join(2 * PATIENCE_S)
    client.require_unharmed()
