"""The SQL of views as text: what it reads, and where it is wrong. Spark is not needed for this."""

from __future__ import annotations

from itertools import pairwise

PATTERN_WORD = "MATCH_RECOGNIZE"
SHOWN_CHARS_MAX = 40
"""Of the text at a place that is wrong."""
_MOMENTS = ("now", "today", "tomorrow", "yesterday")
_MOMENT_TYPES = frozenset({"date", "timestamp", "timestamp_ntz", "timestamp_ltz"})
_WINDOW = "windo_"
"""Stands for the function `window`, and is as long."""


def tables(query: str) -> tuple[str, ...]:
    """The names that a SELECT reads, each once, in order; none if the text is not SQL (which `check` reports)."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(_without_window(query), dialect="spark")
    except SqlglotError:
        return ()
    local = {each.alias for each in tree.find_all(exp.CTE)}
    found = (".".join(part.name for part in table.parts) for table in tree.find_all(exp.Table))
    return tuple(dict.fromkeys(name for name in found if name not in local))


def syntax_problem(query: str) -> str | None:
    """The place at which a text stops being SQL; None if it can be read."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError, TokenError

    try:
        tree = sqlglot.parse_one(_without_window(query), dialect="spark")
    except TokenError:
        return "a quote or a comment in it is not closed"
    except ParseError as error:
        if not error.errors:
            return "it is empty"
        found = error.errors[0]
        return place(query, found["line"], found["col"] - len(found["highlight"]))  # `col` is where the word ends
    return None if isinstance(tree, exp.Query) else f"it is no SELECT, {_beginning(query)}"


def _beginning(query: str) -> str:
    blank = query[: len(query) - len(query.lstrip())]
    return place(query, blank.count("\n") + 1, len(blank) - blank.rfind("\n") - 1)


def place(query: str, line: int, offset: int) -> str:
    """A place in a text for a person, with what is there. Lines count from 1, as always; `offset` counts from 0."""
    lines = query.splitlines()
    there = lines[line - 1][offset:].strip() if line <= len(lines) else ""
    shown = there if len(there) <= SHOWN_CHARS_MAX else f"{there[:SHOWN_CHARS_MAX]}..."
    return f"line {line}, column {offset + 1}, at " + (repr(shown) if shown else "its end")


def is_pattern(query: str) -> bool:
    """Whether a text says MATCH_RECOGNIZE as a word of its own: not in a literal, a comment or a quoted name. If it
    cannot be taken apart, the word anywhere in it is enough."""
    if PATTERN_WORD not in query.upper():
        return False
    from sqlglot import TokenType, tokenize
    from sqlglot.errors import SqlglotError

    try:
        words = tokenize(query, dialect="spark")
    except SqlglotError:
        return True
    plain = (TokenType.VAR, TokenType.MATCH_RECOGNIZE)
    return any(each.token_type in plain and each.text.upper() == PATTERN_WORD for each in words)


def clock_literal(text: str) -> str | None:
    """The first literal in a text that Spark's parser replaces by the time of the day, such as date 'today'."""
    if not any(word in text.lower() for word in _MOMENTS):
        return None
    from sqlglot import TokenType, tokenize
    from sqlglot.errors import SqlglotError

    try:
        words = tokenize(text, dialect="spark")
    except SqlglotError:
        return None
    for kind, literal in pairwise(words):
        named = literal.token_type is TokenType.STRING and kind.text.lower() in _MOMENT_TYPES
        if named and literal.text.strip().lower().startswith(_MOMENTS):
            return f"{kind.text} '{literal.text}'"
    return None


def _without_window(query: str) -> str:
    """The same with another name for the function `window`: after GROUP BY the parser takes it for the clause of that
    name. Places stay the same."""
    from sqlglot import TokenType, tokenize

    for token, following in reversed(list(pairwise(tokenize(query, dialect="spark")))):
        if token.token_type is TokenType.WINDOW and following.token_type is TokenType.L_PAREN:
            query = f"{query[: token.start]}{_WINDOW}{query[token.end + 1 :]}"
    return query
