"""A stand-in for the app's API, for the payer: two streams in memory, over real HTTP.

It answers as the app does: an event with a known id is a duplicate.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from examples.paying.bank import answering

Moment = Callable[[str], None]


class Door:
    """The streams. `moment` is called when an attempt has arrived, is stored, and was answered."""

    def __init__(self, payments: list[dict[str, Any]], moment: Moment = lambda name: None) -> None:
        self.streams: dict[str, list[dict[str, Any]]] = {"royalties.Payment": payments, "attempts": []}
        self.moment = moment
        self._lock = threading.Lock()

    def add(self, attempt: dict[str, Any]) -> bool:
        with self._lock:
            attempts = self.streams["attempts"]
            known = any(earlier["attempt_id"] == attempt["attempt_id"] for earlier in attempts)
            if not known:
                attempts.append(attempt)
            return not known


class _Keeper(BaseHTTPRequestHandler):
    door: Door

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        since = parse_qs(url.query)["since"][0]
        events = self.door.streams[url.path.rpartition("/")[2]]
        start = 0 if since == "earliest" else int(since)
        self._answer({"events": events[start:], "cursor": str(len(events))})

    def do_POST(self) -> None:
        [attempt] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.door.moment(f"{attempt['phase']} arrived")
        accepted = self.door.add(attempt)
        self.door.moment(f"{attempt['phase']} kept")
        self._answer({"accepted": int(accepted), "duplicates": int(not accepted)})
        self.door.moment(f"{attempt['phase']} answered")

    def _answer(self, body: Any) -> None:
        try:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())
        except OSError:
            self.close_connection = True  # the sender was killed

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serving(door: Door) -> AbstractContextManager[str]:
    return answering(type("Keeper", (_Keeper,), {"door": door}))
