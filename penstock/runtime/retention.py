"""Decide which events retention may delete: never events that a view or handler still needs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from penstock.app.app import App
from penstock.app.declared import Handler, Stream, View
from penstock.app.graph import log_inputs, order
from penstock.core.contracts import LedgerEntry, LogReader, Retention
from penstock.core.cursor import source_positions
from penstock.core.settings import Settings
from penstock.runtime.storage import Storage


def floor(app: App, storage: Storage, log: LogReader, stream: str) -> Mapping[int, int]:
    """Return the lowest offset in each partition that must be kept. A partition without an entry is needed by nothing.

    A view or handler might have to read again from the start of its last batch, which might run again after a crash. A
    view or handler that has not yet run a second batch needs everything from the first kept offset on. Rows that a
    running rebuild has to read are kept too.
    """
    lowest: dict[int, int] = dict(storage.held_back(stream))
    for node in order(app):
        if stream not in log_inputs(app, node):
            continue
        entry = last_entry(storage, node)
        needed = source_positions(entry.start).get(stream) if entry is not None else None
        for partition, offset in (needed or log.starts(stream)).items():
            lowest[partition] = min(offset, lowest.get(partition, offset))
    return lowest


def last_entry(storage: Storage, node: View | Handler) -> LedgerEntry | None:
    """Return the last batch of a view or handler, or None if it has never run."""
    if isinstance(node, View):
        return storage.view_entry(node.name)
    handled = storage.handled(node.name)
    return handled.entry if handled is not None else None


def dead_letters(settings: Settings) -> Retention:
    """Return the retention for dead letters: by age, and with a smaller size limit, because no view reads them."""
    return Retention(timedelta(days=settings.keep_days), settings.rejected_bytes, {})


def retention(declared: Stream | None, settings: Settings, floor: Mapping[int, int]) -> Retention:
    """Return how much of a stream's events to keep, according to its declaration or else the settings."""
    age = declared.keep if declared is not None and declared.keep is not None else timedelta(days=settings.keep_days)
    size = declared.keep_bytes if declared is not None and declared.keep_bytes is not None else settings.keep_bytes
    return Retention(age, size, floor)
