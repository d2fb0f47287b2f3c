"""The parser for the clause PATTERN ( ), such as A B+ (C | D)? E{2,3}?

alternatives = sequence { "|" sequence }
sequence     = part { part }
part         = ( name | "(" alternatives ")" | PERMUTE "(" names ")" ) [ quantifier [ "?" ] ]
quantifier   = "*" | "+" | "?" | "{" n "}" | "{" n "," [ m ] "}" | "{" "," m "}"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import NoReturn

from penstock.cep.pattern import AnyOf, Link, On, Pattern, Repeated, Sequence
from penstock.cep.problems import may_be_nothing
from penstock.core.filters.kinds import Mistake

DEPTH_MAX = 50
"""Maximum nesting of parentheses."""
TIMES_MAX = 1_000
"""Maximum number of repetitions, because repetitions are expanded."""
PERMUTE_MAX = 4
"""Maximum number of variables in PERMUTE, which is also expanded: four variables have 24 orders."""
_TOKEN = re.compile(r'\s*(?:([^\W\d]\w*)|"([^"]*)"|`([^`]*)`|(\{\s*\d*\s*(?:,\s*\d*\s*)?\})|(\S))', re.UNICODE)
_ONLY = "use names, ( ), |, *, +, ?, {n} and {n,m}"

Make = Callable[[str, int], On]
"""A function that creates a variable's step, given the variable's name and position."""


def variable(name: str, quoted: bool = False) -> str:
    """Normalize a pattern variable's name as in SQL: case does not matter unless the name is quoted."""
    return name if quoted else name.upper()


class PatternReader:
    """Parses one PATTERN clause; `at` is the position of the clause in the whole text."""

    def __init__(self, text: str, at: int, make: Make) -> None:
        self._make, self._end = make, at + len(text.rstrip())
        self._words: list[tuple[str, str, int]] = []
        self._next = self._depth = 0
        for match in _TOKEN.finditer(text):
            name, quoted, ticked, braces, sign = match.groups()
            place = at + match.end() - len(match[0].lstrip())
            if name is not None or quoted is not None or ticked is not None:
                self._words.append(("name", variable(name) if name is not None else quoted or ticked or "", place))
            elif match[0].strip():
                self._words.append(("braces", braces, place) if braces else (sign, sign, place))

    def read(self) -> Pattern:
        pattern = self._alternatives()
        if self._next < len(self._words):
            self._refuse(f"this is not allowed here in PATTERN; {_ONLY}")
        if may_be_nothing(pattern):
            self._next = 0
            self._refuse("every variable is optional, so a match would need no rows: make one of them required")
        return pattern

    def _refuse(self, sentence: str, place: int | None = None) -> NoReturn:
        here = self._words[self._next][2] if self._next < len(self._words) else self._end
        raise Mistake(here if place is None else place, sentence)

    def _sees(self, *kinds: str) -> bool:
        return self._next < len(self._words) and self._words[self._next][0] in kinds

    def _take(self) -> tuple[str, int]:
        _, word, place = self._words[self._next]
        self._next += 1
        return word, place

    def _alternatives(self) -> Pattern:
        parts = [self._sequence()]
        while self._sees("|"):
            self._take()
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _sequence(self) -> Pattern:
        parts = [self._part()]
        while self._sees("name", "("):
            parts.append(self._part())
        return _sequence_of_parts(parts)

    def _part(self) -> Pattern:
        if self._sees("("):
            part, place = self._group()
        elif self._sees("name"):
            name, place = self._take()
            part = self._permuted() if name == "PERMUTE" and self._sees("(") else self._make(name, place)
        else:
            errors = {"^": "^ has no meaning on a stream, which has no beginning", "$": "$ has no meaning on a stream, "
                    "which has no end", "braces": "put { } after a name or a group",
                    "{": "{- -} is not supported: exclude rows with WHERE"}  # fmt: skip
            kind = self._words[self._next][0] if self._next < len(self._words) else ""
            self._refuse(errors.get(kind, f"a name or a group is missing here in PATTERN; {_ONLY}"))
        return self._quantified(part, place)

    def _group(self) -> tuple[Pattern, int]:
        _, place = self._take()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse(f"parentheses are nested more than {DEPTH_MAX} levels deep")
        pattern = self._alternatives()
        self._close()
        self._depth -= 1
        return pattern, place

    def _close(self) -> None:
        if not self._sees(")"):
            self._refuse(f"a closing parenthesis is missing here in PATTERN; {_ONLY}")
        self._take()

    def _permuted(self) -> Pattern:
        """Parse PERMUTE. Each order is an alternative, and the order in the text is preferred."""
        _, place = self._take()
        parts = [self._quantified(self._make(*self._take()), place)] if self._sees("name") else []
        while self._sees(","):
            self._take()
            if not self._sees("name"):
                self._refuse("PERMUTE takes names separated by commas")
            parts.append(self._quantified(self._make(*self._take()), place))
        self._close()
        if not 2 <= len(parts) <= PERMUTE_MAX:
            self._refuse(f"PERMUTE takes 2 to {PERMUTE_MAX} variables", place)
        return AnyOf(tuple(_sequence_of_parts(list(order)) for order in permutations(parts)))

    def _quantified(self, part: Pattern, place: int) -> Pattern:
        if not self._sees("*", "+", "?", "braces"):
            return part
        word, at = self._take()
        low, high = self._bounds(word, at)
        reluctant = self._sees("?")
        if reluctant:
            self._take()
        if self._sees("*", "+", "?", "braces"):
            self._refuse("only one quantifier is allowed: put parentheses around the part to repeat it again")
        if (low, high) == (1, 1):
            return part
        if may_be_nothing(part) and (low, high) != (0, 1):
            self._refuse(
                "a group in which all variables are optional cannot be repeated: make one of them required", place
            )
        repeated = Repeated(part, max(low, 1), high, "next", is_reluctant=reluctant)
        return replace(repeated, optionally=True) if low == 0 else repeated

    def _bounds(self, word: str, place: int) -> tuple[int, int | None]:
        known: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if word in known:
            return known[word]
        first, comma, second = (piece.strip() for piece in word[1:-1].partition(","))
        if not first and not second:
            self._refuse("a number is missing: write {2}, {2,}, {2,3} or {,3}", place)
        low = int(first or 0)
        high = int(second) if second else None if comma else low
        if high == 0 or (high is not None and high < low):
            self._refuse(f"{word} can never match: the second number is 0, or smaller than the first", place)
        if max(low, high or 0) > TIMES_MAX:
            self._refuse(f"a part can be repeated at most {TIMES_MAX:,} times; use {{n,}} for more", place)
        return low, high


def _sequence_of_parts(parts: list[Pattern]) -> Pattern:
    if len(parts) == 1:
        return parts[0]
    return Sequence(parts[0], tuple(Link("next", part) for part in parts[1:]))
