"""LIKE: a pattern in which `%` stands for any text and `_` for one character.

Most patterns need no more than a comparison. For the others an expression for Arrow's engine is put together, in which
all that is the client's is escaped. That engine's time grows with the length of a text, not faster; how many wildcards
there may be bounds the factor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters.functions import computed, written_text
from penstock.filters.kinds import TEXT, TRUTH, Mistake, Operand, constant
from penstock.filters.limits import LIKE_FLOATING_MAX, LIKE_LENGTH_MAX, LIKE_WILDCARDS_MAX

MANY, ONE = object(), object()
Piece = str | object


def like(name: str, operands: Sequence[Operand]) -> Operand:
    """`this LIKE pattern` or `this ILIKE pattern`, perhaps with a character that escapes."""
    this = operands[0]
    if this.kind.name == "null":
        return constant(TRUTH, None, this.position, this.shown)
    if this.kind != TEXT:
        raise Mistake(this.position, f"LIKE does not take {this.typed}")
    pieces = _pattern(operands)
    if name == "ilike":
        pieces = [_lowered(each) for each in pieces]
    run, matches = this.run, _matcher(pieces)
    if name == "like":
        return computed(TRUTH, lambda batch: matches(run(batch)), this.position)
    return computed(TRUTH, lambda batch: matches(pc.utf8_lower(run(batch))), this.position)


def _pattern(operands: Sequence[Operand]) -> list[Piece]:
    return _pieces(operands[1], _escape(operands[2]) if len(operands) == 3 else "\\")


def _escape(operand: Operand) -> str:
    text = written_text("ESCAPE", operand)
    if len(text) > 1:
        raise Mistake(operand.position, "ESCAPE takes one character")
    return text


def _pieces(operand: Operand, escape: str) -> list[Piece]:
    """The pattern as texts and wildcards."""
    pattern, place = written_text("LIKE", operand), operand.position
    if len(pattern) > LIKE_LENGTH_MAX:
        raise Mistake(place, f"a pattern has at most {LIKE_LENGTH_MAX} characters")
    pieces: list[Piece] = []
    characters = iter(pattern)
    for each in characters:
        if escape and each == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise Mistake(place, f"nothing stands behind {escape!r}, which escapes, at the end of the pattern")
            _append(pieces, escaped)
        elif each in "%_":
            if each == "_" or not pieces or pieces[-1] is not MANY:
                pieces.append(MANY if each == "%" else ONE)
        else:
            _append(pieces, each)
    _require_few(pieces, place)
    return pieces


def _append(pieces: list[Piece], character: str) -> None:
    if pieces and isinstance(pieces[-1], str):
        pieces[-1] += character
    else:
        pieces.append(character)


def _require_few(pieces: Sequence[Piece], place: int) -> None:
    wild = [each for each in pieces if not isinstance(each, str)]
    floating = wild[wild.index(MANY) :].count(ONE) if MANY in wild else 0
    if len(wild) > LIKE_WILDCARDS_MAX:
        raise Mistake(place, f"a pattern has at most {LIKE_WILDCARDS_MAX} of % and _")
    if floating > LIKE_FLOATING_MAX:
        raise Mistake(place, f"a pattern has at most {LIKE_FLOATING_MAX} of _ behind a %")


def _lowered(piece: Piece) -> Piece:
    return pc.utf8_lower(pa.scalar(piece)).as_py() if isinstance(piece, str) else piece


def is_hard(operands: Sequence[Operand]) -> bool:
    """Whether a pattern needs the engine."""
    return _simple(_pattern(operands)) is None


def _matcher(pieces: Sequence[Piece]) -> Callable[[Any], Any]:
    simple = _simple(pieces)
    if simple is not None:
        return simple
    pattern = "".join(re.escape(each) if isinstance(each, str) else ".*" if each is MANY else "." for each in pieces)
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
