"""`order=`: rows of a view in another order than its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import from_json_rows
from penstock.errors import BadParameter

COLUMNS_MAX = 8
_TERM = re.compile(r'\s*(?:-\s*(?P<minus>\w+)|("?)(?P<name>\w+)\2(?:\s+(?P<way>asc|desc))?)\s*', re.IGNORECASE)
"""A column and its direction, as in SQL, or as in the browser's client, with a minus for what goes down."""

Term = tuple[str, Literal["ascending", "descending"]]


def ordered(rows: Sequence[bytes], schema: pa.Schema, order: str) -> list[bytes]:
    """The rows by the columns that `order` names, nulls last; those that are equal stay as they are. May take long:
    called in a thread. `BadParameter` if it is no order."""
    terms = parsed(order, schema)
    columns = from_json_rows(rows, schema, [name for name, _ in terms])
    places = pc.sort_indices(columns, sort_keys=terms)
    return [rows[place] for place in places.to_pylist()]


def parsed(order: str, schema: pa.Schema) -> list[Term]:
    terms = [_term(text, schema) for text in order.split(",", COLUMNS_MAX)]
    if len(terms) > COLUMNS_MAX:
        raise _bad(f"order may name {COLUMNS_MAX} columns")
    return terms


def _term(text: str, schema: pa.Schema) -> Term:
    found = _TERM.fullmatch(text[:200])
    if found is None:
        raise _bad(f"{text.strip()[:80]!r} is no order; write columns, as in 'city, total DESC' or 'city, -total'")
    name = found["minus"] or found["name"]
    if name not in schema.names:
        raise _bad(f"there is no column {name[:80]!r} to order by; there are {', '.join(schema.names)}")
    if pa.types.is_nested(schema.field(name).type):
        raise _bad(f"rows cannot be ordered by {name}, which is of type {schema.field(name).type}")
    down = found["minus"] is not None or (found["way"] or "").lower() == "desc"
    direction = "descending" if down else "ascending"
    return name, cast(Literal["ascending", "descending"], direction)


def _bad(message: str) -> BadParameter:
    return BadParameter(message, parameter="order")
