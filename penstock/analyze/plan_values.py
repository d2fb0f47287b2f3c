"""Values in Spark's plans that JSON leaves out, and that Spark's text shows ambiguously."""

from __future__ import annotations

import json
from typing import Any

from pyspark.errors import PySparkException

from penstock.analyze.trees import items_of

_LISTS = ("patterns", "pivotColumnValues")
VALUE_FIELDS = frozenset({*_LISTS, "options"})
"""Fields of expressions whose values JSON leaves out: of LIKE ANY and LIKE ALL, of PIVOT, and of from_json() and
similar functions."""


def field_values(expression: Any, fields: frozenset[str]) -> str:
    """Return the values in these fields of an expression, as JSON."""
    return json.dumps([_field_value(field, getattr(expression, field)()) for field in sorted(fields)])


def _field_value(field: str, value: Any) -> Any:
    if field in _LISTS:
        return [None if item is None else str(item) for item in items_of(value)]
    return sorted([str(entry._1()), str(entry._2())] for entry in items_of(value.toSeq()))


def relation_rows(relation: Any) -> str:
    """Return the rows of a LocalRelation as SQL literals, which contain their types. One call to Java converts all
    rows, because a table can have a hundred thousand."""
    if relation.data().isEmpty():
        return ""
    names = ", ".join(str(column.name()) for column in items_of(relation.output()))
    try:
        return str(relation.toSQL("")).removesuffix(f" AS ({names})")
    except PySparkException:  # a type that SQL has no literals for
        return str(relation.data().mkString("\n"))
