"""Generation of a query's SQL from its tree, with limits on the number of steps and on the processor time."""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ErrorLevel

from penstock.core.errors import QueryRefused
from penstock.serve.query.deadline import CheckDeadline

STEPS_MAX = 30_000
"""Maximum number of steps, about one for each node of a tree.

Some functions are expanded to SQL that contains an argument twice, so each level of nesting could double the length of
the SQL.
"""


class _QueryWriter(DuckDB.Generator):  # type: ignore[valid-type, misc]
    """Writes the SQL of a client's query from its tree, in at most `STEPS_MAX` steps."""

    steps = 0
    deadline: CheckDeadline

    def sql(self, *given: Any, **named: Any) -> str:
        self.steps += 1
        self.deadline.require()
        if self.steps > STEPS_MAX:
            raise QueryRefused("the query becomes too long when its function calls are expanded")
        return str(super().sql(*given, **named))


def written(tree: exp.Expr, deadline: CheckDeadline) -> str:
    """Return the SQL of a tree, with every name quoted and without comments.

    Raises sqlglot's `UnsupportedError` if the query cannot be expressed in DuckDB's SQL, and `QueryRefused` if the SQL
    is too long or takes too long to write.
    """
    writer = _QueryWriter(dialect="duckdb", identify=True, comments=False, unsupported_level=ErrorLevel.RAISE)
    writer.deadline = deadline
    return str(writer.generate(tree))
