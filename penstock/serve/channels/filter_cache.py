"""Cache of a view's filtered rows and changes: computed once per row filter and version, for all readers."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from penstock.core.columns import from_json_rows
from penstock.core.contracts import ViewChange
from penstock.serve.channels.row_filter import RowFilter
from penstock.serve.channels.stream_reader import join
from penstock.serve.channels.threads import for_reader

INLINE_ROWS = 64
"""Maximum number of rows to filter in the event loop: filtering them takes a few tenths of a millisecond. More rows
than that are filtered in a thread."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Maximum size in bytes of the filtered changes kept."""

INLINE_ROW_BYTES = 1024
"""Size above which a row counts as several rows."""
JOINED_BYTES, JOINED_ROWS = 4096, 64
"""Number of bytes, and of rows, that can be joined and hashed in the time in which one row is filtered."""
ENTRY_BYTES = 512
"""Bytes counted for each cached result in addition to its own size."""

T = TypeVar("T")
_Name = tuple[RowFilter, int, int, Hashable]


class ChangeData(msgspec.Struct):
    """The data of a view's change."""

    upserts: list[msgspec.Raw]
    deletes: list[msgspec.Raw]


decode_data = msgspec.json.Decoder(ChangeData).decode


class Unknown(Exception):
    """The rows before a change are unknown, so it is unknown whether the reader was allowed to see them.

    The reader must not receive the change.
    """


