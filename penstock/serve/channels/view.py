"""The channel of a view: its rows, and a live sequence of its changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from penstock.core.clock import loop_time
from penstock.core.contracts import Delivery, LiveView, PageBody, Style, ViewChange, ViewSnapshot
from penstock.core.cursor import ViewCursor, decode, view_cursor
from penstock.core.errors import BadCursor, Busy
from penstock.core.settings import Settings
from penstock.serve.channels.broadcast import CHECK_S, Broadcast, Broadcasts
from penstock.serve.channels.filter_cache import (
    INLINE_ROWS,
    FilterCache,
    FilterInput,
    Unknown,
    changed,
    decode_data,
    filter_change,
    filter_changes,
    join_cost,
    looks,
    looks_at,
)
from penstock.serve.channels.ordering import Term, ordered, parsed
from penstock.serve.channels.ranges import BucketRange
from penstock.serve.channels.row_filter import NO_FILTER, FiltersInUse, RowFilter, base_filter
from penstock.serve.channels.stream_reader import EARLIEST, LATEST, join
from penstock.serve.channels.threads import for_reader

MERGE_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size in bytes of the changes merged into one for a reader that is behind. Merging takes about 20 ms in a
worker thread."""
PAGE_BYTES_MAX = 8 * 1024 * 1024
"""Maximum size in bytes of the changes in a page with more than one change."""
_ANEW, _GONE = "the view was recreated", "the changes after this position are no longer kept"
_OTHER = "the filter that limits what you can see of the view has changed"
_UNSEEN = "Penstock can no longer tell which of these changes you are allowed to see"


@dataclass
class _Follower:
    """The position of a view's follower: the last version that it received.

    A `lost` follower has no rows and needs a snapshot. Every view is empty at version 0. A client that received a
    `reset` but not the snapshot resumes at version 0 and gets all rows.
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


class _Wanted(NamedTuple):
    """The rows that a page of a view asks for."""

    limit: int | None = None
    terms: tuple[Term, ...] = ()
    buckets: BucketRange | None = None

    @property
    def visible_max(self) -> int | None:
        """The number of visible rows that the page needs: one more than it shows, to see whether there are more. It is
        None if the page needs all of them."""
        return None if self.limit is None or self.terms else self.limit + 1

    def listed(self, rows: Sequence[bytes], shown: pa.Schema) -> _Listed:
        """Encode the page. `rows` are the visible rows that it needs, in the view's order."""
        if self.terms:
            rows = ordered(rows, shown, self.terms)
        return _Listed.of(rows[: self.limit], truncated=self.limit is not None and len(rows) > self.limit)


_ALL = _Wanted()


class _Listed(NamedTuple):
    """The rows of a page of a view channel, encoded as the beginning of a response."""

    listed: bytes
    tag: str
    truncated: bool

    @classmethod
    def of(cls, rows: Sequence[bytes], *, truncated: bool) -> _Listed:
        listed = b'{"rows":' + join(rows)
        digest = blake2b(listed, digest_size=12)
        digest.update(b"truncated" if truncated else b"")
        return cls(listed, digest.hexdigest(), truncated)


class _Shared:
    """State shared by all readers of one view."""

    def __init__(self, name: str, view: LiveView, settings: Settings, key: tuple[str, ...]) -> None:
        self.name, self.view, self.settings, self.key = name, view, settings, key
        self.changes: FilterCache[ViewChange | None] = FilterCache(
            lambda change: 0 if change is None else len(change.data)
        )
        self.rows: FilterCache[list[bytes]] = FilterCache(lambda rows: 64 * len(rows) + sum(map(len, rows)))
        self.snapshots: FilterCache[Delivery] = FilterCache(_encoded_size)
        self.unfiltered: FilterCache[Delivery] = FilterCache(_encoded_size, bytes_max=0)  # keeps the latest snapshot
        self.wholes: FilterCache[_Listed] = FilterCache(lambda whole: len(whole.listed))
        self.pages: FilterCache[_Listed] = FilterCache(lambda page: len(page.listed))
        self.row_filters = FiltersInUse(name, settings.filters_max)
        self.broadcasts = Broadcasts(name, view, key, self.row_filters, kept_max=max(1, settings.buffered_changes))


