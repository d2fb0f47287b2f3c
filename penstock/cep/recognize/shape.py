"""What stands in PATTERN ( ), read as a pattern: A B+ (C | D)? E{2,3}?

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
from penstock.filters.kinds import Mistake

DEPTH_MAX = 50
"""Parentheses within each other."""
TIMES_MAX = 1_000
"""A repetition is written out, so this bounds it."""
PERMUTE_MAX = 4
"""PERMUTE is written out too: four variables are 24 alternatives."""
_TOKEN = re.compile(r'\s*(?:([^\W\d]\w*)|"([^"]*)"|`([^`]*)`|(\{\s*\d*\s*(?:,\s*\d*\s*)?\})|(\S))', re.UNICODE)
_ONLY = "use names, ( ), |, *, +, ?, {n} and {n,m}"

Make = Callable[[str, int], On]
"""Makes the step of a variable, given its name and where it stands."""


def variable(name: str, quoted: bool = False) -> str:
    """Names are those of SQL: it does not matter how they are written, unless they are quoted."""
    return name if quoted else name.upper()


class Shape:
    """Reads a pattern; `at` is where the text begins in the whole."""

    def __init__(self, text: str, at: int, make: Make) -> None:
        self._make, self._end = make, at + len(text.rstrip())
        self._words: list[tuple[str, str, int]] = []
        self._next = self._depth = 0
        for found in _TOKEN.finditer(text):
            name, quoted, ticked, braces, sign = found.groups()
            place = at + found.end() - len(found[0].lstrip())
            if name is not None or quoted is not None or ticked is not None:
                self._words.append(("name", variable(name) if name is not None else quoted or ticked or "", place))
            elif found[0].strip():
                self._words.append(("braces", braces, place) if braces else (sign, sign, place))

    def read(self) -> Pattern:
        pattern = self._alternatives()
        if self._next < len(self._words):
            self._refuse(f"this cannot stand here in PATTERN; {_ONLY}")
        if may_be_nothing(pattern):
            self._next = 0
            self._refuse("every variable is optional, so no row is a match already: make one of them needed")
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
        return _one_after_the_other(parts)

    def _part(self) -> Pattern:
        if self._sees("("):
            made, place = self._group()
        elif self._sees("name"):
            name, place = self._take()
            made = self._permuted() if name == "PERMUTE" and self._sees("(") else self._make(name, place)
        else:
            told = {"^": "^ has no meaning on a stream, which has no beginning", "$": "$ has no meaning on a stream, "
                    "which has no end", "braces": "{ } stands behind a name or a group",
                    "{": "{- -} is not known: leave rows out with WHERE"}  # fmt: skip
            kind = self._words[self._next][0] if self._next < len(self._words) else ""
            self._refuse(told.get(kind, f"a name or a group is missing here in PATTERN; {_ONLY}"))
        return self._quantified(made, place)

    def _group(self) -> tuple[Pattern, int]:
        _, place = self._take()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse(f"parentheses stand more than {DEPTH_MAX} deep in each other")
        made = self._alternatives()
        self._close()
        self._depth -= 1
        return made, place

    def _close(self) -> None:
        if not self._sees(")"):
            self._refuse(f"a closing parenthesis is missing here in PATTERN; {_ONLY}")
        self._take()

    def _permuted(self) -> Pattern:
        """Each order is an alternative, the one that is written first."""
        _, place = self._take()
        parts = [self._quantified(self._make(*self._take()), place)] if self._sees("name") else []
        while self._sees(","):
            self._take()
            if not self._sees("name"):
                self._refuse("PERMUTE takes names, with commas between")
            parts.append(self._quantified(self._make(*self._take()), place))
        self._close()
        if not 2 <= len(parts) <= PERMUTE_MAX:
            self._refuse(f"PERMUTE takes 2 to {PERMUTE_MAX} variables", place)
        return AnyOf(tuple(_one_after_the_other(list(each)) for each in permutations(parts)))

    def _quantified(self, made: Pattern, place: int) -> Pattern:
        if not self._sees("*", "+", "?", "braces"):
            return made
        word, at = self._take()
        low, high = self._bounds(word, at)
        reluctant = self._sees("?")
        if reluctant:
            self._take()
        if self._sees("*", "+", "?", "braces"):
            self._refuse("one quantifier is enough: put a group in parentheses to repeat it again")
        if (low, high) == (1, 1):
            return made
        if may_be_nothing(made) and (low, high) != (0, 1):
            self._refuse("a group that may be nothing cannot be repeated: make one of its variables needed", place)
        repeated = Repeated(made, max(low, 1), high, "next", is_reluctant=reluctant)
        return replace(repeated, optionally=True) if low == 0 else repeated

    def _bounds(self, word: str, place: int) -> tuple[int, int | None]:
        known: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if word in known:
            return known[word]
        first, comma, second = (each.strip() for each in word[1:-1].partition(","))
        if not first and not second:
            self._refuse("a number is missing: write {2}, {2,}, {2,3} or {,3}", place)
        low = int(first or 0)
        high = int(second) if second else None if comma else low
        if high == 0 or (high is not None and high < low):
            self._refuse(f"{word} can never be: the second number must not be smaller, nor 0", place)
        if max(low, high or 0) > TIMES_MAX:
            self._refuse(f"a repetition is of {TIMES_MAX:,} rows at most; use {{n,}} for more", place)
        return low, high


def _one_after_the_other(parts: list[Pattern]) -> Pattern:
    if len(parts) == 1:
        return parts[0]
    return Sequence(parts[0], tuple(Link("next", part) for part in parts[1:]))
