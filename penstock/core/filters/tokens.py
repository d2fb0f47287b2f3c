"""The tokenizer of filters, which passes only a few kinds of tokens on to the parser.

sqlglot's tokenizer recognizes all SQL keywords. This module turns all but twelve of them into plain names, so a column
can be called `end` or `date`, and SELECT and CASE have no special meaning. An interval becomes a call to the function
`interval`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from sqlglot import Token, Tokenizer, TokenType
from sqlglot.errors import SqlglotError

from penstock.core.errors import BadExpression
from penstock.core.filters.limits import DEPTH_MAX, LENGTH_MAX


def _token_types(names: str) -> frozenset[TokenType]:
    return frozenset(getattr(TokenType, name) for name in names.split())


_WORDS = _token_types("AND OR NOT IN IS LIKE ILIKE BETWEEN ESCAPE NULL TRUE FALSE")
_OPENING, _CLOSING = _token_types("L_PAREN L_BRACKET"), _token_types("R_PAREN R_BRACKET")
_SIGNS = _OPENING | _CLOSING | _token_types("COMMA DOT EQ NEQ LT LTE GT GTE PLUS DASH STAR SLASH MOD DPIPE ARROW")
_VALUES, _AMOUNTS, _PREFIXES = (
    _token_types("STRING NUMBER IDENTIFIER"),
    _token_types("STRING NUMBER"),
    _token_types("NOT DASH"),
)
_HINTS = {
    "SELECT": "a sub-query", "CASE": "CASE", "EXISTS": "EXISTS", "UNION": "UNION", "OVER": "a window", "CAST": "a cast",
    "TRY_CAST": "a cast", "RLIKE": "a regular expression", "REGEXP": "a regular expression", "DISTINCT": "DISTINCT",
}  # fmt: skip
_UNITS = frozenset({"millisecond", "second", "minute", "hour", "day", "week", "month", "year"})
EXCERPT = 24


def refused(part: str, text: str, position: int, sentence: str) -> BadExpression:
    """Return an error for a position in a filter's expression. The message quotes the expression at that position."""
    position = min(position, len(text))
    there = repr(text[position : position + EXCERPT]) if position < len(text) else "the end"
    return BadExpression(f"{sentence} (character {position + 1}: {there})", part=part, position=position)


class FilterTokens:
    """The checked tokens of a filter's expression."""

    def __init__(self, part: str, text: str) -> None:
        self.part, self.text = part, text
        if len(text) > LENGTH_MAX:
            self.refuse(LENGTH_MAX, f"it is longer than {LENGTH_MAX} characters")
        self.all = list(with_intervals([self._plain(token) for token in self._raw()]))
        if not self.all:
            self.refuse(0, "it is empty; write a condition such as speed > 30")
        self._require_shallow()

    def refuse(self, position: int, sentence: str) -> NoReturn:
        raise refused(self.part, self.text, position, sentence)

    def _raw(self) -> Sequence[Token]:
        try:
            self.text.encode()
            return Tokenizer().tokenize(self.text)
        except (SqlglotError, UnicodeEncodeError):
            quote = max(self.text.rfind("'"), self.text.rfind('"'), 0)
            return self.refuse(quote, "it cannot be parsed: is there an unclosed quote?")

    def _plain(self, token: Token) -> Token:
        kind, word = token.token_type, token.text
        if token.comments:
            self.refuse(token.start, "comments are not allowed")
        if kind in _WORDS or kind in _SIGNS or kind in _VALUES:
            return token
        if word.isidentifier() and self.text[token.start] == word[0]:
            return _token(TokenType.VAR, word, token)
        return self.refuse(token.start, f"{word[:20]!r} is not allowed here")

    def refuse_unread(self, tokens: Sequence[Token], position: int) -> NoReturn:
        """Raise an error for an expression that the parser rejected. If it contains a SQL keyword that filters do not
        allow, the message names that keyword as the likely reason."""
        for token in tokens:
            hint = _HINTS.get(token.text.upper()) if token.token_type == TokenType.VAR else None
            if hint is not None:
                self.refuse(token.start, f"{hint} is not allowed in a filter")
        self.refuse(position, "it cannot be parsed")

    def _require_shallow(self) -> None:
        depth = signs = 0
        for token in self.all:
            kind = token.token_type
            depth += (kind in _OPENING) - (kind in _CLOSING)
            signs = signs + 1 if kind in _PREFIXES else 0
            if depth + signs > DEPTH_MAX:
                self.refuse(token.start, f"it is nested more than {DEPTH_MAX} levels deep")

    def items(self) -> Iterator[list[Token]]:
        """Yield the tokens between top-level commas."""
        depth, item = 0, list[Token]()
        for token in self.all:
            kind = token.token_type
            depth += (kind in _OPENING) - (kind in _CLOSING)
            if kind == TokenType.COMMA and not depth:
                yield self._item(item, token.start)
                item = []
            else:
                item.append(token)
        yield self._item(item, len(self.text))

    def _item(self, item: list[Token], position: int) -> list[Token]:
        return item or self.refuse(position, "something is missing before this")


def _token(kind: TokenType, word: str, where: Token) -> Token:
    return Token(kind, word, where.line, where.col, where.start, where.end)


def _is_word(token: Token, word: str) -> bool:
    return token.token_type == TokenType.VAR and token.text.upper() == word


def with_intervals(tokens: Sequence[Token]) -> Iterator[Token]:
    """Rewrite a filter's `INTERVAL '1 hour'`, `INTERVAL '1' HOUR` and `INTERVAL 1 HOUR` as `interval('1 HOUR')`."""
    place = 0
    while place < len(tokens):
        token, ahead = tokens[place], tokens[place + 1 : place + 3]
        yield token
        place += 1
        if not ahead or not _is_word(token, "INTERVAL") or ahead[0].token_type not in _AMOUNTS:
            continue
        has_unit = len(ahead) == 2 and ahead[1].text.lower().removesuffix("s") in _UNITS
        text = f"{ahead[0].text} {ahead[1].text}" if has_unit else ahead[0].text
        yield _token(TokenType.L_PAREN, "(", ahead[0])
        yield _token(TokenType.STRING, text, ahead[0])
        yield _token(TokenType.R_PAREN, ")", ahead[0])
        place += 2 if has_unit else 1
