"""A producer and a reader that behave as good clients do, and record what they saw, outside the system."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from penstock.core.cursor import ViewCursor, decode
from tests.beside import Beside

PAGES = 20
RETRY_S = 0.1


@dataclass
class Producer(Beside):
    """Posts batches until each is acknowledged; those with an unknown outcome are resent with the same ids."""

    url: Callable[[], str]
    seed: int
    pause_s: float = 0.02
    batch: int = 20

    def __post_init__(self) -> None:
        super().__init__("producer")
        self.random = random.Random(self.seed)
        self.expected: Counter[str] = Counter()
        self.acknowledged = 0
        self.duplicates = 0
        self.retries = 0

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        with httpx.Client(timeout=10) as client:
            while not self.finish.is_set():
                self._send(client, [self._event(self.acknowledged + index) for index in range(self.batch)])
                self.finish.wait(self.pause_s)

    def _event(self, number: int) -> dict[str, Any]:
        page = f"page-{self.random.randrange(PAGES)}"
        return {"hit": f"{self.seed}-{number}", "page": page, "number": number}

    def _send(self, client: httpx.Client, events: list[dict[str, Any]]) -> None:
        body = "\n".join(map(json.dumps, events))
        headers = {"content-type": "application/x-ndjson"}
        while not self.leave.is_set():
            with contextlib.suppress(httpx.HTTPError):
                answer = client.post(f"{self.url()}/v1/streams/hits", content=body, headers=headers)
                if answer.status_code == 200:
                    receipt = answer.json()
                    assert receipt["accepted"] + receipt["duplicates"] == len(events), receipt
                    self.duplicates += receipt["duplicates"]
                    self.acknowledged += len(events)
                    self.expected.update(event["page"] for event in events)
                    return
            self.retries += 1
            self.leave.wait(RETRY_S)


@dataclass
class Reader(Beside):
    """Follows a view by server-sent events, reconnects with its last cursor, and applies what it gets."""

    url: Callable[[], str]
    view: str
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__("reader")
        self.cursor: str | None = None
        self.connections = 0

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        while not self.finish.is_set():
            headers = {"last-event-id": self.cursor} if self.cursor else {}
            with contextlib.suppress(httpx.HTTPError):
                with httpx.stream("GET", f"{self.url()}/v1/views/{self.view}/live", headers=headers, timeout=30) as got:
                    if got.status_code == 200:
                        self.connections += 1
                        self._follow(got)
            self.finish.wait(RETRY_S)

    def _follow(self, got: httpx.Response) -> None:
        message: dict[str, str] = {}
        for line in got.iter_lines():
            if self.finish.is_set():
                return
            if line:
                name, _, value = line.partition(": ")
                message[name] = value
            elif message:
                self._take(message)
                message = {}

    def _take(self, message: dict[str, str]) -> None:
        kind = message.get("event", "")
        if not kind:
            return
        self.events[kind] += 1
        data = json.loads(message["data"])
        if kind == "snapshot":
            self.rows = {row["page"]: row for row in data["rows"]}
        elif kind == "change":
            for key in data["deletes"]:
                self.rows.pop(key["page"], None)
            for row in data["upserts"]:
                self.rows[row["page"]] = row
        self.cursor = message["id"]
        if kind in ("snapshot", "change"):
            place = decode(self.cursor)
            assert isinstance(place, ViewCursor)
            self.versions.append(place.version)
