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
from penstock.core.filters.limits import CACHE_FILTERS, ROW_BYTES_MAX
from penstock.core.filters.slices import WHOLE_SLICES, Slicing, joined_slices


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
    _condition_slicing: Slicing = WHOLE_SLICES
    slicing: Slicing = WHOLE_SLICES
    """The slices for which `project` evaluates the columns. What it creates for one of them is bounded."""

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
        parts = self._condition_slicing.parts(batch, self.asked)
        return joined_slices([_nulls_as_false(full(condition(part), part.num_rows)) for part in parts])

    def project(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the filter's selected columns for all rows; without a `select`, return the batch itself.

        The result holds at most `ROW_BYTES_MAX` of new strings for each row, and the work on one slice about
        `SLICE_BYTES` in addition.
        """
        if self._outputs is None:
            return batch
        parts = [self._columns_of(part, self._outputs) for part in self.slicing.parts(batch, self.columns)]
        arrays = [joined_slices(pieces) for pieces in zip(*parts, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _columns_of(self, part: pa.RecordBatch, outputs: Sequence[Run]) -> list[Any]:
        grown = _grown_columns(part, {index: outputs[index] for index in self._grown})
        return [
            grown[index] if index in grown else full(output(part), part.num_rows)
            for index, output in enumerate(outputs)
        ]


def _nulls_as_false(truths: Any) -> Any:
    return truths.fill_null(False) if truths.null_count else truths


def _grown_columns(part: pa.RecordBatch, outputs: Mapping[int, Run]) -> dict[int, Any]:
    """Compute the columns of strings that functions produce.

    In a row whose strings together exceed the limit, all of them are NULL. Such a row is left out of the columns after
    the one that exceeds the limit, and the arrays returned have no bytes for it. Strings dropped in that way exist only
    until the function returns, and are at most one column's more than the limit.
    """
    count, lengths, bound = part.num_rows, list[Any](), 0
    places: Any = None  # the rows left, or None while none is left out
    computed: dict[int, tuple[Any, Any]] = {}
    for index, output in outputs.items():
        array = full(output(part), part.num_rows)
        computed[index] = places, array
        lengths.append(pc.binary_length(array))
        bound += pc.max(lengths[-1]).as_py() or 0
        if bound <= ROW_BYTES_MAX:  # no row can be above the limit
            continue
        total = _total(lengths)
        fits = pc.less_equal(total, ROW_BYTES_MAX)
        if not pc.all(fits, min_count=0).as_py():
            places = pa.array(range(count), pa.int32()) if places is None else places
            part, places, total = part.filter(fits), places.filter(fits), total.filter(fits)
        lengths, bound = [total], pc.max(total).as_py() or 0
    if places is None:
        return {index: array for index, (_, array) in computed.items()}
    rows = pa.array(range(count), pa.int32())
    kept = pc.if_else(pc.is_in(rows, value_set=places), rows, pa.scalar(None, pa.int32()))
    return {
        index: array.take(kept if of is None else pc.index_in(kept, value_set=of, skip_nulls=True))
        for index, (of, array) in computed.items()
    }


def _total(lengths: Sequence[Any]) -> Any:
    """Return the total length for each row. NULL counts as empty."""
    total = pa.scalar(0, pa.int64())
    for column in lengths:
        total = pc.add(total, pc.cast(column, pa.int64()).fill_null(0))
    return total


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


def reads_only(where: str, columns: Iterable[str]) -> bool:
    """Return whether a condition that an operator has written reads none but these columns. An invalid condition does
    not."""
    from penstock.core.filters.building import columns_named

    try:
        return columns_named(where) <= frozenset(columns)
    except BadExpression:
        return False
