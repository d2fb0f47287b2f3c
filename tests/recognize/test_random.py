"""Random patterns over random letters, compared with Python's regular expressions, and with trying in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st

from penstock.cep.finding import find_matches
from tests.cep.letters import Letter, second
from tests.recognize.texts import read, text

KINDS = {"A": "a", "B": "b", "X": "ab", "Y": "bc", "Z": "abc"}
"""The letters that fit each variable. Several fit the same, so that the preference matters."""
QUANTIFIERS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{1,3}?", "{,2}", "{2,}"]
QUICK = settings(max_examples=60, deadline=None)


@dataclass(frozen=True)
class Shape:
    """A pattern as SQL text, as a regular expression, and as something to try: a list of choices, in order."""

    ours: str
    theirs: str
    parts: tuple[Any, ...]
    nothing: bool = False


@st.composite
def shapes(draw: Any, depth: int = 2) -> Shape:
    kind = draw(st.sampled_from(["step", "step", "sequence", "either"])) if depth else "step"
    if kind == "step":
        name = draw(st.sampled_from(sorted(KINDS)))
        shape = Shape(name, f"[{KINDS[name]}]", ("step", name))
    else:
        inner = [draw(shapes(depth - 1)) for _ in range(draw(st.integers(2, 3)))]
        shape = joined(kind, inner)
    quantifier = draw(st.sampled_from(["", "", *QUANTIFIERS]))
    return repeated(shape, quantifier) if quantifier else shape


def joined(kind: str, inner: list[Shape]) -> Shape:
    sign = " " if kind == "sequence" else " | "
    nothing = (all if kind == "sequence" else any)(shape.nothing for shape in inner)
    theirs = ("" if kind == "sequence" else "|").join(shape.theirs for shape in inner)
    ours = sign.join(shape.ours for shape in inner)
    return Shape(f"({ours})", f"(?:{theirs})", (kind, *(shape.parts for shape in inner)), nothing)


def repeated(shape: Shape, quantifier: str) -> Shape:
    """Repeat a shape. One that may be empty is not repeated: engines do not agree on the meaning."""
    if shape.nothing:
        return shape
    numbers = re.findall(r"\d+", quantifier)
    low, high = {"*": (0, 99), "+": (1, 99), "?": (0, 1)}.get(quantifier[0], (0, 99))
    if quantifier[0] == "{":
        low = 0 if quantifier[1] == "," else int(numbers[0])
        high = 99 if ",}" in quantifier else int(numbers[-1])
    reluctant = len(quantifier) > 1 and quantifier.endswith("?")
    parts = ("times", shape.parts, low, high, reluctant)
    return Shape(f"{shape.ours}{quantifier}", f"(?:{shape.theirs}){quantifier}", parts, low == 0)


def tried(parts: tuple[Any, ...], letters: str, place: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield every way to match from a position, the preferred one first: its end, and the variables."""
    kind = parts[0]
    if kind == "step":
        if place < len(letters) and letters[place] in KINDS[parts[1]]:
            yield place + 1, (parts[1],)
    elif kind == "either":
        for part in parts[1:]:
            yield from tried(part, letters, place)
    elif kind == "sequence":
        for end, names in tried(parts[1], letters, place):
            if len(parts) == 2:
                yield end, names
            else:
                yield from ((last, names + more) for last, more in tried(("sequence", *parts[2:]), letters, end))
    else:
        yield from tried_often(parts, letters, place)


def tried_often(parts: tuple[Any, ...], letters: str, place: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    _, inner, low, high, reluctant = parts
    if reluctant and low == 0:
        yield place, ()
    if high > 0:
        for end, names in tried(inner, letters, place):
            again = ("times", inner, max(low - 1, 0), high - 1, reluctant)
            yield from ((last, names + more) for last, more in tried_often(again, letters, end))
    if not reluctant and low == 0:
        yield place, ()


PATTERNS = shapes().filter(lambda shape: not shape.nothing)
WORDS = st.text("abc", max_size=9)


def matches_of(shape: Shape, letters: str, rest: str, how: str = "") -> list[tuple[int, tuple[str, ...]]]:
    """The first row of each match, and the variables of its rows."""
    defined = [
        f"{name} AS kind IN {tuple(kinds + kinds[-1])}{how}" for name, kinds in KINDS.items() if name in shape.ours
    ]
    statement = text(shape.ours, define=", ".join(defined), rest=rest)
    note(statement)
    events = [Letter(at=second(number), kind=letter) for number, letter in enumerate(letters)]
    places = {id(event): place for place, event in enumerate(events)}
    return [
        (places[id(match.events[0])], tuple(match.steps)) for match in find_matches(read(statement).search, events)
    ]  # fmt: skip


@QUICK
@given(PATTERNS, WORDS)
def test_matches_are_those_of_a_regular_expression(shape: Shape, letters: str) -> None:
    spans = [(place, place + len(names)) for place, names in matches_of(shape, letters, "")]
    assert spans == [match.span() for match in re.finditer(shape.theirs, letters)]


@QUICK
@given(PATTERNS, WORDS)
def test_each_row_may_begin_the_match_of_a_regular_expression(shape: Shape, letters: str) -> None:
    spans = [(place, place + len(names)) for place, names in matches_of(shape, letters, "AFTER MATCH SKIP TO NEXT ROW")]
    compiled = re.compile(shape.theirs)
    tries = [compiled.match(letters, place) for place in range(len(letters))]
    assert spans == [match.span() for match in tries if match is not None]


@QUICK
@given(PATTERNS, WORDS, st.sampled_from(["", " AND COUNT(*) > 0"]))
def test_rows_have_the_variables_that_trying_in_order_gives(shape: Shape, letters: str, how: str) -> None:
    """With a condition on the match so far, nothing is merged; it must make no difference."""
    expected = []
    for place in range(len(letters)):
        first = next(tried(shape.parts, letters, place), None)
        if first is not None:
            expected.append((place, first[1]))
    assert matches_of(shape, letters, "AFTER MATCH SKIP TO NEXT ROW", how) == expected
