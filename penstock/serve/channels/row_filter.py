"""Row filters: chains of filters over events and rows, with JSON output.

The filters apply in this order: the caller's row rule for a feed's source, the feed's filter, the caller's row rule for
the feed, the reader's filter. Each filter is type-checked against the output of the previous one. Row filters with the
same chain are equal, so that readers can share cached results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.columns import from_json_rows, json_rows
from penstock.core.cursor import narrowed
from penstock.core.errors import BadParameter, Busy
from penstock.core.filters import Filter, compiled, said
from penstock.core.filters.limits import SLICE_BYTES, SLICE_ROWS
from penstock.core.schema import HIDDEN_COLUMNS, shown

SELECTED_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size in bytes of the rows that one pass of a `select` can hold, if they are also larger than the rows that
they are made from."""
Row = TypeVar("Row", bytes, bytes | None)


@dataclass(frozen=True)
class RowFilter:
    """A chain of filters for rows with the columns in `schema`. `key` names the columns that a selection always
    keeps."""

    schema: pa.Schema = field(compare=False)
    key: tuple[str, ...] = field(default=(), compare=False)
    stages: tuple[Filter, ...] = ()
    strict: bool = False
    """Whether the reader must not learn anything about rows that it cannot see, including their deletion."""
    sight: bytes = b""
    """Identifies the filters that the reader did not choose. Part of the reader's cursors."""

    @property
    def shown(self) -> pa.Schema:
        """The columns that the row filter shows."""
        return self.stages[-1].schema if self.stages else self.schema

    def through(self, where: str | None, select: str | None) -> RowFilter:
        """Return this row filter with one more filter. Raises `BadExpression` if the new filter is invalid."""
        if where is None and select is None:
            return self
        added = compiled(self.shown, where, select, key=self.key)
        return replace(self, stages=(*self.stages, added))

    def part(self, where: str | None, select: str | None) -> RowFilter:
        """Return this row filter with one more filter, imposed by the app."""
        return replace(self.through(where, select), sight=narrowed(self.sight, where, select))

    def limited(self, where: str, claims: Mapping[str, Any]) -> RowFilter:
        """Return this row filter limited to rows that meet a condition, for a caller that must not learn anything about
        other rows."""
        added = compiled(self.shown, where, None, key=self.key, claims=claims)
        sight = narrowed(self.sight, where, said(where, claims))
        return replace(self, stages=(*self.stages, added), strict=True, sight=sight)

    def __bool__(self) -> bool:
        return bool(self.stages)

    def rows(self, batch: pa.RecordBatch) -> Iterator[bytes | None]:
        """Yield each event as JSON without system columns, or None if the event is not visible. Events are filtered in
        slices, when they are needed."""
        if not self.stages:
            yield from json_rows(batch, [name for name in batch.schema.names if name not in HIDDEN_COLUMNS])
            return
        fitted, most = self._fitted(batch), self._slice_rows
        for start in range(0, batch.num_rows, most):
            part = fitted.slice(start, most)
            seen, places = self._seen(part)
            yield from _with_hidden(places, json_rows(seen), part.num_rows)

    def json_rows(self, rows: Sequence[bytes], columns: pa.RecordBatch | None = None) -> list[bytes | None]:
        """Filter rows that are already JSON. Without a selection, rows are returned unchanged.

        `columns` contains the `asked` columns of the same rows, if they have been read already. Raises `BadParameter`
        if a selection makes too much of them (see `gathered`).
        """
        return self.gathered(self.each_json_row(rows, columns), rows)

    def each_json_row(self, rows: Sequence[bytes], columns: pa.RecordBatch | None = None) -> Iterator[bytes | None]:
        """Yield each row as in `json_rows`. Rows are filtered in slices, when they are needed."""
        if not self.stages:
            yield from rows
            return
        asked, selects, most = self.asked, self._selects(), self._slice_rows
        for start, end in _slices(rows, most):
            some = rows if end - start == len(rows) else rows[start:end]
            part = from_json_rows(some, self.schema, asked) if columns is None else columns.slice(start, end - start)
            seen, places = self._seen(part)
            yield from _with_hidden(
                places, json_rows(seen) if selects else [some[place] for place in places], len(some)
            )

    def visible(self, rows: Sequence[bytes], most: int | None = None) -> list[bytes]:
        """Return the visible rows of rows that are already JSON, and stop once there are `most`. Raises `BadParameter`
        as `json_rows` does."""
        seen = (row for row in self.each_json_row(rows) if row is not None)
        return self.gathered(islice(seen, most), rows)

    def gathered(self, seen: Iterable[Row], made_from: Sequence[bytes]) -> list[Row]:
        """Return filtered rows as a list.

        Raises `BadParameter` if a selection makes them larger than `SELECTED_BYTES_MAX`, and larger than the rows in
        `made_from`. Without a selection, rows are not copied, so they are not limited.
        """
        if not self._selects():
            return list(seen)
        rows, size, most = list[Row](), 0, SELECTED_BYTES_MAX
        for row in seen:
            rows.append(row)
            size += 0 if row is None else len(row)
            if size > most:
                most = max(most, sum(map(len, made_from)))
                if size > most:
                    raise BadParameter(
                        f"the selected columns of these rows are larger than {most // 2**20} MiB; select fewer or "
                        "shorter columns, or ask for fewer rows",
                        parameter="select",
                    )
        return rows

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the filtered batch with the columns of the schema. A column that the batch does not have yet is filled
        with nulls."""
        if set(self.schema.names) <= set(batch.schema.names):
            return batch.select(self.schema.names)
        there = {name: batch.column(name) for name in batch.schema.names}
        columns = [there.get(column.name, pa.nulls(batch.num_rows, column.type)) for column in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _seen(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        """Return the rows of a batch that pass all filters, and their indexes."""
        places = pa.array(range(batch.num_rows), pa.int32())
        for stage in self.stages:
            mask = stage.mask(batch)
            if not pc.all(mask, min_count=0).as_py():
                batch, places = batch.filter(mask), places.filter(mask)
            batch = stage.project(batch)
        return batch, places.to_pylist()

    @property
    def _slice_rows(self) -> int:
        """The number of rows to filter at a time, so that what all stages make of them is bounded."""
        return min((stage.slicing.rows_max for stage in self.stages if stage.selects), default=SLICE_ROWS)

    def _selects(self) -> bool:
        return any(stage.selects for stage in self.stages)

    @property
    def asked(self) -> list[str]:
        """The columns that the row filter reads. Filters after a selection see only the selected columns."""
        wanted = set[str]()
        for stage in self.stages:
            wanted |= stage.columns if stage.selects else stage.asked
            if stage.selects:
                break
        return [name for name in self.schema.names if name in wanted]


def _with_hidden(indexes: Sequence[int], shown_rows: Sequence[bytes], count: int) -> list[bytes | None]:
    """Return a list of `count` rows, with the visible rows at their indexes and None at the others."""
    rows: list[bytes | None] = [None] * count
    for index, row in zip(indexes, shown_rows, strict=True):
        rows[index] = row
    return rows


def _slices(rows: Sequence[bytes], rows_max: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of slices of JSON rows that are limited in number and in bytes. A slice has at least one
    row."""
    start = size = 0
    for index, row in enumerate(rows):
        size += len(row)
        if index > start and (index - start >= rows_max or size > SLICE_BYTES):
            yield start, index
            start, size = index, len(row)
    if rows:
        yield start, len(rows)


