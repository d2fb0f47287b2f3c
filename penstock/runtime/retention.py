"""What may be trimmed: never anything that a view or handler still needs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from penstock.app import App
from penstock.contracts import LedgerEntry, LogReader, Retention
from penstock.cursor import source_positions
from penstock.declared import Handler, Stream, View
from penstock.graph import log_inputs, order
from penstock.runtime.directory import DataDirectory
from penstock.runtime.hold import held
from penstock.settings import Settings
from penstock.store import ledger, read_handled


def floor(app: App, directory: DataDirectory, log: LogReader, stream: str) -> Mapping[int, int]:
    """The lowest offset of each partition that a view or handler may have to read again; empty if none reads it.

    That is the start of its last batch, since after a crash that batch may run again. One that has no second batch yet
    needs everything from the first kept offset on. What a rebuild under way has to read is needed as well.
    """
    lowest: dict[int, int] = dict(held(directory, stream))
    for node in order(app):
        if stream not in log_inputs(app, node):
            continue
        entry = last_entry(directory, node)
        needed = source_positions(entry.start).get(stream) if entry is not None else None
        for partition, offset in (needed or log.starts(stream)).items():
            lowest[partition] = min(offset, lowest.get(partition, offset))
    return lowest


def last_entry(directory: DataDirectory, node: View | Handler) -> LedgerEntry | None:
    """The last batch of a view or handler; None if it has never run."""
    if isinstance(node, View):
        return ledger(directory.view_file(node.name))
    handled = read_handled(directory.handler_ledger(node.name))
    return handled.entry if handled is not None else None


def dead_letters(settings: Settings) -> Retention:
    """Dead letters go by age and by a smaller size: no view reads them."""
    return Retention(timedelta(days=settings.keep_days), settings.rejected_bytes, {})


def retention(declared: Stream | None, settings: Settings, floor: Mapping[int, int]) -> Retention:
    """What a stream's declaration, or else the settings, allow to keep."""
    age = declared.keep if declared is not None and declared.keep is not None else timedelta(days=settings.keep_days)
    size = declared.keep_bytes if declared is not None and declared.keep_bytes is not None else settings.keep_bytes
    return Retention(age, size, floor)
