"""Parses the text of a query, within bounds.

The parser tries some constructs in several ways, and goes back to the token where they began. Where such constructs
stand in each other (`int(int(int(...`, `a JOIN a JOIN a ...`), each level doubles the work: 200 characters could take
hours. So the steps of the parser are counted, whatever makes it go back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError

from penstock.errors import BadQuery, QueryRefused

TOKENS_MAX = 2_000
STEPS_MAX = 5 * TOKENS_MAX
"""Tokens that the parser may move on or back to. An ordinary text takes 1.0 to 1.5 for each token; at 10 to 40
microseconds each, the longest parse takes less than half a second."""
NESTING_MAX = 24
"""Parentheses and the like in each other."""
ONLY_SELECT = "a query is one SELECT: it reads, and does nothing else"
_BEGINNINGS = ("SELECT", "WITH", "FROM", "L_PAREN")
_OPENING, _CLOSING = ("L_PAREN", "L_BRACKET", "L_BRACE", "CASE"), ("R_PAREN", "R_BRACKET", "R_BRACE", "END")


class _Parser(DuckDB.Parser):  # type: ignore[valid-type, misc]
    steps = 0

    def _advance(self, times: int = 1) -> None:
        """Move by some tokens; a negative number goes back."""
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise QueryRefused("the query takes too long to read: put fewer calls, types or joins into each other")
        super()._advance(times)


def parsed(text: str) -> exp.Expr:
    """Parse one SELECT. Raises `BadQuery` if the text is no SQL, `QueryRefused` if it is too large or something else
    than a SELECT; both with the `position` of the character, if it is known. Takes less than half a second."""
    dialect = DuckDB()
    try:
        tokens = dialect.tokenize(text)
        _require_small(tokens)
        found: list[exp.Expr] = [each for each in _Parser(dialect=dialect).parse(tokens, text) if each is not None]
    except TokenError:
        raise BadQuery(
            "the query cannot be read: a quote is not closed, or there is a character that means nothing"
        ) from None
    except ParseError as error:
        raise _unreadable(text, error.errors[0] if error.errors else {}) from None
    if len(found) != 1 or type(found[0]).__name__ not in ("Select", "Union", "Except", "Intersect", "Subquery"):
        raise QueryRefused(ONLY_SELECT, position=0)
    return found[0]


def _require_small(tokens: Sequence[Any]) -> None:
    """Check the size before the parser sees it: deep nesting would overflow its stack."""
    if not tokens:
        raise BadQuery("the query is empty", position=0)
    if len(tokens) > TOKENS_MAX:
        raise QueryRefused(f"a query may have {TOKENS_MAX} words and signs", position=tokens[TOKENS_MAX].start)
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


def _unreadable(text: str, found: Mapping[str, Any]) -> BadQuery:
    """The parser tells where the last character of what it stumbled over stands, by line and column."""
    highlight = str(found.get("highlight") or "")
    lines = text.split("\n")
    before = sum(len(line) + 1 for line in lines[: int(found.get("line") or 1) - 1])
    place = max(0, min(len(text), before + int(found.get("col") or 0) - max(1, len(highlight))))
    near = f" at {highlight[:40]!r}" if highlight else ""
    return BadQuery(f"the query cannot be read{near}", position=place)