class FiltersInUse:
    """The row filters in use, the number of readers of each, and counters for slow readers. Not thread-safe."""

    def __init__(self, of: str, most: int) -> None:
        self._of, self._most = of, most
        self._readers: Counter[RowFilter] = Counter()
        self._own: dict[str, Counter[RowFilter]] = {}
        self.stalls = self.merges = self.resets = 0

    def __iter__(self) -> Iterator[RowFilter]:
        return iter(self._readers)

    def __contains__(self, row_filter: RowFilter) -> bool:
        return row_filter in self._readers

    @property
    def readers(self) -> int:
        return self._readers.total()

    def describe(self) -> dict[str, int]:
        """Return the filters' figures for `/v1/app`: readers, filters, and counts of stalls, merges and lost
        positions."""
        return {
            "readers": self.readers,
            "filters": sum(map(bool, self._readers)),
            "stalls": self.stalls,
            "merges": self.merges,
            "resets": self.resets,
        }

    @contextmanager
    def one(self, row_filter: RowFilter, who: str) -> Iterator[None]:
        """Count a row filter as in use for the duration of the block.

        Raises `Busy` if the filter is not in use yet and the limit is reached. Also raises `Busy` if a named caller
        does not use the filter yet and already uses half as many filters as the limit allows. This leaves room for
        other callers.
        """
        own = self._own.setdefault(who, Counter()) if row_filter else Counter[RowFilter]()
        try:
            self._require_room(row_filter, own, who)
            with _count_reader(self._readers, row_filter), _count_reader(own, row_filter):
                yield
        finally:
            if not own and self._own.get(who) is own:
                del self._own[who]

    def callers(self) -> list[str]:
        """Return the callers that use filters."""
        return list(self._own)

    def used_by(self, who: str) -> list[RowFilter]:
        """Return the filters that a caller uses."""
        return list(self._own.get(who, ()))

    def _require_room(self, row_filter: RowFilter, own: Counter[RowFilter], who: str) -> None:
        if not row_filter:
            return
        if row_filter not in self._readers and sum(map(bool, self._readers)) >= self._most:
            raise Busy(f"{self._of} already has {self._most} filters in use, the maximum", retry_after_s=5)
        share = max(1, self._most // 2)
        if who and row_filter not in own and len(own) >= share:
            raise Busy(f"you already use {share} filters on {self._of}, the maximum for one caller", retry_after_s=5)


@contextmanager
def _count_reader(readers: Counter[RowFilter], row_filter: RowFilter) -> Iterator[None]:
    readers[row_filter] += 1
    try:
        yield
    finally:
        readers[row_filter] -= 1
        if readers[row_filter] == 0:
            del readers[row_filter]


NO_FILTER = RowFilter(pa.schema([]))
"""Identity filter: every row, every column."""


def base_filter(name: str, schema: pa.Schema | None, key: Sequence[str] = ()) -> RowFilter:
    """Return the base filter of a stream or view. Raises `Busy` while its column types are unknown."""
    if schema is None:
        raise Busy(f"the columns of {name} are not known yet: its query has not started", retry_after_s=2)
    return RowFilter(shown(schema), tuple(key))
