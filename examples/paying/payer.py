"""The payer: makes each payment that is due exactly once, even if it is killed or the service fails.

    python -m examples.paying.payer --to http://127.0.0.1:8080 --bank http://127.0.0.1:9000

The payer itself stores nothing. Before it sends an order, it appends an attempt to the stream `attempts`, and continues
only after the app has confirmed that the attempt is durable. So the log always contains at least as much as the payer
knows, and only payments whose last attempt is `sending` are in doubt. These are not simply sent again. The payer waits
until the order has expired, so that the service can no longer execute it, and looks it up in the service's statement.
If the order is listed, the payment is `paid`. If it is not, it was certainly never executed: the payment is `not paid`,
and the payer tries again after a while.

The service must meet three requirements: each transfer has a memo, transfers can be looked up by memo, and an order can
have an expiry time after which it is not executed. Only one payer can run at a time; a lock ensures this. At startup,
the payer reads the whole stream `attempts`. If the stream is long, start from a cursor before which all payments are
settled.
"""

from __future__ import annotations

import argparse
import fcntl
import heapq
import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.client import Client, Stopped, until_eof

TIMEOUT_S = 0.2
POLL_S = 0.1
NOTHING_DONE = frozenset({410, 503})
WAIT_S = 0.1
WAIT_MAX_S = 5.0


@dataclass(order=True)
class Case:
    """An unsettled payment: its last attempt, whether it is in doubt, and when to continue with it."""

    at: float
    payment: dict[str, Any] = field(compare=False)
    number: int = field(default=0, compare=False)
    in_doubt: bool = field(default=False, compare=False)


class Payer:
    """Makes the payments that are due. An order is valid for `valid_s` seconds after it is sent. The service's clock
    decides, and is assumed to agree with ours."""

    def __init__(self, client: Client, bank: str, valid_s: float, stop: threading.Event) -> None:
        self._client = client
        self._bank = bank
        self._valid_s = valid_s
        self._stop = stop
        self._open: list[Case] = []
        self._cursor = "earliest"

    def run(self) -> None:
        """Make payments as they become due, forever."""
        known = self._recall()
        while not self._stop.is_set():
            payments, self._cursor = self._client.read("royalties.Payment", self._cursor)
            for payment in payments:
                self._take(payment, known.get(payment["payment_id"]))
            while self._open and self._open[0].at <= time.monotonic():
                self._go_on(heapq.heappop(self._open))
            self._stop.wait(POLL_S)

    def _recall(self) -> dict[str, dict[str, Any]]:
        """Return the last attempt of each payment, as recorded in the log. This is all that a killed payer leaves
        behind."""
        said, _ = self._client.read("attempts")
        return {attempt["payment_id"]: attempt for attempt in said}

    def _take(self, payment: dict[str, Any], last: dict[str, Any] | None) -> None:
        """Start a payment, or continue where the previous payer stopped.

        The previous payer may have sent the order just before it was killed, so the expiry time is counted from now.
        """
        if last is None:
            self._put(Case(0.0, payment))
        elif last["phase"] == "not paid":
            self._put(Case(0.0, payment, last["number"]))
        elif last["phase"] == "sending":
            self._doubt(Case(0.0, payment, last["number"]))

    def _put(self, case: Case, after_s: float = 0.0) -> None:
        case.at = time.monotonic() + after_s
        heapq.heappush(self._open, case)

    def _doubt(self, case: Case) -> None:
        """Schedule a lookup for when the order has expired. This is called after the order was sent, so the lookup is
        never too early."""
        case.in_doubt = True
        self._put(case, self._valid_s)

    def _go_on(self, case: Case) -> None:
        if case.in_doubt:
            self._look(case)
        else:
            self._send(case)

    def _send(self, case: Case) -> None:
        """Record the attempt, then send the order. If the attempt has already been recorded, by any payer, the payment
        is in doubt and the order is not sent."""
        case.number += 1
        if not self._say(case, "sending"):
            self._doubt(case)
            return
        status = _order(self._bank, case.payment, time.time() + self._valid_s)
        if status == 200:
            self._say(case, "paid")
        elif status in NOTHING_DONE:
            self._not_paid(case)
        else:
            self._doubt(case)

    def _look(self, case: Case) -> None:
        """Settle a payment that is in doubt by looking at the service's statement. If the service does not respond, the
        payment stays in doubt."""
        transfers = _statement(self._bank, case.payment["payment_id"])
        if transfers is None:
            self._put(case, WAIT_S)
        elif transfers:
            self._say(case, "paid")
        else:
            self._not_paid(case)

    def _not_paid(self, case: Case) -> None:
        self._say(case, "not paid")
        case.in_doubt = False
        self._put(case, min(WAIT_S * 2**case.number, WAIT_MAX_S))

    def _say(self, case: Case, phase: str) -> bool:
        """Append an attempt to the log. Returns once it is durable; the result is True if the attempt was new."""
        payment_id = case.payment["payment_id"]
        attempt = {"payment_id": payment_id, "author": case.payment["author"], "number": case.number, "phase": phase}
        answer = self._client.post("attempts", [{"attempt_id": f"{payment_id}/{case.number}/{phase}", **attempt}])
        return bool(answer["accepted"])


def _order(bank: str, payment: dict[str, Any], until: float) -> int | None:
    """Send an order for a transfer once. Return the status code of the response, or None if there was no response."""
    order = {"to": payment["author"], "cents": payment["cents"], "memo": payment["payment_id"], "until": until}
    try:
        with urllib.request.urlopen(f"{bank}/transfers", json.dumps(order).encode(), TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, http.client.HTTPException):
        return None


def _statement(bank: str, memo: str) -> list[Any] | None:
    """Return the transfers that have the given memo, or None if the service does not respond."""
    query = urllib.parse.urlencode({"memo": memo})
    try:
        with urllib.request.urlopen(f"{bank}/transfers?{query}", timeout=TIMEOUT_S) as answer:
            return list(json.load(answer))
    except (OSError, ValueError, http.client.HTTPException):
        return None


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Block until no other payer is running. The lock is released when the process that holds it exits, for whatever
    reason."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.paying.payer", description="Makes each payment that is due exactly once."
    )
    parser.add_argument("--to", required=True, metavar="URL", help="address of the app")
    parser.add_argument("--bank", required=True, metavar="URL", help="address of the payment service")
    parser.add_argument(
        "--lock", type=Path, default=Path("payer.lock"), metavar="FILE", help="the running payer's lock file"
    )
    parser.add_argument("--valid", type=float, default=0.5, metavar="SECONDS", help="how long an order is valid")
    chosen = parser.parse_args()
    stop = until_eof()
    with _alone(chosen.lock), suppress(Stopped, KeyboardInterrupt):
        Payer(Client(chosen.to, stop), chosen.bank, chosen.valid, stop).run()


if __name__ == "__main__":
    main()
