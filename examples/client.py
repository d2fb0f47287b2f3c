"""A client for the parts of the HTTP API that the demos need. Uses only the standard library."""

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
"""Status codes of errors that a retry might resolve. They include 404, because a handler's output stream does not exist
until Spark has started."""


class Stopped(Exception):
    """Raised when the demo is being stopped."""


def until_eof() -> threading.Event:
    """Return an event that is set when standard input is closed, which happens when the parent process exits."""
    stop = threading.Event()

    def read() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=read, daemon=True).start()
    return stop


class Client:
    """A connection to a running app. Each call is retried, with increasing delays, until it gets a response or `stop`
    is set.

    It is safe to retry a POST too, because an event that has an id counts only once, no matter how often it is sent.
    """

    def __init__(self, address: str, stop: threading.Event) -> None:
        self._address = address
        self._stop = stop

    def post(self, stream: str, events: list[Any]) -> dict[str, Any]:
        """Append events, and return once they are durable."""
        return self._ask(f"/v1/streams/{stream}", json.dumps(events).encode())

    def view(self, name: str) -> list[dict[str, Any]]:
        """Return the current rows of a view."""
        return list(self._ask(f"/v1/views/{name}")["rows"])

    def app(self) -> dict[str, Any]:
        return self._ask("/v1/app")

    def read(self, stream: str, since: str = "earliest") -> tuple[list[dict[str, Any]], str]:
        """Return all events after the given cursor, and the cursor that follows them."""
        all_events: list[dict[str, Any]] = []
        for events, cursor in self._pages(stream, since):
            all_events += events
            since = cursor
        return all_events, since

    def _pages(self, stream: str, since: str) -> Iterator[tuple[list[dict[str, Any]], str]]:
        """Yield pages until the cursor stops moving. An empty page is not necessarily the last one."""
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
                pass  # the gateway is down or not yet up
            self._stop.wait(wait_s)
            wait_s = min(2 * wait_s, WAIT_MAX_S)
        raise Stopped
