"""Access to list elements and map values. All functions also work on slices of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.filters import comparisons, texts
from penstock.core.filters.alike import is_whole
from penstock.core.filters.functions import Function, anything, computed, need
from penstock.core.filters.kinds import TEXT, TRUTH, WHOLE, Mistake, Operand, Run, constant, full, kind_of, loaded
from penstock.core.filters.slices import Slicing, joined_slices

INDEX_MAX = 2**31 - 1


def element(this: Operand, which: Operand) -> Operand:
    """Build the filter's `tags[1]` (the first element), `tags[-1]` (the last) or `attrs['color']`; NULL if the element
    does not exist."""
    if this.kind.name == "list":
        return _of_list(this, which)
    if this.kind.name == "map" and kind_of(this.kind.arrow.key_type) == TEXT:
        return _of_map(this, which)
    raise Mistake(this.position, f"{this.typed} cannot be indexed with [ ]")


def _of_list(this: Operand, which: Operand) -> Operand:
    number = which.written
    if not isinstance(number, Decimal) or not is_whole(number) or not 0 < abs(number) <= INDEX_MAX:
        raise Mistake(
            which.position, f"select an element of {this.shown} by its number: 1 is the first, -1 is the last"
        )
    run, index = this.run, int(number)
    shown = f"{this.shown}[{index}]"
    return loaded(this.kind.arrow.value_type, lambda batch: _taken(run(batch), index), this.position, shown)


def _taken(lists: Any, index: int) -> Any:
    """Return the element at `index` of each list; NULL for a NULL list, even if elements are stored for it."""
    starts, ends, lengths = _spans(lists)
    base, offset = (starts, index - 1) if index > 0 else (ends, index)
    place = pc.add(base, pa.scalar(offset, pa.int64()))
    there = pc.greater_equal(lengths, abs(index))
    return lists.values.take(pc.if_else(there, place, pa.scalar(None, pa.int64())))


def _spans(lists: Any) -> tuple[Any, Any, Any]:
    """Return the start and end of each list among all elements, and its length (NULL if the list is NULL)."""
    offsets = lists.offsets.cast(pa.int64())
    starts, ends = offsets.slice(0, len(lists)), offsets.slice(1, len(lists))
    lengths = pc.if_else(lists.is_valid(), pc.subtract(ends, starts), pa.scalar(None, pa.int64()))
    return starts, ends, lengths


def _of_map(this: Operand, which: Operand) -> Operand:
    key = which.written
    if not isinstance(key, str):
        raise Mistake(which.position, f"select a value of {this.shown} by its name: {this.shown}['color']")
    run, shown = this.run, f"{this.shown}[{key[:40]!r}]"
    name = pa.scalar(key, this.kind.arrow.key_type)
    return loaded(
        this.kind.arrow.item_type, lambda batch: pc.map_lookup(run(batch), name, "last"), this.position, shown
    )


def length(operands: Sequence[Operand]) -> Operand:
    (this,) = operands
    if this.kind.name in ("list", "map"):
        run = this.run
        return computed(WHOLE, lambda batch: _spans(run(batch))[2], this.position)
    return texts.length(this)


def contains(operands: Sequence[Operand]) -> Operand:
    this, what = operands
    if this.kind.name != "list":
        return texts.contains([need("text")("contains", operand) for operand in operands])
    if what.fixed is None:
        raise Mistake(what.position, "contains takes a literal value here: contains(tags, 'new')")
    inner = loaded(this.kind.arrow.value_type, lambda values: values, this.position, f"an element of {this.shown}")
    run, hit = this.run, comparisons.compared("=", inner, what).run
    if not what.fixed.is_valid:
        return constant(TRUTH, None, this.position, f"contains({this.shown}, NULL)")
    return computed(TRUTH, lambda batch: _any_of(run(batch), hit), this.position)


def exists(this: Operand, hit: Run, name: str, slicing: Slicing) -> Operand:
    """Build a filter's condition that is true if `hit` is true for an element of the list. `hit` is a condition on a
    batch of elements in a column `name`, evaluated for one slice after another. The result is NULL if the list is NULL,
    or if `hit` is not true for any element but is unknown for at least one element."""
    run = this.run
    return computed(TRUTH, lambda batch: _exists(run(batch), hit, name, slicing), this.position, "exists(...)")


def _exists(lists: Any, hit: Run, name: str, slicing: Slicing) -> Any:
    elements, starts, ends = _elements(lists)
    hits = _hits(elements, hit, name, slicing)
    some = _any(hits.fill_null(False), starts, ends)
    unsure = pc.or_(_any(hits.is_null(), starts, ends), lists.is_null())
    return pc.if_else(some, some, pc.if_else(unsure, pa.scalar(None, pa.bool_()), pa.scalar(False)))


def _hits(elements: Any, hit: Run, name: str, slicing: Slicing) -> Any:
    """Evaluate the condition for each element, in slices, because one event can have a very large number of
    elements."""
    parts = slicing.parts(pa.RecordBatch.from_arrays([elements], [name]), (name,))
    return joined_slices([full(hit(part), part.num_rows) for part in parts])


def _any_of(lists: Any, hit: Any) -> Any:
    elements, starts, ends = _elements(lists)
    flags = _any(hit(elements).fill_null(False), starts, ends)
    return pc.if_else(lists.is_valid(), flags, pa.scalar(None, pa.bool_()))


def _elements(lists: Any) -> tuple[Any, Any, Any]:
    """Return the elements of all lists, and the start and end of each list among them."""
    starts, ends, _ = _spans(lists)
    first, last = (starts[0].as_py(), ends[-1].as_py()) if len(lists) else (0, 0)
    return lists.values.slice(first, last - first), pc.subtract(starts, first), pc.subtract(ends, first)


def _any(flags: Any, starts: Any, ends: Any) -> Any:
    """Return, for each list, whether any of its flags is set, by comparing the running totals at its start and end."""
    totals = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(pc.cast(flags, pa.int64()))])
    return pc.greater(totals.take(ends), totals.take(starts))


_LONG = need("text", "list", "map")
FUNCTIONS: Mapping[str, Function] = {
    "contains": Function(anything, contains, 2),
    "len": Function(_LONG, length, 1),
    "length": Function(_LONG, length, 1),
}
