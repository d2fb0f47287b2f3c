"""A view as its readers see it: its rows, and a live sequence of its changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.contracts import Change, Delivery, LiveView
from penstock.cursor import ViewCursor, decode, view_cursor
from penstock.errors import BadCursor
from penstock.serve.pieces import EARLIEST, LATEST, join
from penstock.settings import Settings

CHECK_S = 1.0
"""How often a waiting follower looks whether the view was made anew: `wait` tells of versions only."""
MERGE_BYTES_MAX = 4 * 1024 * 1024
"""Changes merged into one for a reader that is behind: about 20 ms of a worker thread."""
_ANEW, _GONE = "the view was made anew", "the changes after this position are no longer kept"


class _Data(msgspec.Struct):
    upserts: list[msgspec.Raw]
    deletes: list[msgspec.Raw]


_decode_data = msgspec.json.Decoder(_Data).decode


@dataclass
class _Place:
    """Where one follower stands: the last version it has. A `lost` one has nothing and needs a snapshot.

    Every view is empty at version 0, so a client that got a `reset` but not the snapshot comes back to all of it.
    """

    generation: int
    version: int
    lost: bool = False
    stalled: bool = False

    @property
    def cursor(self) -> str:
        return view_cursor(self.generation, self.version)


class ViewChannel:
    """A `Channel` over one live view. Belongs to the view's event loop.

    A follower that keeps up gets one change a version. One that is more than `buffered_changes` versions behind is told
    so, and gets the changes in between merged to the latest value of each key, until it has caught up.
    `key` names the view's key columns in their order, as in the keys of its deletes.
    """

    def __init__(self, name: str, view: LiveView, settings: Settings, *, key: Sequence[str]) -> None:
        self.name = name
        self._view = view
        self._heartbeat_s = settings.heartbeat_s
        self._behind_max = max(1, settings.buffered_changes)
        self._key = tuple(key)
        self._encoded: Delivery | None = None

    async def page(self, since: str | None, limit: int) -> bytes:
        if since in (None, EARLIEST):
            return self._rows(limit, reset=False)
        place = self._locate(since)
        changes = self._view.changes(place.version, limit) if place else None
        if place is None or changes is None:
            return self._rows(limit, reset=True)
        if changes:
            place.version = changes[-1].version
        listed = join([change.data for change in changes])
        return b'{"changes":' + listed + b',"cursor":' + msgspec.json.encode(place.cursor) + b"}"

    def _rows(self, limit: int, *, reset: bool) -> bytes:
        """The first rows, in the view's order; `truncated` if there are more."""
        snapshot = self._view.snapshot()
        cursor = msgspec.json.encode(view_cursor(self._view.generation, snapshot.version))
        marks = (b',"reset":true' if reset else b"") + (b',"truncated":true' if len(snapshot.rows) > limit else b"")
        return b'{"rows":' + join(snapshot.rows[:limit]) + b',"cursor":' + cursor + marks + b"}"

    async def follow(self, since: str | None) -> AsyncIterator[Delivery]:
        """As the contract says. The first delivery comes at once: a snapshot, a change, or else a progress mark."""
        if since in (None, EARLIEST):
            place = _Place(self._view.generation, 0, lost=True)
        elif (found := self._locate(since)) is not None:
            place = found
        else:
            place = _Place(0, 0)
            yield self._start_over(place, _ANEW)
        if since == LATEST:
            yield _progress(place)
        else:
            yield await self._next(place, 0)
        while True:
            yield await self._next(place, self._heartbeat_s)

    def _locate(self, since: str | None) -> _Place | None:
        """The place that a cursor or `latest` names; None if it is of an earlier making of the view."""
        generation = self._view.generation
        if since is None or since == LATEST:
            return _Place(generation, self._view.version)
        cursor = decode(since)
        if not isinstance(cursor, ViewCursor):
            raise BadCursor("this cursor is of a stream, not of a view")
        return _Place(generation, cursor.version) if cursor.generation == generation else None

    async def _next(self, place: _Place, silence_s: float) -> Delivery:
        """The next delivery of a follower; a progress mark if there is none for so long."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + silence_s
        while True:
            delivery = await self._step(place)
            if delivery is not None:
                return delivery
            left_s = deadline - clock()
            if left_s <= 0:
                return _progress(place)
            await self._view.wait(place.version, min(left_s, CHECK_S))

    async def _step(self, place: _Place) -> Delivery | None:
        """What can be given now; None if that is nothing."""
        if self._view.generation != place.generation:
            return self._start_over(place, _ANEW)
        if place.lost:
            return self._snapshot(place)
        behind = self._view.version - place.version
        if behind == 0:
            return None
        if behind > self._behind_max and not place.stalled:
            place.stalled = True
            return Delivery("stall", msgspec.json.encode({"behind": behind}), place.cursor)
        place.stalled = place.stalled and behind > 1
        pending = self._view.changes(place.version, self._behind_max if place.stalled else 1)
        if not pending:
            return self._start_over(place, _GONE)
        change = await self._merged(pending) if len(pending) > 1 else pending[0]
        place.version = change.version
        return Delivery("change", change.data, place.cursor)

    async def _merged(self, pending: Sequence[Change]) -> Change:
        """The changes as one, as many of them as the bound on bytes allows, and at least the first."""
        size, chosen = 0, list[Change]()
        for change in pending:
            size += len(change.data)
            if chosen and size > MERGE_BYTES_MAX:
                break
            chosen.append(change)
        return await asyncio.to_thread(merge, chosen, self._key)

    def _snapshot(self, place: _Place) -> Delivery:
        """All rows, encoded once for all who ask at the same version."""
        snapshot = self._view.snapshot()
        place.version, place.lost = snapshot.version, False
        if self._encoded is None or self._encoded.cursor != place.cursor:
            self._encoded = Delivery("snapshot", b'{"rows":' + join(snapshot.rows) + b"}", place.cursor)
        return self._encoded

    def _start_over(self, place: _Place, reason: str) -> Delivery:
        place.generation, place.version, place.lost = self._view.generation, 0, True
        return Delivery("reset", msgspec.json.encode({"reason": reason}), place.cursor)


def merge(changes: Sequence[Change], key: tuple[str, ...]) -> Change:
    """One change with the effect of all of them: the latest row of each key, or its delete."""
    rows: dict[bytes, tuple[bool, msgspec.Raw]] = {}
    for change in changes:
        data = _decode_data(change.data)
        for deleted, items in ((False, data.upserts), (True, data.deletes)):
            for item in items:
                rows[_name(item, key)] = (deleted, item)
    upserts = [bytes(row) for deleted, row in rows.values() if not deleted]
    deletes = [bytes(row) for deleted, row in rows.values() if deleted]
    return Change(changes[-1].version, b'{"upserts":' + join(upserts) + b',"deletes":' + join(deletes) + b"}")


def _name(item: msgspec.Raw, key: tuple[str, ...]) -> bytes:
    row: dict[str, Any] = msgspec.json.decode(item)
    return msgspec.json.encode([row[column] for column in key])


def _progress(place: _Place) -> Delivery:
    return Delivery("progress", b"{}", place.cursor)
