"""The clauses of a MATCH_RECOGNIZE query that compute the output of a match, as text: the same for each layout of the
query."""

from __future__ import annotations

import dataclasses
from typing import Any

_POSITIONS = frozenset({"position", "name_position"})


def output_text(query: str) -> str:
    """Return the measures, the rows, the selected columns and the outer condition of a valid query. The other clauses
    are compiled into the pattern, which is compared separately."""
    from penstock.cep.recognize.statement import statement

    read = statement(query)
    return repr([_plain(part, read.alias) for part in (read.measures, read.all_rows, read.select, read.where)])


def _plain(part: Any, alias: str | None) -> Any:
    """Return a part of a query as lists and plain values, without positions and without the alias of the result."""
    if isinstance(part, tuple):
        names = getattr(part, "_fields", range(len(part)))
        return [_plain(value, alias) for name, value in zip(names, part, strict=True) if name not in _POSITIONS]
    if not dataclasses.is_dataclass(part):
        return part
    of = getattr(part, "of", None)
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    kind = type(part).__name__
    if of is not None and alias is not None and getattr(of, "name", None) == alias:
        kind, fields = "Name", {"name": fields["name"]}
    return [kind, *(_plain(value, alias) for name, value in fields.items() if name not in _POSITIONS)]
