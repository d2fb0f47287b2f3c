"""A realistic payment service: it fails, it hangs, and if it receives an order twice, it pays twice.

`POST /transfers` with `{"to", "cents", "memo", "until"}` makes a transfer and responds with 200, unless something goes
wrong. After a 500, a broken connection or a timeout, the client cannot know whether the transfer was made. Only after
503 (busy) and 410 (too late) is it certain that no transfer was made. `GET /transfers?memo=TEXT` lists the completed
transfers. A transfer is either made and listed before `until`, in seconds since 1970, or never.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

SLOW_S = 0.3
"""The delay of a slow response, longer than clients wait."""
FAULTS = {
    "none": 60,
    "busy": 5,
    "fails before": 6,
    "fails after": 6,
    "breaks before": 6,
    "breaks after": 6,
    "hangs after": 6,
    "late": 5,
}
Moment = Callable[[str], None]


class Bank:
    """The service's books: a list of transfers, stored in a file that outlives the process."""

    def __init__(self, book: Path, seed: int, moment: Moment = lambda name: None) -> None:
        """`moment` is called when a request arrives, after it is executed, and after the response; a test uses it to
        kill the client at these moments."""
        self._book = book
        self._random = Random(seed)
        self._lock = threading.Lock()
        self.moment = moment
        self.transfers: list[dict[str, Any]] = []
        if book.exists():
            self.transfers = [json.loads(line) for line in book.read_text().splitlines()]

    def fault(self) -> str:
        with self._lock:
            return self._random.choices(list(FAULTS), list(FAULTS.values()))[0]

    def transfer(self, order: dict[str, Any]) -> bool:
        """Make a transfer, unless it is too late. Duplicates are not detected: that is the client's responsibility."""
        with self._lock:
            if time.time() > order["until"]:
                return False
            with open(self._book, "a") as book:
                book.write(json.dumps(order) + "\n")
            self.transfers.append(order)
            return True

    def statement(self, memo: str | None) -> list[dict[str, Any]]:
        with self._lock:
            return [transfer for transfer in self.transfers if memo in (None, transfer["memo"])]


class _Teller(BaseHTTPRequestHandler):
    """Handles one connection."""

    bank: Bank

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        self._answer(200, self.bank.statement(query.get("memo", [None])[0]))

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        bank, fault = self.bank, self.bank.fault()
        bank.moment("order arrived")
        if fault == "late":
            time.sleep(SLOW_S)
        done = fault not in ("busy", "fails before", "breaks before") and bank.transfer(order)
        if done:
            bank.moment("order done")
        if fault.startswith("breaks"):
            self._break()
            return
        if fault == "hangs after":
            time.sleep(SLOW_S)
        status = {"busy": 503, "fails before": 500, "fails after": 500}.get(fault, 200 if done else 410)
        self._answer(status, {"done": True} if status == 200 else {"error": "try again later"})
        bank.moment("order answered")

    def _answer(self, status: int, body: Any) -> None:
        try:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())
        except OSError:
            self.close_connection = True  # the client has disconnected

    def _break(self) -> None:
        """Close the connection without a response, so the client gets a connection reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serving(bank: Bank) -> AbstractContextManager[str]:
    """Run the service in a thread for the duration of the block, and yield its address."""
    return answering(type("Teller", (_Teller,), {"bank": bank}))


@contextmanager
def answering(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server on a free port in a thread for the duration of the block, and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
