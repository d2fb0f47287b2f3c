"""A view as its readers see it: its rows, and a live sequence of its changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from penstock.contracts import Change, Delivery, LiveView, Page, Style
from penstock.cursor import ViewCursor, decode, view_cursor
from penstock.errors import BadCursor, Busy
from penstock.serve.channels.cuts import INLINE_ROWS, Cuts, Offered, Unknown, changed, cut, cut_all, decode_data, looks
from penstock.serve.channels.front import CHECK_S, Front, Fronts
from penstock.serve.channels.lens import NOTHING, InUse, Lens, lens_on
from penstock.serve.channels.ordering import ordered
from penstock.serve.channels.pieces import EARLIEST, LATEST, join
from penstock.serve.channels.ranges import Range
from penstock.serve.channels.threads import for_reader
from penstock.settings import Settings

MERGE_BYTES_MAX = 4 * 1024 * 1024
"""Changes merged into one for a reader that is behind: about 20 ms of a worker thread."""
PAGE_BYTES_MAX = 8 * 1024 * 1024
"""Changes in one page, if they are more than one."""
_ANEW, _GONE = "the view was made anew", "the changes after this position are no longer kept"
_OTHER = "another part of the view is shown here now"
_UNSEEN = "what of these changes you may see is no longer known"


@dataclass
class _Place:
    """Where one follower stands: the last version it has. A `lost` one has nothing and needs a snapshot.

    Every view is empty at version 0, so a client that got a `reset` but not the snapshot comes back to all of it.
    """

    generation: int
    version: int
    sight: bytes
    lost: bool = False
    stalled: bool = False
    given_at: float = 0.0

    @property
    def cursor(self) -> str:
        return view_cursor(self.generation, self.version, self.sight)


class _Whole(NamedTuple):
    """All rows of a view, as the beginning of an answer."""

    listed: bytes
    tag: str

    @classmethod
    def of(cls, rows: Sequence[bytes]) -> _Whole:
        listed = b'{"rows":' + join(rows)
        return cls(listed, blake2b(listed, digest_size=12).hexdigest())


class _Shared:
    """What all who read one view have in common."""

    def __init__(self, name: str, view: LiveView, settings: Settings, key: tuple[str, ...]) -> None:
        self.name, self.view, self.settings, self.key = name, view, settings, key
        self.changes: Cuts[Change | None] = Cuts(lambda change: 0 if change is None else len(change.data))
        self.rows: Cuts[list[bytes]] = Cuts(lambda rows: 64 * len(rows) + sum(map(len, rows)))
        self.snapshots: Cuts[bytes] = Cuts(len)
        self.wholes: Cuts[_Whole] = Cuts(lambda whole: len(whole.listed))
        self.encoded: Delivery | None = None
        self.lenses = InUse(name, settings.filters_max)
        self.fronts = Fronts(name, view, key, self.lenses, kept_max=max(1, settings.buffered_changes))


class ViewChannel:
    """A `Channel` over one live view. Belongs to the view's event loop.

    A follower that keeps up gets one change a version. One that is more than `buffered_changes` versions behind is told
    so, and gets the changes in between merged to the latest value of each key, until it has caught up.
    `key` names the view's key columns in their order, as in the keys of its deletes.
    """

    def __init__(self, name: str, view: LiveView, settings: Settings, *, key: Sequence[str]) -> None:
        self.name = name
        self._view = view
        self._shared = _Shared(name, view, settings, tuple(key))
        self._heartbeat_s = settings.heartbeat_s
        self._behind_max = max(1, settings.buffered_changes)
        self._changes_max = min(settings.page_events, settings.page_events_max)
        self._lens = NOTHING
        self._who = ""
        self._range: Range | None = None

    def describe(self) -> dict[str, int]:
        """How it is read, for the figures of the app."""
        return self._shared.lenses.describe()

    def through(self, where: str | None, select: str | None) -> ViewChannel:
        return self._seen_by(self._lens_on().through(where, select))

    def asked_by(self, who: str) -> ViewChannel:
        seen = copy(self)
        seen._who = who
        return seen

    def part(self, where: str | None, select: str | None) -> ViewChannel:
        return self._seen_by(self._lens_on().part(where, select))

    def limited(self, where: str, claims: Mapping[str, Any]) -> ViewChannel:
        return self._seen_by(self._lens_on().limited(where, claims))

    def within(self, wanted: Range) -> ViewChannel:
        """The channel of a rollup with the rows of a range only: found by their place, which a filter would look for
        in all of them. Changes have no such order: what `follow` gives is all of them."""
        seen = self._seen_by(self._lens)
        seen._range = wanted
        return seen

    def _lens_on(self) -> Lens:
        return self._lens if self._lens is not NOTHING else lens_on(self.name, self._view.schema, self._shared.key)

    def _seen_by(self, lens: Lens) -> ViewChannel:
        seen = copy(self)
        seen._lens = lens
        return seen

    async def page(self, since: str | None, limit: int | None, wait_s: float = 0, order: str | None = None) -> Page:
        if since in (None, EARLIEST):
            return await self._rows(limit, reset=False, order=order)
        place = self._locate(since)
        deadline = asyncio.get_running_loop().time() + wait_s
        while isinstance(place, _Place):
            try:
                changes = await self._pending(place, limit or self._changes_max)
            except Unknown:
                break
            if changes is None:
                break
            left_s = deadline - asyncio.get_running_loop().time()
            if changes or left_s <= 0:
                return _changes_page(changes, place)
            await self._view.wait(place.version, min(left_s, CHECK_S))
            if self._view.generation != place.generation:
                break
        return await self._rows(limit, reset=True, order=order)

    async def last(self, limit: int) -> Page:
        return await self._rows(limit, reset=False, order=None)

    async def _pending(self, place: _Place, limit: int) -> list[Change] | None:
        """Up to `limit` changes that are seen, and the place moved past them; None if some are no longer kept."""
        found, size = list[Change](), 0
        while len(found) < limit and size < PAGE_BYTES_MAX:
            pending = self._view.changes(place.version, limit - len(found))
            if pending is None or self._view.generation != place.generation:
                return None
            if not pending:
                break
            some = _first(pending, PAGE_BYTES_MAX - size)
            seen = await self._cut_all(some, place.generation)
            found += seen
            size += sum(len(each.data) for each in seen)
            place.version = some[-1].version
            await asyncio.sleep(0)  # there may be thousands that are not seen
        return found

    async def _rows(self, limit: int | None, *, reset: bool, order: str | None) -> Page:
        """The first rows, in the view's order or the one that is asked for; `truncated` if there are more."""
        if limit is None and order is None and self._range is None:
            return await self._whole(reset=reset)
        generation = self._view.generation
        version, rows = await self._seen_rows()
        if order is not None:
            rows = await for_reader(self._who, ordered, rows, self._lens_on().shown, order)
        cursor = view_cursor(generation, version, self._lens.sight)
        listed = b'{"rows":' + join(rows[:limit])
        more = limit is not None and len(rows) > limit
        marks = (b',"reset":true' if reset else b"") + (b',"truncated":true' if more else b"")
        tag = blake2b(listed + marks, digest_size=12).hexdigest()
        return Page(listed + b',"cursor":' + msgspec.json.encode(cursor) + marks + b"}", cursor, tag)

    async def _whole(self, *, reset: bool) -> Page:
        """All rows that are seen, encoded once for all who ask for them at the same version."""
        generation = self._view.generation
        version, rows = await self._seen_rows()
        whole = await self._shared.wholes.get(
            self._lens, generation, version, len(rows), lambda: _Whole.of(rows), self._who
        )
        cursor = view_cursor(generation, version, self._lens.sight)
        marks = b',"reset":true' if reset else b""
        end = b',"cursor":' + msgspec.json.encode(cursor) + marks + b"}"
        return Page(whole.listed, cursor, whole.tag + (".reset" if reset else ""), end)

    async def _seen_rows(self) -> tuple[int, Sequence[bytes]]:
        """The rows that are seen, and their version."""
        self._require_fit()
        snapshot = self._view.snapshot()
        rows = snapshot.rows if self._range is None else self._range.of(snapshot.rows)
        if not self._lens:
            return snapshot.version, rows
        lens = self._lens

        def look() -> list[bytes]:
            return [row for row in lens.json_rows(rows) if row is not None]

        if self._range is not None:
            return snapshot.version, await for_reader(self._who, look)
        generation = self._view.generation
        return snapshot.version, await self._shared.rows.get(
            lens, generation, snapshot.version, len(rows), look, self._who
        )

    async def _cut_all(self, changes: Sequence[Change], generation: int) -> list[Change]:
        """What is seen of changes, which are of this making of the view, though by now there may be another. A single
        one is what many ask for at the same time; more of them are one reader's own way."""
        lens, key = self._lens, self._shared.key
        if not lens:
            return list(changes)
        cost = sum(map(looks, changes))
        if len(changes) == 1:
            (change,) = changes
            seen = await self._shared.changes.get(
                lens, generation, change.version, cost, lambda: cut(change, lens, key), self._who
            )
            return [] if seen is None else [seen]
        if cost <= INLINE_ROWS:
            return cut_all(Offered(changes), lens, key)
        return await for_reader(self._who, lambda: cut_all(Offered(changes), lens, key))

    async def follow(self, since: str | None, style: Style | None = None) -> AsyncIterator[Delivery]:
        """As the contract says. The first delivery comes at once: a snapshot, a change, or else a progress mark."""
        style = style or Style()
        with self._shared.fronts.attached(self._lens, self._who) as front:
            if since in (None, EARLIEST):
                place = self._place(0, lost=True)
            elif isinstance(found := self._locate(since), _Place):
                place = found
            else:
                place = self._place(0)
                yield self._start_over(place, found)
            if since == LATEST:
                yield _progress(place)
            else:
                yield await self._next(place, front, style, 0)
            while True:
                yield await self._next(place, front, style, self._heartbeat_s)

    def _place(self, version: int, *, lost: bool = False) -> _Place:
        return _Place(self._view.generation, version, self._lens.sight, lost)

    def _locate(self, since: str | None) -> _Place | str:
        """The place that a cursor or `latest` names; or why there is none such any more."""
        if since is None or since == LATEST:
            return self._place(self._view.version)
        cursor = decode(since)
        if not isinstance(cursor, ViewCursor):
            raise BadCursor("this cursor is of a stream, not of a view")
        if cursor.generation != self._view.generation:
            return _ANEW
        return self._place(cursor.version) if cursor.sight == self._lens.sight else _OTHER

    async def _next(self, place: _Place, front: Front, style: Style, silence_s: float) -> Delivery:
        """The next delivery of a follower; a progress mark if there is none for so long."""
        clock = asyncio.get_running_loop().time
        place.given_at = clock()
        while True:
            version = place.version
            delivery = await self._step(place, front, style)
            if delivery is not None:
                return delivery
            left_s = place.given_at + silence_s - clock()
            if left_s <= 0:
                return _progress(place)
            if place.version == version:
                await front.waiting.wait(place, None if style.merge else style.take, left_s)

    async def _step(self, place: _Place, front: Front, style: Style) -> Delivery | None:
        """What can be given now; None if that is nothing, or nothing that is seen."""
        if self._view.generation != place.generation:
            return self._start_over(place, _ANEW)
        if place.lost:
            return await self._snapshot(place)
        if place.version <= self._view.version and front.covers(place):
            return await self._from_front(place, front, style)
        behind = self._view.version - place.version
        if behind == 0:
            return None
        if behind > self._behind_max and not place.stalled:
            place.stalled = True
            self._shared.lenses.stalls += 1
            return Delivery("stall", msgspec.json.encode({"behind": behind}), place.cursor)
        place.stalled = place.stalled and behind > 1
        pending = self._view.changes(place.version, self._behind_max if place.stalled or style.merge else 1)
        if not pending:
            return self._start_over(place, _GONE)
        some = _first(pending, MERGE_BYTES_MAX)
        try:
            data = await self._as_one(await self._cut_all(some, place.generation))
        except Unknown:
            return self._start_over(place, _UNSEEN)
        place.version = some[-1].version
        return Delivery("change", data, place.cursor) if data else None

    async def _from_front(self, place: _Place, front: Front, style: Style) -> Delivery | None:
        """What the front has after a place: the next, or all of it if it is to be merged."""
        if front.error is not None:
            raise front.error
        merges = style.merge or place.stalled
        found = front.after(place.version, self._behind_max if merges else 1)
        if not found:
            place.version, place.stalled = max(place.version, front.reached), False
            return None
        if len(found) == 1:
            place.version, delivery = found[0]
            return delivery
        chosen = _first([Change(version, delivery.data) for version, delivery in found], MERGE_BYTES_MAX)
        place.version = chosen[-1].version
        return Delivery("change", await self._as_one(chosen), place.cursor)

    async def _as_one(self, seen: Sequence[Change]) -> bytes:
        """Changes as one; no data if there are none."""
        if len(seen) < 2:
            return seen[0].data if seen else b""
        self._shared.lenses.merges += 1
        return await for_reader(self._who, merge, seen, self._shared.key)

    async def _snapshot(self, place: _Place) -> Delivery:
        """All rows that are seen, encoded once for all who see the same at the same version."""
        if not self._lens:
            snapshot = self._view.snapshot()
            place.version, place.lost = snapshot.version, False
            if self._shared.encoded is None or self._shared.encoded.cursor != place.cursor:
                self._shared.encoded = Delivery("snapshot", b'{"rows":' + join(snapshot.rows) + b"}", place.cursor)
            return self._shared.encoded
        version, rows = await self._seen_rows()
        data = await self._shared.snapshots.get(
            self._lens, place.generation, version, len(rows), lambda: b'{"rows":' + join(rows) + b"}", self._who
        )
        place.version, place.lost = version, False
        return Delivery("snapshot", data, place.cursor)

    def _require_fit(self) -> None:
        """Rows of other columns than those that a filter was made for are not shown through it."""
        if self._lens and self._view.schema != self._lens.schema:
            raise Busy(f"view {self.name} has other columns now; ask again with a filter that fits them")

    def _start_over(self, place: _Place, reason: str) -> Delivery:
        """Tell that the place is gone."""
        self._require_fit()
        place.generation, place.version, place.lost = self._view.generation, 0, True
        self._shared.lenses.resets += 1
        return Delivery("reset", msgspec.json.encode({"reason": reason}), place.cursor)


