"""The payer: pays each payment that is due exactly once, whenever it is killed and whatever the service does.

    python -m examples.paying.payer --to http://127.0.0.1:8080 --bank http://127.0.0.1:9000

It keeps nothing of its own. What it is about to do it says first, in the stream `attempts`, and it does it only after
the app has answered that this is durable. So the log knows more than the payer, never less: of a payment whose last
word is `sending`, and of no other, it is not known whether it was made. Such a payment is not sent again. The payer
waits until the order has run out, so that the service does not do it any more, and looks into the service's statement.
What is there is `paid`. What is not was certainly not done: it is `not paid`, and is sent anew after a while.

This needs three things of the service: that a transfer carries a memo, that it can be asked for by its memo, and that
an order can be given a time after which it is not done. Only one payer may run at a time, which a lock sees to. It
reads all of `attempts` when it starts; where that is long, it would begin at a cursor before which all is settled.
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
    """A payment that is not settled: its last attempt and what is known of it, and when to go on with it."""

    at: float
    payment: dict[str, Any] = field(compare=False)
    number: int = field(default=0, compare=False)
    in_doubt: bool = field(default=False, compare=False)


class Payer:
    """An order may be done for `valid_s` after it was sent, by the service's clock, which is taken to be like ours."""

    def __init__(self, client: Client, bank: str, valid_s: float, stop: threading.Event) -> None:
        self._client = client
        self._bank = bank
        self._valid_s = valid_s
        self._stop = stop
        self._open: list[Case] = []
        self._cursor = "earliest"

    def run(self) -> None:
        """Pay what is due, for ever."""
        known = self._recall()
        while not self._stop.is_set():
            payments, self._cursor = self._client.read("royalties.Payment", self._cursor)
            for payment in payments:
                self._take(payment, known.get(payment["payment_id"]))
            while self._open and self._open[0].at <= time.monotonic():
                self._go_on(heapq.heappop(self._open))
            self._stop.wait(POLL_S)

    def _recall(self) -> dict[str, dict[str, Any]]:
        """The last word of each payment, from the log: all that is left of a payer that was killed."""
        said, _ = self._client.read("attempts")
        return {attempt["payment_id"]: attempt for attempt in said}

    def _take(self, payment: dict[str, Any], last: dict[str, Any] | None) -> None:
        """Begin with a payment, or go on where the payer before had come to.

        Its order may have left that payer at the very last moment, so the time that it has counts from now.
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
        """Look after it when the order has run out: called after that was sent, so this is late enough."""
        case.in_doubt = True
        self._put(case, self._valid_s)

    def _go_on(self, case: Case) -> None:
        if case.in_doubt:
            self._look(case)
        else:
            self._send(case)

    def _send(self, case: Case) -> None:
        """Say it, then do it. If it had been said before, by whomever, it is in doubt and is not done."""
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
        """Settle a doubt by the service's statement; while that cannot be had, the doubt stays."""
        found = _statement(self._bank, case.payment["payment_id"])
        if found is None:
            self._put(case, WAIT_S)
        elif found:
            self._say(case, "paid")
        else:
            self._not_paid(case)

    def _not_paid(self, case: Case) -> None:
        self._say(case, "not paid")
        case.in_doubt = False
        self._put(case, min(WAIT_S * 2**case.number, WAIT_MAX_S))

    def _say(self, case: Case, phase: str) -> bool:
        """Write to the log; returns when it is durable, and whether it is news there."""
        payment_id = case.payment["payment_id"]
        attempt = {"payment_id": payment_id, "author": case.payment["author"], "number": case.number, "phase": phase}
        answer = self._client.post("attempts", [{"attempt_id": f"{payment_id}/{case.number}/{phase}", **attempt}])
        return bool(answer["accepted"])


def _order(bank: str, payment: dict[str, Any], until: float) -> int | None:
    """Order a transfer, once. The status of the answer, None if there was none."""
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
    """The transfers with a memo, None if the service does not say."""
    query = urllib.parse.urlencode({"memo": memo})
    try:
        with urllib.request.urlopen(f"{bank}/transfers?{query}", timeout=TIMEOUT_S) as answer:
            return list(json.load(answer))
    except (OSError, ValueError, http.client.HTTPException):
        return None


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Wait until no other payer runs. The lock goes with the process that holds it, however that ends."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.paying.payer", description="Pays what is due, once.")
    parser.add_argument("--to", required=True, metavar="URL", help="the address of the app")
    parser.add_argument("--bank", required=True, metavar="URL", help="the address of the payment service")
    parser.add_argument("--lock", type=Path, default=Path("payer.lock"), metavar="FILE", help="held by the one payer")
    parser.add_argument("--valid", type=float, default=0.5, metavar="SECONDS", help="how long an order may be done")
    chosen = parser.parse_args()
    stop = until_eof()
    with _alone(chosen.lock), suppress(Stopped, KeyboardInterrupt):
        Payer(Client(chosen.to, stop), chosen.bank, chosen.valid, stop).run()


if __name__ == "__main__":
    main()
