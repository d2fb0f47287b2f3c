"""Filters: a condition and a list of columns, compiled once and shared by all users of the same expressions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import BadExpression
from penstock.core.filters.kinds import Run, full
from penstock.core.filters.limits import CACHE_FILTERS, ROW_BYTES_MAX, SLICE_ROWS


@dataclass(frozen=True, eq=False)
class Filter:
    """A compiled condition and list of columns for batches of one schema. Do not apply it to ticks: all fields of a
    tick are NULL, so `x IS NULL` would be true."""

    schema: pa.Schema
    """The schema of the batches that `project` returns."""
    columns: frozenset[str]
    """The columns of a batch that the filter reads; all columns if it has no `select`. Other columns can be missing."""
    asked: frozenset[str]
    """The columns that the condition reads."""
    _condition: Run | None
    _outputs: tuple[Run, ...] | None
    _grown: tuple[int, ...] = ()

    @property
    def selects(self) -> bool:
        """Whether `project` changes anything."""
        return self._outputs is not None

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return a mask of the rows for which the filter's condition is true (rows for which it is unknown are not
        included). Without a condition, the mask includes all rows."""
        if self._condition is None:
            return pa.repeat(pa.scalar(True), batch.num_rows)
        condition = self._condition
        return _joined_slices([_nulls_as_false(full(condition(part), part.num_rows)) for part in _filter_slices(batch)])

    def project(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the filter's selected columns for all rows; without a `select`, return the batch itself."""
        if self._outputs is None:
            return batch
        parts = [self._columns_of(part, self._outputs) for part in _filter_slices(batch)]
        arrays = [_joined_slices(pieces) for pieces in zip(*parts, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _columns_of(self, part: pa.RecordBatch, outputs: Sequence[Run]) -> list[Any]:
        arrays = [full(output(part), part.num_rows) for output in outputs]
        if self._grown:
            fits = _small_rows_mask([arrays[index] for index in self._grown])
            for index in () if fits is None else self._grown:
                arrays[index] = pc.if_else(fits, arrays[index], pa.scalar(None, arrays[index].type))
        return arrays


def _nulls_as_false(truths: Any) -> Any:
    return truths.fill_null(False) if truths.null_count else truths


def _small_rows_mask(texts: Sequence[Any]) -> Any:
    """Return a mask of the rows whose strings together do not exceed the limit, or None if no row exceeds it."""
    total = pa.scalar(0, pa.int64())
    for column in texts:
        total = pc.add(total, pc.cast(pc.coalesce(pc.binary_length(column), pa.scalar(0, pa.int32())), pa.int64()))
    fits = pc.less_equal(total, ROW_BYTES_MAX)
    return None if pc.all(fits, min_count=0).as_py() else fits


def _filter_slices(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    if batch.num_rows <= SLICE_ROWS:
        return (batch,)
    return (batch.slice(start, SLICE_ROWS) for start in range(0, batch.num_rows, SLICE_ROWS))


def _joined_slices(pieces: Sequence[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


_cache: OrderedDict[Any, Filter] = OrderedDict()
_lock = Lock()


def compiled(
    schema: pa.Schema,
    where: str | None,
    select: str | None,
    *,
    key: Sequence[str] = (),
    claims: Mapping[str, Any] | None = None,
) -> Filter:
    """Compile a filter for a schema, from a condition and a list of columns. Cached.

    The same expressions and schema return the same object while it is among the `CACHE_FILTERS` most recently used
    filters. Readers who have the same values for the claims in the condition share a filter. `key` lists columns that
    `select` always includes. If `claims` is passed, `claim('name')` in a condition stands for the value of that claim:
    a string, a number, a boolean or, after IN, a list of such values. A missing claim is NULL. Raises `BadExpression`
    for an invalid expression: `part` is "where" or "select", and `position` is the index of the invalid character. A
    new expression of maximum length takes a few milliseconds to compile.
    """
    for part, text in (("where", where), ("select", select)):
        if text is not None and not isinstance(text, str):
            raise BadExpression(f"{part} is not a string", part=part, position=0)
    name = (schema, where, select, tuple(key), said(where, claims))
    with _lock:
        cached_filter = _cache.get(name)
        if cached_filter is not None:
            _cache.move_to_end(name)
            return cached_filter
    from penstock.core.filters.building import built

    new_filter = built(schema, where, select, tuple(key), claims)
    with _lock:
        cached_filter = _cache.setdefault(name, new_filter)
        while len(_cache) > CACHE_FILTERS:
            _cache.popitem(last=False)
    return cached_filter


def said(where: str | None, claims: Mapping[str, Any] | None) -> str | None:
    """Return the values of the claims in a condition, as a string for a cache key. The values 1, 1.0, '1' and TRUE
    result in different strings."""
    if where is None or claims is None:
        return None
    from penstock.core.filters.building import asked_of_reader

    return repr([claims.get(name) for name in asked_of_reader(where)])
