"""Helpers for the SQL text of views, without Spark: the names that a query reads, and its syntax errors."""

from __future__ import annotations

from itertools import pairwise

PATTERN_WORD = "MATCH_RECOGNIZE"
SHOWN_CHARS_MAX = 40
"""Maximum length of the excerpt in a message about a syntax error."""
_MOMENTS = ("now", "today", "tomorrow", "yesterday")
_MOMENT_TYPES = frozenset({"date", "timestamp", "timestamp_ntz", "timestamp_ltz"})
_WINDOW = "windo_"
"""Placeholder of equal length for the function `window`."""


def tables(query: str) -> tuple[str, ...]:
    """Return the names that a view's SELECT reads, each once, in order. The result is empty if the query is not valid
    SQL (which `check` reports)."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(_query_without_window(query), dialect="spark")
    except SqlglotError:
        return ()
    local = {cte.alias for cte in tree.find_all(exp.CTE)}
    names = (".".join(part.name for part in table.parts) for table in tree.find_all(exp.Table))
    return tuple(dict.fromkeys(name for name in names if name not in local))


def syntax_problem(query: str) -> str | None:
    """Return a description of the first syntax error in a view's query, with its position, or None if the query is
    valid."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError, TokenError

    try:
        tree = sqlglot.parse_one(_query_without_window(query), dialect="spark")
    except TokenError:
        return "it has an unclosed quote or comment"
    except ParseError as error:
        if not error.errors:
            return "it is empty"
        details = error.errors[0]
        return describe_position(
            query, details["line"], details["col"] - len(details["highlight"])
        )  # `col` is the position of the word's end
    return None if isinstance(tree, exp.Query) else f"it is not a SELECT ({_describe_query_start(query)})"


def _describe_query_start(query: str) -> str:
    blank = query[: len(query) - len(query.lstrip())]
    return describe_position(query, blank.count("\n") + 1, len(blank) - blank.rfind("\n") - 1)


def describe_position(query: str, line: int, offset: int) -> str:
    """Describe a position in a view's query, with an excerpt. Lines count from 1; `offset` counts from 0."""
    lines = query.splitlines()
    there = lines[line - 1][offset:].strip() if line <= len(lines) else ""
    shown = there if len(there) <= SHOWN_CHARS_MAX else f"{there[:SHOWN_CHARS_MAX]}..."
    return f"line {line}, column {offset + 1}, at " + (repr(shown) if shown else "its end")


def is_pattern(query: str) -> bool:
    """Return whether a query is a pattern: whether it contains the keyword MATCH_RECOGNIZE outside of literals,
    comments and quoted names. If the query cannot be tokenized, returns whether the word appears anywhere."""
    if PATTERN_WORD not in query.upper():
        return False
    from sqlglot import TokenType, tokenize
    from sqlglot.errors import SqlglotError

    try:
        words = tokenize(query, dialect="spark")
    except SqlglotError:
        return True
    plain = (TokenType.VAR, TokenType.MATCH_RECOGNIZE)
    return any(word.token_type in plain and word.text.upper() == PATTERN_WORD for word in words)


def clock_literal(text: str) -> str | None:
    """Return the first literal in a view's query that Spark's parser replaces with the current time, such as date
    'today'."""
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
        if named and is_moment(literal.text):
            return f"{kind.text} '{literal.text}'"
    return None


def is_moment(text: str) -> bool:
    """Return whether Spark replaces a constant string with the current time when it converts the string to a date or a
    timestamp."""
    return text.strip().lower().startswith(_MOMENTS)


def _query_without_window(query: str) -> str:
    """Return the query with the function `window` renamed: after GROUP BY, the parser would mistake it for the WINDOW
    clause. Positions stay the same."""
    from sqlglot import TokenType, tokenize

    for token, following in reversed(list(pairwise(tokenize(query, dialect="spark")))):
        if token.token_type is TokenType.WINDOW and following.token_type is TokenType.L_PAREN:
            query = f"{query[: token.start]}{_WINDOW}{query[token.end + 1 :]}"
    return query
