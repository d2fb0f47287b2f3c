"""A text over letters: `B` is a row whose kind is b, and so on, unless DEFINE says something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.cep.finding import LIST_BOUNDS, find_matches
from penstock.cep.recognize import Recognized, recognized
from tests.cep.letters import Letter, letters

KINDS = "abcd"


def text(pattern: str, *, measures: str = "COUNT(*) AS n", define: str = "", rest: str = "", select: str = "*") -> str:
    """Return a statement. Omitted clauses are left out, except conditions: a variable with the name of a kind has
    one."""
    known = ", ".join(f"{kind.upper()} AS kind = '{kind}'" for kind in KINDS if kind.upper() in pattern)
    defined = define or known
    return f"""SELECT {select} FROM letters MATCH_RECOGNIZE (
        PARTITION BY key ORDER BY at MEASURES {measures} {rest}
        PATTERN ({pattern}) WITHIN INTERVAL '1' HOUR {f"DEFINE {defined}" if defined else ""})"""


def read(statement: str) -> Recognized:
    query = recognized("found", statement, {"letters": Letter}, LIST_BOUNDS)
    assert not query.faults, query.faults
    return query


def matches(statement: str, events: Sequence[Letter] | str) -> list[str]:
    """Return each match as its rows, with their variables: `A:a1 B:b`."""
    given = letters(events) if isinstance(events, str) else events
    matches = find_matches(read(statement).search, given)
    return [" ".join(f"{name}:{event.text}" for name, event in match.rows) for match in matches]


def emitted(statement: str, events: Sequence[Letter] | str) -> list[dict[str, Any]]:
    """Return the emitted events, as plain values, without the columns of the rows themselves."""
    query, given = read(statement), letters(events) if isinstance(events, str) else events
    events_made = [event for match in find_matches(query.search, given) for event in query.select(match)]
    return [{name: getattr(event, name) for name in query.emits.__struct_fields__} for event in events_made]


def fault(statement: str) -> str:
    (sentence,) = recognized("found", statement, {"letters": Letter}, LIST_BOUNDS).faults
    return sentence