def merge(changes: Sequence[Change], key: tuple[str, ...]) -> bytes:
    """One change with the effect of all of them: the latest row of each key, or its delete."""
    rows: dict[bytes, tuple[bool, msgspec.Raw]] = {}
    for change in changes:
        data = decode_data(change.data)
        for deleted, items in ((False, data.upserts), (True, data.deletes)):
            for item in items:
                rows[_name(item, key)] = (deleted, item)
    upserts = [bytes(row) for deleted, row in rows.values() if not deleted]
    deletes = [bytes(row) for deleted, row in rows.values() if deleted]
    return changed(upserts, deletes)


def _first(changes: Sequence[Change], bytes_max: int) -> Sequence[Change]:
    """As many of the first changes as the bound on bytes allows, and at least one."""
    size = 0
    for count, change in enumerate(changes):
        size += len(change.data)
        if count and size > bytes_max:
            return changes[:count]
    return changes


def _name(item: msgspec.Raw, key: tuple[str, ...]) -> bytes:
    row: dict[str, Any] = msgspec.json.decode(item)
    return msgspec.json.encode([row[column] for column in key])


def _changes_page(changes: Sequence[Change], place: _Place) -> Page:
    listed = b'{"changes":' + join([change.data for change in changes])
    tag = blake2b(listed, digest_size=12).hexdigest()
    return Page(listed + b',"cursor":' + msgspec.json.encode(place.cursor) + b"}", place.cursor, tag)


def _progress(place: _Place) -> Delivery:
    return Delivery("progress", b"{}", place.cursor)
