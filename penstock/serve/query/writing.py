"""Writes the text of a query from its tree, within bounds."""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ErrorLevel

from penstock.errors import QueryRefused

STEPS_MAX = 30_000
"""About one for each node of a tree. A few functions are written with one of their arguments twice, and those in each
other would double the text each time."""


class _Writer(DuckDB.Generator):  # type: ignore[valid-type, misc]
    steps = 0

    def sql(self, *given: Any, **named: Any) -> str:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise QueryRefused("the query is too long when it is written out")
        return str(super().sql(*given, **named))


def written(tree: exp.Expr) -> str:
    """The text, with every name quoted and without comments. What cannot be said in DuckDB's SQL raises sqlglot's
    `UnsupportedError`."""
    writer = _Writer(dialect="duckdb", identify=True, comments=False, unsupported_level=ErrorLevel.RAISE)
    return str(writer.generate(tree))
