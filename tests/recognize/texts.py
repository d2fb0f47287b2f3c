"""A text over letters: `B` is a row whose kind is b, and so on, unless DEFINE says something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.cep.finding import LIST_BOUNDS, searched
from penstock.cep.recognize import Recognized, recognized
from tests.cep.letters import Letter, letters

KINDS = "abcd"


def text(pattern: str, *, measures: str = "COUNT(*) AS n", define: str = "", rest: str = "", select: str = "*") -> str:
    """A statement. What is not given is left out, but for conditions: a variable with the name of a kind is one."""
    known = ", ".join(f"{kind.upper()} AS kind = '{kind}'" for kind in KINDS if kind.upper() in pattern)
    defined = define or known
    return f"""SELECT {select} FROM letters MATCH_RECOGNIZE (
        PARTITION BY key ORDER BY at MEASURES {measures} {rest}
        PATTERN ({pattern}) WITHIN INTERVAL '1' HOUR {f"DEFINE {defined}" if defined else ""})"""


def read(statement: str) -> Recognized:
    found = recognized("found", statement, {"letters": Letter}, LIST_BOUNDS)
    assert not found.faults, found.faults
    return found


def matches(statement: str, events: Sequence[Letter] | str) -> list[str]:
    """Each match as its rows, with their variables: `A:a1 B:b`."""
    given = letters(events) if isinstance(events, str) else events
    found = searched(read(statement).search, given)
    return [" ".join(f"{name}:{event.text}" for name, event in match.rows) for match in found]


def emitted(statement: str, events: Sequence[Letter] | str) -> list[dict[str, Any]]:
    """What is emitted, as plain values, without the columns of the rows themselves."""
    made, given = read(statement), letters(events) if isinstance(events, str) else events
    events_made = [event for match in searched(made.search, given) for event in made.select(match)]
    return [{name: getattr(each, name) for name in made.emits.__struct_fields__} for each in events_made]


def fault(statement: str) -> str:
    (told,) = recognized("found", statement, {"letters": Letter}, LIST_BOUNDS).faults
    return told
