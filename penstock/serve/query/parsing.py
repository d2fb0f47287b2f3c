"""Parsing of a query, with limits on the number of steps and on the processor time.

The parser tries several interpretations of some constructs, and goes back to the first token each time. If such
constructs are nested (`int(int(int(...`, `a JOIN a JOIN a ...`), each level doubles the work, so 200 characters could
take hours. The parser's steps are therefore counted for every construct.

In other constructs, one step can take a long time: after each part of `x[1][1][1]...` or `x.f().f().f()...`, the parser
goes through the whole chain again. The time is therefore checked at each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError

from penstock.core.errors import BadQuery, QueryRefused
from penstock.serve.query.deadline import CheckDeadline

TOKENS_MAX = 2_000
STEPS_MAX = 5 * TOKENS_MAX
"""Maximum number of times that the parser can move forward or back. Most queries take 1.0 to 1.5 steps per token.

Most steps take 10 to 40 microseconds.
"""
NESTING_MAX = 24
"""Maximum nesting of parentheses, brackets, braces and CASE."""
ONLY_SELECT = "a query must be a single SELECT"
_BEGINNINGS = ("SELECT", "WITH", "FROM", "L_PAREN")
_OPENING, _CLOSING = ("L_PAREN", "L_BRACKET", "L_BRACE", "CASE"), ("R_PAREN", "R_BRACKET", "R_BRACE", "END")


class _Parser(DuckDB.Parser):  # type: ignore[valid-type, misc]
    steps = 0
    deadline: CheckDeadline

    def _advance(self, times: int = 1) -> None:
        """Move by a number of the query's tokens; a negative number goes back."""
        self.steps += 1
        self.deadline.require()
        if self.steps > STEPS_MAX:
            raise QueryRefused("the query takes too long to parse: nest fewer calls, types or joins")
        super()._advance(times)


def parsed(text: str, deadline: CheckDeadline) -> exp.Expr:
    """Parse one SELECT of a client.

    Raises `BadQuery` if the text is not SQL, and `QueryRefused` if it is too large, takes too long to parse or is not a
    SELECT. Both errors contain the `position` of the offending character, if known.
    """
    dialect = DuckDB()
    try:
        tokens = dialect.tokenize(text)
        _require_small(tokens)
        parser = _Parser(dialect=dialect)
        parser.deadline = deadline
        trees: list[exp.Expr] = [tree for tree in parser.parse(tokens, text) if tree is not None]
    except TokenError:
        raise BadQuery("the query cannot be parsed: either a quote is not closed or a character is invalid") from None
    except ParseError as error:
        raise _unreadable(text, error.errors[0] if error.errors else {}) from None
    if len(trees) != 1 or type(trees[0]).__name__ not in ("Select", "Union", "Except", "Intersect", "Subquery"):
        raise QueryRefused(ONLY_SELECT, position=0)
    return trees[0]


def _require_small(tokens: Sequence[Any]) -> None:
    """Check the query's size before parsing, because deep nesting would overflow the parser's stack."""
    if not tokens:
        raise BadQuery("the query is empty", position=0)
    if len(tokens) > TOKENS_MAX:
        raise QueryRefused(
            f"the query is too long; the limit is {TOKENS_MAX} words and symbols", position=tokens[TOKENS_MAX].start
        )
    if tokens[0].token_type.name not in _BEGINNINGS:
        raise QueryRefused(ONLY_SELECT, position=tokens[0].start)
    depth = 0
    for token in tokens:
        kind = token.token_type.name
        depth += (kind in _OPENING) - (kind in _CLOSING)
        if depth > NESTING_MAX:
            raise QueryRefused(f"the query is nested more than {NESTING_MAX} levels deep", position=token.start)
        if kind == "SEMICOLON" and token is not tokens[-1]:
            raise QueryRefused(ONLY_SELECT, position=token.start)


def _unreadable(text: str, details: Mapping[str, Any]) -> BadQuery:
    """Return a query's syntax error. The parser reports the end of the offending token, by line and column."""
    highlight = str(details.get("highlight") or "")
    lines = text.split("\n")
    before = sum(len(line) + 1 for line in lines[: int(details.get("line") or 1) - 1])
    place = max(0, min(len(text), before + int(details.get("col") or 0) - max(1, len(highlight))))
    near = f" at {highlight[:40]!r}" if highlight else ""
    return BadQuery(f"syntax error in the query{near}", position=place)
