"""The `order` parameter: sorts a view's rows by chosen columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.columns import from_json_rows
from penstock.core.errors import BadParameter

COLUMNS_MAX = 8
_TERM = re.compile(r'\s*(?:-\s*(?P<minus>\w+)|("?)(?P<name>\w+)\2(?:\s+(?P<way>asc|desc))?)\s*', re.IGNORECASE)
"""A column and its direction. The direction is written as in SQL or, as in the browser client, as a leading minus for
descending order."""

Term = tuple[str, Literal["ascending", "descending"]]


def ordered(rows: Sequence[bytes], schema: pa.Schema, terms: Sequence[Term]) -> list[bytes]:
    """Sort rows by columns, with nulls last. The sort is stable. Slow: called in a thread, if there are many rows."""
    columns = from_json_rows(rows, schema, [name for name, _ in terms])
    places = pc.sort_indices(columns, sort_keys=list(terms))
    return [rows[place] for place in places.to_pylist()]


def parsed(order: str, schema: pa.Schema) -> list[Term]:
    """Parse the `order` parameter. Raises `BadParameter` if it is invalid."""
    terms = [_order_term(text, schema) for text in order.split(",", COLUMNS_MAX)]
    if len(terms) > COLUMNS_MAX:
        raise _bad_order(f"order can list at most {COLUMNS_MAX} columns")
    return terms


def _order_term(text: str, schema: pa.Schema) -> Term:
    match = _TERM.fullmatch(text[:200])
    if match is None:
        raise _bad_order(
            f"invalid order {text.strip()[:80]!r}; list columns, as in 'city, total DESC' or 'city, -total'"
        )
    name = match["minus"] or match["name"]
    if name not in schema.names:
        raise _bad_order(f"there is no column {name[:80]!r} to sort by; use one of {', '.join(schema.names)}")
    if pa.types.is_nested(schema.field(name).type):
        raise _bad_order(f"rows cannot be sorted by {name}, which has type {schema.field(name).type}")
    down = match["minus"] is not None or (match["way"] or "").lower() == "desc"
    direction = "descending" if down else "ascending"
    return name, cast(Literal["ascending", "descending"], direction)


def _bad_order(message: str) -> BadParameter:
    return BadParameter(message, parameter="order")