def looks(change: ViewChange) -> int:
    """Estimate how many rows must be filtered for a view's change."""
    if change.before is None:
        return 1 + len(change.data) // 100
    size = len(change.data) + sum(len(row) for row in change.before if row is not None)
    return max(len(change.before), size // INLINE_ROW_BYTES)


def looks_at(rows: Sequence[bytes]) -> int:
    """Estimate how many rows must be filtered, as `looks` does for a change: a large row counts as several."""
    if len(rows) > INLINE_ROWS:
        return len(rows)
    return max(len(rows), sum(map(len, rows)) // INLINE_ROW_BYTES)


def join_cost(rows: Sequence[bytes]) -> int:
    """Estimate the cost of joining and hashing rows, as a number of rows to filter."""
    cost = 1 + len(rows) // JOINED_ROWS
    return cost if cost > INLINE_ROWS else max(cost, sum(map(len, rows)) // JOINED_BYTES)


def filter_change(change: ViewChange, row_filter: RowFilter, key: tuple[str, ...]) -> ViewChange | None:
    """Return the visible part of a view's change, or None if a row filter hides the whole change."""
    return next(iter(filter_changes(FilterInput([change]), row_filter, key)), None)


class FilterInput:
    """Changes of a view that are filtered together, by any number of row filters. Used by one thread at a time.

    Starting a pass costs much more than filtering a row, so changes are combined. Each column is read once for all row
    filters that need it.
    """

    def __init__(self, changes: Sequence[ViewChange]) -> None:
        self.changes = changes
        self.parts = [_Part.of(change) for change in changes]
        self.rows = [row for part in self.parts for row in part.looked_at()]
        self.owners = [index for index, part in enumerate(self.parts) for _ in part.looked_at()]
        self.guessed = {index for index, change in enumerate(changes) if change.before is None}
        self._read: list[tuple[pa.Schema, list[str], pa.RecordBatch]] = []

    def columns(self, row_filter: RowFilter) -> pa.RecordBatch:
        """Return the columns that a row filter needs."""
        for schema, names, batch in self._read:
            if names == row_filter.asked and (schema is row_filter.schema or schema.equals(row_filter.schema)):
                return batch
        columns = from_json_rows(self.rows, row_filter.schema, row_filter.asked)
        self._read.append((row_filter.schema, row_filter.asked, columns))
        return columns


def filter_changes(offered: FilterInput, row_filter: RowFilter, key: tuple[str, ...]) -> list[ViewChange]:
    """Return the visible part of each change of a view, leaving out changes that a row filter hides completely.

    A row that is no longer visible becomes a delete. If the rows before a change are unknown, every row that is not
    visible now becomes a delete. A client can therefore receive a delete for a row that it never had. If the row filter
    is `strict`, raises `Unknown` instead.
    """
    if row_filter.strict and offered.guessed:
        raise Unknown
    seen = row_filter.json_rows(offered.rows, offered.columns(row_filter))
    touched = {owner for owner, row in zip(offered.owners, seen, strict=True) if row is not None}
    cache = (_visible_change(offered, index, seen, key) for index in sorted(touched | offered.guessed))
    return [change for change in cache if change is not None]


def _visible_change(
    offered: FilterInput, index: int, seen: Sequence[bytes | None], key: tuple[str, ...]
) -> ViewChange | None:
    """Return the visible part of one change, or None if there is none."""
    part, change, guessed = offered.parts[index], offered.changes[index], index in offered.guessed
    looks = iter(seen[bisect_left(offered.owners, index) :])
    now = [next(looks) for _ in part.rows]
    earlier = [None if row is None else next(looks) for row in part.before]
    upserts, deletes = list[bytes](), list[bytes]()
    for row, shown, then in zip(part.rows, now, earlier, strict=False):
        if shown is not None and shown != then:
            upserts.append(shown)
        elif shown is None and (guessed or then is not None):
            deletes.append(_deleted_key(row, key))
    for name, then in zip(part.deletes, earlier[len(part.rows) :], strict=True):
        if guessed or then is not None:
            deletes.append(bytes(name))
    return ViewChange(change.version, changed(upserts, deletes)) if upserts or deletes else None


@dataclass(frozen=True)
class _Part:
    """The rows in one change, and the previous row for each key, which is None if there was none."""

    rows: list[bytes]
    deletes: list[msgspec.Raw]
    before: Sequence[bytes | None]

    @classmethod
    def of(cls, change: ViewChange) -> _Part:
        data = decode_data(change.data)
        before = change.before if change.before is not None else (None,) * (len(data.upserts) + len(data.deletes))
        return cls([bytes(row) for row in data.upserts], data.deletes, before)

    def looked_at(self) -> list[bytes]:
        return [*self.rows, *(row for row in self.before if row is not None)]


def changed(upserts: Sequence[bytes], deletes: Sequence[bytes]) -> bytes:
    return b'{"upserts":' + join(upserts) + b',"deletes":' + join(deletes) + b"}"


def _deleted_key(row: bytes, key: tuple[str, ...]) -> bytes:
    values: dict[str, Any] = msgspec.json.decode(row)
    return msgspec.json.encode({name: values[name] for name in key})


class FilterCache(Generic[T]):
    """Cache of filtered rows, by row filter and version, and by variant if there are several. Each result is computed
    once, even if many readers request it at the same time.

    The least recently used results are evicted. Not thread-safe.
    """

    def __init__(self, size: Callable[[T], int], bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._size = size
        self._bytes_max = bytes_max
        self._results: OrderedDict[_Name, tuple[T, int]] = OrderedDict()
        self._tasks: dict[_Name, asyncio.Task[T]] = {}
        self.bytes = 0

    def kept(self, row_filter: RowFilter, generation: int, version: int, variant: Hashable = None) -> T | None:
        """Return the cached result for a row filter and version, or None if there is none."""
        name = (row_filter, generation, version, variant)
        entry = self._results.get(name)
        if entry is None:
            return None
        self._results.move_to_end(name)
        return entry[0]

    async def get(
        self,
        row_filter: RowFilter,
        generation: int,
        version: int,
        rows: int,
        make: Callable[[], T],
        who: str = "",
        variant: Hashable = None,
    ) -> T:
        """Return the cached result for a row filter and version, or compute it, in a thread if there are many rows.

        `rows` is an estimate in which large rows count as several (see `looks_at`). The work continues if the caller is
        cancelled, because others might be waiting for it.
        """
        name = (row_filter, generation, version, variant)
        entry = self._results.get(name)
        if entry is not None:
            self._results.move_to_end(name)
            return entry[0]
        if name not in self._tasks:
            if rows <= INLINE_ROWS:
                return self._keep(name, *self._sized(make))
            self._tasks[name] = asyncio.create_task(self._make(name, make, who))
        return await asyncio.shield(self._tasks[name])

    async def _make(self, name: _Name, make: Callable[[], T], who: str) -> T:
        try:
            return self._keep(name, *await for_reader(who, self._sized, make))
        finally:
            del self._tasks[name]

    def _sized(self, make: Callable[[], T]) -> tuple[T, int]:
        result = make()
        return result, ENTRY_BYTES + self._size(result)

    def _keep(self, name: _Name, result: T, size: int) -> T:
        self._results[name] = result, size
        self.bytes += size
        while self.bytes > self._bytes_max and len(self._results) > 1:
            _, (_, gone) = self._results.popitem(last=False)
            self.bytes -= gone
        return result
