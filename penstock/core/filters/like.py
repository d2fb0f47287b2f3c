"""The operators LIKE and ILIKE: in a pattern, `%` matches any string and `_` matches one character.

Most patterns need only a comparison. All other patterns are converted to regular expressions for Arrow's engine, with
the client's text escaped. The engine's running time is linear in the length of the string, and a limit on wildcards
bounds the factor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.filters.functions import computed, written_text
from penstock.core.filters.kinds import TEXT, TRUTH, Mistake, Operand, constant
from penstock.core.filters.limits import LIKE_FLOATING_MAX, LIKE_LENGTH_MAX, LIKE_WILDCARDS_MAX

MANY, ONE = object(), object()
Piece = str | object


def like(name: str, operands: Sequence[Operand]) -> Operand:
    """Build `this LIKE pattern` or `this ILIKE pattern`, with an optional escape character."""
    this = operands[0]
    if this.kind.name == "null":
        return constant(TRUTH, None, this.position, this.shown)
    if this.kind != TEXT:
        raise Mistake(this.position, f"LIKE does not accept {this.typed}")
    pieces = _like_pattern(operands)
    if name == "ilike":
        pieces = [_lowercase_piece(piece) for piece in pieces]
    run, matches = this.run, _matcher(pieces)
    if name == "like":
        return computed(TRUTH, lambda batch: matches(run(batch)), this.position)
    return computed(TRUTH, lambda batch: matches(pc.utf8_lower(run(batch))), this.position)


def _like_pattern(operands: Sequence[Operand]) -> list[Piece]:
    return _like_pieces(operands[1], _like_escape(operands[2]) if len(operands) == 3 else "\\")


def _like_escape(operand: Operand) -> str:
    text = written_text("ESCAPE", operand)
    if len(text) > 1:
        raise Mistake(operand.position, "ESCAPE takes one character")
    return text


def _like_pieces(operand: Operand, escape: str) -> list[Piece]:
    """Split a LIKE pattern into literal strings and wildcards."""
    pattern, position = written_text("LIKE", operand), operand.position
    if len(pattern) > LIKE_LENGTH_MAX:
        raise Mistake(position, f"a pattern can have at most {LIKE_LENGTH_MAX} characters")
    pieces: list[Piece] = []
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise Mistake(
                    position, f"the pattern ends with the escape character {escape!r}; put a character after it"
                )
            _append_character(pieces, escaped)
        elif character in "%_":
            if character == "_" or not pieces or pieces[-1] is not MANY:
                pieces.append(MANY if character == "%" else ONE)
        else:
            _append_character(pieces, character)
    _require_few_wildcards(pieces, position)
    return pieces


def _append_character(pieces: list[Piece], character: str) -> None:
    if pieces and isinstance(pieces[-1], str):
        pieces[-1] += character
    else:
        pieces.append(character)


def _require_few_wildcards(pieces: Sequence[Piece], position: int) -> None:
    wild = [piece for piece in pieces if not isinstance(piece, str)]
    floating = wild[wild.index(MANY) :].count(ONE) if MANY in wild else 0
    if len(wild) > LIKE_WILDCARDS_MAX:
        raise Mistake(position, f"a pattern can have at most {LIKE_WILDCARDS_MAX} wildcards (% and _)")
    if floating > LIKE_FLOATING_MAX:
        raise Mistake(position, f"a pattern can have at most {LIKE_FLOATING_MAX} _ wildcards after a %")


def _lowercase_piece(piece: Piece) -> Piece:
    return pc.utf8_lower(pa.scalar(piece)).as_py() if isinstance(piece, str) else piece


def is_hard(operands: Sequence[Operand]) -> bool:
    """Return whether a LIKE pattern needs the regular expression engine."""
    return _simple(_like_pattern(operands)) is None


def _matcher(pieces: Sequence[Piece]) -> Callable[[Any], Any]:
    simple = _simple(pieces)
    if simple is not None:
        return simple
    pattern = "".join(
        re.escape(piece) if isinstance(piece, str) else ".*" if piece is MANY else "." for piece in pieces
    )
    return lambda texts: pc.match_substring_regex(texts, pattern=rf"\A(?s:{pattern})\z")


def _simple(pieces: Sequence[Piece]) -> Callable[[Any], Any] | None:
    match pieces:
        case []:
            return lambda texts: pc.equal(texts, "")
        case [str(text)]:
            return lambda texts: pc.equal(texts, text)
        case [str(text), last] if last is MANY:
            return lambda texts: pc.starts_with(texts, pattern=text)
        case [first, str(text)] if first is MANY:
            return lambda texts: pc.ends_with(texts, pattern=text)
        case [first, str(text), last] if first is MANY and last is MANY:
            return lambda texts: pc.match_substring(texts, pattern=text)
    return None