class ViewChannel:
    """A `Channel` over one live view. Belongs to the view's event loop.

    A follower that keeps up gets one change per version. A follower that is more than `buffered_changes` versions
    behind gets a `stall`, and then merged changes with the latest value of each key, until it has caught up. `key`
    names the view's key columns, in the order in which deletes list them.
    """

    def __init__(self, name: str, view: LiveView, settings: Settings, *, key: Sequence[str]) -> None:
        self.name = name
        self._view = view
        self._shared = _Shared(name, view, settings, tuple(key))
        self._heartbeat_s = settings.heartbeat_s
        self._behind_max = max(1, settings.buffered_changes)
        self._changes_max = min(settings.page_events, settings.page_events_max)
        self._row_filter = NO_FILTER
        self._who = ""
        self._range: BucketRange | None = None

    def describe(self) -> dict[str, int]:
        """Return the view channel's read counters for the app's figures."""
        return self._shared.row_filters.describe()

    def through(self, where: str | None, select: str | None) -> ViewChannel:
        return self._seen_by(self._base_filter().through(where, select))

    def asked_by(self, who: str) -> ViewChannel:
        seen = copy(self)
        seen._who = who
        return seen

    def part(self, where: str | None, select: str | None) -> ViewChannel:
        return self._seen_by(self._base_filter().part(where, select))

    def limited(self, where: str, claims: Mapping[str, Any]) -> ViewChannel:
        return self._seen_by(self._base_filter().limited(where, claims))

    def within(self, wanted: BucketRange) -> ViewChannel:
        """Return a rollup's channel limited to a range of rows. The rows are found by binary search instead of a
        filter.

        The range does not apply to changes, which are not sorted: `follow` delivers all of them.
        """
        seen = self._seen_by(self._row_filter)
        seen._range = wanted
        return seen

    def _base_filter(self) -> RowFilter:
        return (
            self._row_filter
            if self._row_filter is not NO_FILTER
            else base_filter(self.name, self._view.schema, self._shared.key)
        )

    def _seen_by(self, row_filter: RowFilter) -> ViewChannel:
        seen = copy(self)
        seen._row_filter = row_filter
        return seen

    async def page(self, since: str | None, limit: int | None, wait_s: float = 0, order: str | None = None) -> PageBody:
        if since in (None, EARLIEST):
            return await self._rows(limit, reset=False, order=order)
        follower = self._locate(since)
        deadline = loop_time() + wait_s
        while isinstance(follower, _Follower):
            try:
                changes = await self._pending(follower, limit or self._changes_max)
            except Unknown:
                break
            if changes is None:
                break
            left_s = deadline - loop_time()
            if changes or left_s <= 0:
                if join_cost([change.data for change in changes]) > INLINE_ROWS:
                    return await for_reader(self._who, _changes_page, changes, follower)
                return _changes_page(changes, follower)
            await self._view.wait(follower.version, min(left_s, CHECK_S))
            if self._view.generation != follower.generation:
                break
        return await self._rows(limit, reset=True, order=order)

    async def last(self, limit: int) -> PageBody:
        return await self._rows(limit, reset=False, order=None)

    async def _pending(self, follower: _Follower, limit: int) -> list[ViewChange] | None:
        """Return up to `limit` visible changes of the view, and move the follower past them. Return None if some of
        them are no longer kept."""
        changes, size = list[ViewChange](), 0
        while len(changes) < limit and size < PAGE_BYTES_MAX:
            pending = self._view.changes(follower.version, limit - len(changes))
            if pending is None or self._view.generation != follower.generation:
                return None
            if not pending:
                break
            some = _first_changes(pending, PAGE_BYTES_MAX - size)
            seen = await self._filter_changes(some, follower.generation)
            changes += seen
            size += sum(len(change.data) for change in seen)
            follower.version = some[-1].version
            await asyncio.sleep(0)  # there can be thousands of hidden changes
        return changes

    async def _rows(self, limit: int | None, *, reset: bool, order: str | None) -> PageBody:
        """Return the view's first rows, in the view's order or the requested order, with `truncated` if there are
        more."""
        self._require_fit()
        terms = () if order is None else tuple(parsed(order, self._base_filter().shown))
        generation, snapshot = self._view.generation, self._view.snapshot()
        page = await self._listed(generation, snapshot, _Wanted(limit, terms, self._range))
        cursor = view_cursor(generation, snapshot.version, self._row_filter.sight)
        marks = (b',"reset":true' if reset else b"") + (b',"truncated":true' if page.truncated else b"")
        end = b',"cursor":' + msgspec.json.encode(cursor) + marks + b"}"
        return PageBody(page.listed, cursor, page.tag + (".reset" if reset else ""), end)

    async def _listed(self, generation: int, snapshot: ViewSnapshot, wanted: _Wanted) -> _Listed:
        """Return the rows of a page, encoded once for all callers that ask for the same rows at the same version.

        A page that is kept costs nothing, so its tag can be compared again and again. If making it takes long, that is
        done in a thread. A page with a limit in the view's own order is made from no more rows than it needs.
        """
        cache = self._shared.wholes if wanted == _ALL else self._shared.pages
        name = (self._row_filter, generation, snapshot.version)
        kept = cache.kept(*name, wanted)
        if kept is not None:
            return kept
        rows = snapshot.rows if wanted.buckets is None else wanted.buckets.of(snapshot.rows)
        row_filter, most = self._row_filter, wanted.visible_max
        all_visible = wanted.buckets is None and (
            most is None or most >= len(rows) or self._shared.rows.kept(*name) is not None
        )
        if row_filter and not all_visible:
            return await cache.get(
                *name,
                looks_at(rows),
                lambda: wanted.listed(row_filter.visible(rows, most), row_filter.shown),
                self._who,
                wanted,
            )
        needed = (await self._visible_rows(generation, snapshot) if row_filter else rows)[:most]
        cost = looks_at(needed) if wanted.terms else join_cost(needed)
        shown = self._base_filter().shown if wanted.terms else row_filter.schema
        return await cache.get(*name, cost, lambda: wanted.listed(needed, shown), self._who, wanted)

    async def _visible_rows(self, generation: int, snapshot: ViewSnapshot) -> Sequence[bytes]:
        """Return all rows of a snapshot that the filter shows, for all readers with the same filter."""
        row_filter, rows = self._row_filter, snapshot.rows
        if not row_filter:
            return rows
        return await self._shared.rows.get(
            row_filter, generation, snapshot.version, looks_at(rows), lambda: row_filter.visible(rows), self._who
        )

    async def _filter_changes(self, changes: Sequence[ViewChange], generation: int) -> list[ViewChange]:
        """Filter changes from one generation of the view, which might have been recreated since.

        The result for a single change is shared with other readers. Several changes are filtered for this reader only.
        """
        row_filter, key = self._row_filter, self._shared.key
        if not row_filter:
            return list(changes)
        cost = sum(map(looks, changes))
        if len(changes) == 1:
            (change,) = changes
            seen = await self._shared.changes.get(
                row_filter, generation, change.version, cost, lambda: filter_change(change, row_filter, key), self._who
            )
            return [] if seen is None else [seen]
        if cost <= INLINE_ROWS:
            return filter_changes(FilterInput(changes), row_filter, key)
        return await for_reader(self._who, lambda: filter_changes(FilterInput(changes), row_filter, key))

    async def follow(self, since: str | None, style: Style | None = None) -> AsyncIterator[Delivery]:
        """Follow the view, as specified by `Channel`.

        The first delivery is sent immediately; it is a progress mark if there is nothing else.
        """
        style = style or Style()
        with self._shared.broadcasts.attached(self._row_filter, self._who) as broadcast:
            if since in (None, EARLIEST):
                follower = self._follower(0, lost=True)
            elif isinstance(position := self._locate(since), _Follower):
                follower = position
            else:
                follower = self._follower(0)
                yield self._start_over(follower, position)
            if since == LATEST:
                yield _view_progress(follower)
            else:
                yield await self._next(follower, broadcast, style, 0)
            while True:
                yield await self._next(follower, broadcast, style, self._heartbeat_s)

    def _follower(self, version: int, *, lost: bool = False) -> _Follower:
        return _Follower(self._view.generation, version, self._row_filter.sight, lost)

    def _locate(self, since: str | None) -> _Follower | str:
        """Return the position of a cursor or of `latest`, or the reason why the position can no longer be used."""
        if since is None or since == LATEST:
            return self._follower(self._view.version)
        cursor = decode(since)
        if not isinstance(cursor, ViewCursor):
            raise BadCursor("this cursor is for a stream, not a view")
        if cursor.generation != self._view.generation:
            return _ANEW
        return self._follower(cursor.version) if cursor.sight == self._row_filter.sight else _OTHER

    async def _next(self, follower: _Follower, broadcast: Broadcast, style: Style, silence_s: float) -> Delivery:
        """Return the next delivery for a follower, or a progress mark if there is none within `silence_s`."""
        follower.given_at = loop_time()
        while True:
            version = follower.version
            delivery = await self._step(follower, broadcast, style)
            if delivery is not None:
                return delivery
            left_s = follower.given_at + silence_s - loop_time()
            if left_s <= 0:
                return _view_progress(follower)
            if follower.version == version:
                await broadcast.waiting.wait(follower, None if style.merge else style.take, left_s)

    async def _step(self, follower: _Follower, broadcast: Broadcast, style: Style) -> Delivery | None:
        """Return the delivery that is available now for the view's follower, or None if there is none or the filter
        hides it."""
        if self._view.generation != follower.generation:
            return self._start_over(follower, _ANEW)
        if follower.lost:
            return await self._snapshot(follower)
        if follower.version <= self._view.version and broadcast.covers(follower):
            return await self._from_broadcast(follower, broadcast, style)
        behind = self._view.version - follower.version
        if behind == 0:
            return None
        if behind > self._behind_max and not follower.stalled:
            follower.stalled = True
            self._shared.row_filters.stalls += 1
            return Delivery("stall", msgspec.json.encode({"behind": behind}), follower.cursor)
        follower.stalled = follower.stalled and behind > 1
        pending = self._view.changes(follower.version, self._behind_max if follower.stalled or style.merge else 1)
        if not pending:
            return self._start_over(follower, _GONE)
        some = _first_changes(pending, MERGE_BYTES_MAX)
        try:
            data = await self._as_one(await self._filter_changes(some, follower.generation))
        except Unknown:
            return self._start_over(follower, _UNSEEN)
        follower.version = some[-1].version
        return Delivery("change", data, follower.cursor) if data else None

    async def _from_broadcast(self, follower: _Follower, broadcast: Broadcast, style: Style) -> Delivery | None:
        """Return the broadcast's next delivery after the follower's position, or all later ones merged into one."""
        if broadcast.error is not None:
            raise broadcast.error
        merges = style.merge or follower.stalled
        deliveries = broadcast.after(follower.version, self._behind_max if merges else 1)
        if not deliveries:
            follower.version, follower.stalled = max(follower.version, broadcast.end), False
            return None
        if len(deliveries) == 1:
            follower.version, delivery = deliveries[0]
            return delivery
        chosen = _first_changes(
            [ViewChange(version, delivery.data) for version, delivery in deliveries], MERGE_BYTES_MAX
        )
        follower.version = chosen[-1].version
        return Delivery("change", await self._as_one(chosen), follower.cursor)

    async def _as_one(self, seen: Sequence[ViewChange]) -> bytes:
        """Merge the view's changes into one. Returns empty bytes if there are none."""
        if len(seen) < 2:
            return seen[0].data if seen else b""
        self._shared.row_filters.merges += 1
        return await for_reader(self._who, merge, seen, self._shared.key)

    async def _snapshot(self, follower: _Follower) -> Delivery:
        """Return a snapshot of all visible rows, encoded once for all readers with the same filter at the same
        version."""
        self._require_fit()
        snapshot = self._view.snapshot()
        name = (self._row_filter, follower.generation, snapshot.version)
        cache = self._shared.snapshots if self._row_filter else self._shared.unfiltered
        delivery = cache.kept(*name)
        if delivery is None:
            rows = await self._visible_rows(follower.generation, snapshot)
            cursor = view_cursor(follower.generation, snapshot.version, self._row_filter.sight)
            delivery = await cache.get(
                *name,
                join_cost(rows),
                lambda: Delivery("snapshot", b'{"rows":' + join(rows) + b"}", cursor),
                self._who,
            )
        follower.version, follower.lost = snapshot.version, False
        return delivery

    def _require_fit(self) -> None:
        """Raise `Busy` if the view's columns have changed since the filter was compiled."""
        if self._row_filter and self._view.schema != self._row_filter.schema:
            raise Busy(f"the columns of view {self.name} have changed; use a filter that matches the new columns")

    def _start_over(self, follower: _Follower, reason: str) -> Delivery:
        """Move the view's follower back to the start, and return a `reset` with the reason."""
        self._require_fit()
        follower.generation, follower.version, follower.lost = self._view.generation, 0, True
        self._shared.row_filters.resets += 1
        return Delivery("reset", msgspec.json.encode({"reason": reason}), follower.cursor)


