"""The little of the HTTP API that the demos need, with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

TIMEOUT_S = 10.0
WAIT_S = 0.1
WAIT_MAX_S = 2.0
PAGE_EVENTS = 1_000
AGAIN = frozenset({404, 429, 500, 503, 507})
"""Answers after which the same can succeed. 404 is one: what a handler fills is there once Spark has started."""


class Stopped(Exception):
    """The demo is being stopped."""


def until_eof() -> threading.Event:
    """An event that is set when standard input closes, so with the process that started this one."""
    stop = threading.Event()

    def read() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=read, daemon=True).start()
    return stop


class Client:
    """A running app. Every call goes on trying, with growing waits, until it is answered or `stop` is set.

    That is safe for posting too: events with an id that come twice count once.
    """

    def __init__(self, address: str, stop: threading.Event) -> None:
        self._address = address
        self._stop = stop

    def post(self, stream: str, events: list[Any]) -> dict[str, Any]:
        """Append events; returns when they are durable."""
        return self._ask(f"/v1/streams/{stream}", json.dumps(events).encode())

    def view(self, name: str) -> list[dict[str, Any]]:
        """The rows of a view now."""
        return list(self._ask(f"/v1/views/{name}")["rows"])

    def app(self) -> dict[str, Any]:
        return self._ask("/v1/app")

    def read(self, stream: str, since: str = "earliest") -> tuple[list[dict[str, Any]], str]:
        """All events after a cursor that there are now, and the cursor after them."""
        found: list[dict[str, Any]] = []
        for events, cursor in self._pages(stream, since):
            found += events
            since = cursor
        return found, since

    def _pages(self, stream: str, since: str) -> Iterator[tuple[list[dict[str, Any]], str]]:
        """The end is where the cursor stays as it is: a page may be empty and have others after it."""
        while True:
            query = urllib.parse.urlencode({"since": since, "limit": PAGE_EVENTS})
            page = self._ask(f"/v1/streams/{stream}?{query}")
            yield page["events"], page["cursor"]
            if page["cursor"] == since:
                return
            since = page["cursor"]

    def _ask(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        wait_s = WAIT_S
        request = urllib.request.Request(self._address + path, body, {"Content-Type": "application/json"})
        while not self._stop.is_set():
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                    return dict(json.load(answer))
            except urllib.error.HTTPError as error:
                with error:
                    if error.code not in AGAIN:
                        raise RuntimeError(f"{path}: {error.code} {error.read().decode()}") from None
            except (OSError, http.client.HTTPException):
                pass  # the gateway is not there, or not there yet
            self._stop.wait(wait_s)
            wait_s = min(2 * wait_s, WAIT_MAX_S)
        raise Stopped
