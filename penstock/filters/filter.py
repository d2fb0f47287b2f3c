"""Filters: a condition and a list of columns, compiled once and shared by all who give the same texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadExpression
from penstock.filters.kinds import Run, full
from penstock.filters.limits import CACHE_FILTERS, ROW_BYTES_MAX, SLICE_ROWS


@dataclass(frozen=True, eq=False)
class Filter:
    """A condition and a list of columns for batches of one schema. Give it events, not ticks: a tick's fields are all
    NULL, and `x IS NULL` holds for it."""

    schema: pa.Schema
    """Of what `project` gives."""
    columns: frozenset[str]
    """The columns of a batch that it reads; all if it selects none. Others need not be there."""
    asked: frozenset[str]
    """Those that the condition alone reads."""
    _condition: Run | None
    _outputs: tuple[Run, ...] | None
    _grown: tuple[int, ...] = ()

    @property
    def selects(self) -> bool:
        """Whether `project` changes anything."""
        return self._outputs is not None

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows the condition holds for; where it is unknown it does not. All, if there is none."""
        if self._condition is None:
            return pa.repeat(pa.scalar(True), batch.num_rows)
        condition = self._condition
        return _whole([_known(full(condition(part), part.num_rows)) for part in _parts(batch)])

    def project(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The selected columns of all rows; the batch itself if none are selected."""
        if self._outputs is None:
            return batch
        made = [self._columns_of(part, self._outputs) for part in _parts(batch)]
        arrays = [_whole(pieces) for pieces in zip(*made, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _columns_of(self, part: pa.RecordBatch, outputs: Sequence[Run]) -> list[Any]:
        arrays = [full(output(part), part.num_rows) for output in outputs]
        if self._grown:
            fits = _is_small([arrays[index] for index in self._grown])
            for index in () if fits is None else self._grown:
                arrays[index] = pc.if_else(fits, arrays[index], pa.scalar(None, arrays[index].type))
        return arrays


def _known(truths: Any) -> Any:
    return truths.fill_null(False) if truths.null_count else truths


def _is_small(texts: Sequence[Any]) -> Any:
    """In which rows the texts are not too long together; None if they are in no row."""
    total = pa.scalar(0, pa.int64())
    for each in texts:
        total = pc.add(total, pc.cast(pc.coalesce(pc.binary_length(each), pa.scalar(0, pa.int32())), pa.int64()))
    fits = pc.less_equal(total, ROW_BYTES_MAX)
    return None if pc.all(fits, min_count=0).as_py() else fits


def _parts(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    if batch.num_rows <= SLICE_ROWS:
        return (batch,)
    return (batch.slice(start, SLICE_ROWS) for start in range(0, batch.num_rows, SLICE_ROWS))


def _whole(pieces: Sequence[Any]) -> Any:
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
    """The filter of a condition and a list of columns, typed against the schema.

    The same texts and schema give the same object, as long as one of the last `CACHE_FILTERS`; so do readers of whom
    the same is known, as far as the condition asks. `key` are columns that `select` always keeps. With `claims`,
    `claim('name')` in a condition stands for the value of that name, a text, a number, a truth or a list of those for
    IN, and for NULL if there is none. `BadExpression` if a text is not what it should be: `part` says which, "where" or
    "select", and `position` at which of its characters. Some milliseconds for a new text of the longest kind.
    """
    for part, text in (("where", where), ("select", select)):
        if text is not None and not isinstance(text, str):
            raise BadExpression(f"{part} is not text", part=part, position=0)
    name = (schema, where, select, tuple(key), said(where, claims))
    with _lock:
        found = _cache.get(name)
        if found is not None:
            _cache.move_to_end(name)
            return found
    from penstock.filters.building import built

    made = built(schema, where, select, tuple(key), claims)
    with _lock:
        found = _cache.setdefault(name, made)
        while len(_cache) > CACHE_FILTERS:
            _cache.popitem(last=False)
    return found


def said(where: str | None, claims: Mapping[str, Any] | None) -> str | None:
    """What is known of a reader, as far as a condition asks for it. 1, 1.0, '1' and TRUE are written differently."""
    if where is None or claims is None:
        return None
    from penstock.filters.building import asked_of_reader

    return repr([claims.get(name) for name in asked_of_reader(where)])
