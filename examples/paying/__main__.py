"""`python -m examples.paying`: runs the sales, the payment service and the payer for an app that is already running,
until standard input is closed."""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.client import Client, Stopped, until_eof
from examples.paying.bank import Bank, serving
from examples.paying.books import cents, money, reconciliation, settled
from examples.paying.sales import Message, sell

SEND_S = 0.25
TELL_S = 5.0
LOOK_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.paying", description="Sales, a bank and a payer.")
    parser.add_argument("--to", required=True, metavar="URL", help="address of the app")
    parser.add_argument("--books", required=True, type=Path, metavar="DIR", help="folder for the service's books")
    parser.add_argument("--seed", type=int, default=1, help="random seed for sales and faults")
    parser.add_argument("--rate", type=float, default=20.0, help="sales per second")
    parser.add_argument("--sales", type=int, default=400, help="number of sales")
    parser.add_argument(
        "--kill-every", type=float, default=4.0, metavar="S", help="kill -9 the payer every S seconds; 0: never"
    )
    chosen = parser.parse_args()
    chosen.books.mkdir(parents=True, exist_ok=True)
    bank, stop = Bank(chosen.books / "transfers.jsonl", chosen.seed), until_eof()
    with suppress(Stopped, KeyboardInterrupt), serving(bank) as address:
        client = Client(chosen.to, stop)
        while client.app()["state"] == "starting":
            stop.wait(LOOK_S)
        with paying(chosen, address) as killed:
            stage = Stage(client, bank, killed, stop)
            stage.sell(itertools.islice(sell(chosen.seed, datetime.now(UTC), chosen.rate), chosen.sales))
            stage.settle()
            stop.wait()


@contextmanager
def paying(chosen: argparse.Namespace, bank: str) -> Iterator[list[int]]:
    """Run the payer for the duration of the block, and kill and restart it at regular intervals. Yield the list of the
    process ids that were killed."""
    options = ["--to", chosen.to, "--bank", bank, "--lock", str(chosen.books / "payer.lock")]
    command = [sys.executable, "-m", "examples.paying.payer", *options]
    killed: list[int] = []
    ended = threading.Event()

    def keep() -> None:
        while not ended.is_set():
            with subprocess.Popen(command, stdin=subprocess.PIPE) as one:
                if ended.wait(chosen.kill_every or None):
                    return  # leaving the block closes the payer's input, so it exits
                one.kill()
                killed.append(one.pid)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


class Stage:
    """One run of the demo, including the lines that it prints."""

    def __init__(self, client: Client, bank: Bank, killed: list[int], stop: threading.Event) -> None:
        self._client = client
        self._bank = bank
        self._killed = killed
        self._stop = stop
        self._reported_at = time.monotonic()

    def sell(self, messages: Iterator[Message]) -> None:
        """Send each sale when it is due. Sales that are due at the same time are sent in one request."""
        waiting: list[dict[str, Any]] = []
        for message in messages:
            early_s = (message.at - datetime.now(UTC)).total_seconds()
            if waiting and early_s > 0:
                self._client.post("sales", waiting)
                waiting = []
                self._tell()
                self._stop.wait(early_s + SEND_S)
            waiting.append(message.sale)
        if waiting:
            self._client.post("sales", waiting)
        print("royalties: all sales are done; paying what is still owed", flush=True)

    def settle(self) -> None:
        """Wait until the app's books show all earnings as paid, and compare them with the service's books."""
        sold, _ = self._client.read("sales")
        while not settled(rows := self._client.view("authors"), sold):
            self._tell()
            if self._stop.wait(LOOK_S):
                return
        print(reconciliation(rows, self._bank.statement(None)), flush=True)
        print(f"the payer was killed {len(self._killed)} times in total; press Ctrl-C to stop the app", flush=True)

    def _tell(self) -> None:
        if time.monotonic() < self._reported_at + TELL_S:
            return
        self._reported_at = time.monotonic()
        rows = self._client.view("authors")
        earned, paid = (money(sum(cents(row[name]) for row in rows)) for name in ("earned", "paid"))
        count, kills = len(self._bank.statement(None)), len(self._killed)
        print(f"royalties: earned {earned}, paid {paid} in {count} transfers; payer killed {kills} times", flush=True)


if __name__ == "__main__":
    main()
