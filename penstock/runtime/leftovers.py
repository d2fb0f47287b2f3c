"""Finds the data of declarations that are no longer in the app."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.app.app import App
from penstock.app.fingerprints.stored import Prints
from penstock.app.fingerprints.verdicts import Sort
from penstock.app.graph import order
from penstock.runtime.storage import Storage

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Leftover:
    """All leftover data that a storage has under one name."""

    sort: Sort
    name: str
    size_bytes: int

    @property
    def size_text(self) -> str:
        return size_text(self.size_bytes)


def size_text(size: float) -> str:
    """Format a number of bytes in a readable form, such as `1.5 MiB`."""
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == UNITS[0] else f"{size:.1f} {unit}"


def leftovers(app: App, storage: Storage, known: Prints) -> list[Leftover]:
    """Return the data stored under names that the app does not declare, sorted by name."""
    declared = {stream.name for stream in app.streams} | {node.name for node in order(app)}
    stored = storage.stored()
    names = {*stored, *known.streams, *known.views, *known.handlers} - declared
    return [Leftover(_leftover_sort(name, storage, known), name, stored.get(name, 0)) for name in sorted(names)]


def other_sort(name: str, sort: Sort, storage: Storage, known: Prints) -> str | None:
    """Return why a declaration cannot use the data stored under its name, if a different sort of declaration wrote the
    data.

    A view's state, checkpoint and batch numbers mean nothing to a handler, and the events in a declared stream are not
    those that a handler with the same name would emit. Returns None if there is no data under the name, or if the same
    sort of declaration wrote it.
    """
    before = _leftover_sort(name, storage, known)
    known_stream = sort == "stream" and name in known.streams
    if before == sort or known_stream or name not in storage.stored():
        return None
    kinds = {"stream": "a stream", "view": "a Spark view", "handler": "a handler (windows and rollups are handlers)"}
    return f"it was {kinds[before]} and is now {kinds[sort]}, which cannot use the stored data"


def _leftover_sort(name: str, storage: Storage, known: Prints) -> Sort:
    """Return the sort of declaration that wrote the data stored under a name: a stream if nothing was computed."""
    computed = storage.stored_sort(name)
    if name in known.handlers or computed == "handler":
        return "handler"
    return "view" if name in known.views or computed == "view" else "stream"
