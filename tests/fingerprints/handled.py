"""The ledger of a handler, as a run would have left it."""

from __future__ import annotations

from typing import Any

from penstock.core.contracts import LedgerEntry
from penstock.runtime.embedded.directory import DataDirectory
from penstock.store import Done, HandlerLedger


def handle_a_batch(directory: DataDirectory, handler: str, shape: Any, *, half_done: bool = False) -> None:
    """Write a ledger with one batch in it, and an interrupted second one if it is `half_done`."""
    path = directory.handler_ledger(handler)
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger = HandlerLedger(path, 2, '[{"orders/0":0,"orders/1":0}]', shape)
    end = '[{"orders/0":1,"orders/1":1}]'
    entry = LedgerEntry(0, ledger.state.origin, end, 1)
    if ledger.last() is None:
        ledger.commit(entry, Done(1, end), {}, 1, 0)
    if half_done:
        ledger.intend(entry)
    ledger.close()