def _encoded_size(delivery: Delivery) -> int:
    """Return the size to count for a delivery: its data, and the encoded form for one transport that it can also
    hold."""
    return 2 * len(delivery.data)


def merge(changes: Sequence[ViewChange], key: tuple[str, ...]) -> bytes:
    """Merge changes of a view into one with the same effect: the latest row for each key, or its delete."""
    rows: dict[bytes, tuple[bool, msgspec.Raw]] = {}
    for change in changes:
        data = decode_data(change.data)
        for deleted, items in ((False, data.upserts), (True, data.deletes)):
            for item in items:
                rows[_merged_row_key(item, key)] = (deleted, item)
    upserts = [bytes(row) for deleted, row in rows.values() if not deleted]
    deletes = [bytes(row) for deleted, row in rows.values() if deleted]
    return changed(upserts, deletes)


def _first_changes(changes: Sequence[ViewChange], bytes_max: int) -> Sequence[ViewChange]:
    """Return as many of a view's first changes as fit into the limit on bytes, but at least one."""
    size = 0
    for count, change in enumerate(changes):
        size += len(change.data)
        if count and size > bytes_max:
            return changes[:count]
    return changes


def _merged_row_key(item: msgspec.Raw, key: tuple[str, ...]) -> bytes:
    row: dict[str, Any] = msgspec.json.decode(item)
    return msgspec.json.encode([row[column] for column in key])


def _changes_page(changes: Sequence[ViewChange], follower: _Follower) -> PageBody:
    listed = b'{"changes":' + join([change.data for change in changes])
    tag = blake2b(listed, digest_size=12).hexdigest()
    return PageBody(listed + b',"cursor":' + msgspec.json.encode(follower.cursor) + b"}", follower.cursor, tag)


def _view_progress(follower: _Follower) -> Delivery:
    return Delivery("progress", b"{}", follower.cursor)
