"""The examples of Siddhi's query guide, one a row: patterns, counting, logical ones, absences, sequences.

Letters stand for its streams: `r` is a regulator, `t` a temperature (its number), `k` a room's key. Deliberate
differences are in a separate table.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import cep
from penstock.cep import skip
from penstock.core.errors import DeclarationError
from tests.cep.letters import Letter, matches_of, on

S = timedelta(seconds=1)
a, b, c = on("a"), on("b"), on("c")
ten_minutes = {"within": timedelta(minutes=10)}

first = cep.on("e1", Letter, lambda event, match: event.kind == "t")
warmer = cep.on("e2", Letter, lambda event, match: event.kind == "t" and event.number >= match["e1"].number + 5)
rising = cep.on("e2", Letter, lambda event, match: event.kind == "t" and event.number > match["e1"].number + 1)
start, off, key = on("r", "start"), on("o", "off"), on("k", "key")
cold = cep.on("cold", Letter, lambda event, match: event.kind == "t" and event.number < 12)

PATTERNS: list[tuple[cep.Pattern, dict[str, Any], str, list[str]]] = [
    # a room that becomes five degrees warmer in ten minutes, from every event
    (first.then(warmer), ten_minutes, "t20@0 t22@60 t26@120", ["t20 t26"]),
    (first.then(warmer), ten_minutes, "t20@0 t22@60 t27@120", ["t20 t27", "t22 t27"]),
    (first.then(warmer), ten_minutes, "t20@0 t26@600", ["t20 t26"]),
    (first.then(warmer), ten_minutes, "t20@0 t26@601", []),
    # without `every` the matching is carried out once
    (first.then(warmer), {**ten_minutes, "every": False}, "t20@0 t26@60 t31@120", ["t20 t26"]),
    # every (A -> B): the next one begins when this is complete
    (cep.every(a.then(b)), {}, "a1 a2 b1 a3 b2", ["a1 b1", "a3 b2"]),
    (a.then(b), {"skip": skip.past_last}, "a1 a2 b1 a3 b2", ["a1 b1", "a3 b2"]),
    (a.then(b), {}, "a1 a2 b1 a3 b2", ["a1 b1", "a2 b1", "a3 b2"]),
]

COUNTING: list[tuple[cep.Pattern, dict[str, Any], str, list[str]]] = [
    (start.then(on("t").at_least(1).greedy()).then(on("r", "again")), {}, "r1 t29 t26 r2", ["r1 t29 t26 r2"]),
    (start.then(on("t").at_least(1).greedy()).then(on("r", "again")), {}, "r1 r2", []),
    (a.times(2, 3).greedy().then(b), {"every": False}, "a1 a2 a3 b", ["a1 a2 a3 b"]),
    (a.times(2), {"every": False}, "a1 c a2 a3", ["a1 a2"]),
]

PART: list[tuple[cep.Pattern, dict[str, Any], str, list[str]]] = [
    (a.then_any(b), {"every": False}, "a1 b1", ["a1 b1"]),
    (a.then_any(b).then(c), {}, "a b1 b2 c", ["a b1 c", "a b2 c"]),  # `A -> every B -> C`
    (a.then(cep.every(b)).then(c), {}, "a b1 b2 c", ["a b1 c", "a b2 c"]),
    (a.then_any(b).then(c), {}, "a1 a2 b c", ["a1 b c", "a2 b c"]),  # where Siddhi only has that of a1
    # `A -> B`, where the first A has timed out: Siddhi waits with that alone, and has no match
    (a.then(b), {"every": False, "within": 5 * S}, "a1@0 a2@4 b@7", ["a2 b"]),
    # `A<2:3> -> B` without every=False or a skip: each A begins its own match
    (a.times(2, 3).greedy().then(b), {}, "a1 a2 a3 b", ["a1 a2 a3 b", "a2 a3 b"]),
    (a.times(2, 3).greedy().then(b), {"skip": skip.past_last}, "a1 a2 a3 b", ["a1 a2 a3 b"]),
    # `every (A -> B) -> C`: a new one for each complete one, and C ends all that wait
    (cep.every(a.then(b)).then(c), {}, "a1 b1 a2 b2 c1 c2", ["a1 b1 c1", "a2 b2 c1"]),
    (cep.every(a.then(b)).then(c), {}, "a1 b1 a2 c1 b2 c2", ["a1 b1 c1", "a2 b2 c2"]),
    (cep.every(a.then(b)).then(c), {}, "a1 a2 a3 b1 b2 c1", ["a1 b1 c1"]),
    (cep.every(a.then(b)).then(c), {"every": False}, "a1 b1 a2 b2 c1 c2", ["a1 b1 c1"]),
    (cep.every(a.then(b)).then(c), {"within": 5 * S}, "a1@0 b1@1 a2@3 b2@4 c@6", ["a2 b2 c"]),
    (cep.every(a.then(b)), {"within": 2 * S}, "a1@0 a2@1 a3@3 b@4", ["a3 b"]),  # its time is over: the next may begin
    (cep.every(a.then(b)), {"gap": 2 * S}, "a1@0 a2@2 a3@4 b@5", ["a3 b"]),
    # `A -> every (B -> C) -> D`, and at the end
    (a.then(cep.every(b.then(c))).then(off), {}, "a b1 c1 b2 c2 o1 o2", ["a b1 c1 o1", "a b2 c2 o1"]),
    (a.then(cep.every(b.then(c))), {}, "a1 a2 b1 c1 b2 c2", ["a1 b1 c1", "a2 b1 c1", "a1 b2 c2", "a2 b2 c2"]),
    (a.then(cep.every(b.then(c))), {"within": 3 * S}, "a@0 b1@1 c1@2 b2@3 c2@4", ["a b1 c1"]),
    (cep.every(a.times(2)).not_then(b).then(c), {}, "a1 b1 a2 a3 b2 a4 c", ["a3 a4 c"]),
    (cep.every(a.times(2)).not_then(b).then(c), {}, "a1 b1 a2 c1", ["a1 a2 c1"]),
]

LOGICAL: list[tuple[cep.Pattern, dict[str, Any], str, list[str]]] = [
    (cep.all_of(a, b), {"every": False}, "b c a", ["b a"]),  # and: both, in any order
    (cep.all_of(a, b), {"every": False}, "a c b", ["a b"]),
    (start.then(cep.any_of(key, off)), {}, "r1 k1 o1", ["r1 k1"]),  # or: either of them
    (start.then(cep.any_of(key, off)), {}, "r1 o1 k1", ["r1 o1"]),
    (start.not_then(cold).then(off), {}, "r1 t20 o1", ["r1 o1"]),  # not and: none of it before
    (start.not_then(cold).then(off), {}, "r1 t11 o1", []),
    (start.then(cep.all_of(cep.absent(cold), off)), {}, "r1 t20 o1", ["r1 o1"]),
    (start.then(cep.all_of(cep.absent(cold), off)), {}, "r1 t11 o1", []),
    # `not A and B -> C` as the first step
    (cep.all_of(cep.absent(a), b).then(c), {"every": False}, "b1 b2 c1", ["b1 c1"]),
    (cep.all_of(cep.absent(a), b).then(c), {"every": False}, "a1 b1 c1", []),
    (cep.all_of(cep.absent(a), b).then(c), {"every": False}, "b1 a1 c1", ["b1 c1"]),
    (cep.all_of(cep.absent(a), b).then(c), {}, "c1 b1 a1 b2 c2", ["b1 c2"]),
    (cep.all_of(cep.absent(on("ab", "x")), b), {}, "b1", []),  # an event that is both
]

ABSENT: list[tuple[cep.Pattern, dict[str, Any], str, list[str]]] = [
    (start.then(cep.absent(cold, for_=timedelta(minutes=5))), {}, "r1@0 t20@100", ["r1"]),
    (start.then(cep.absent(cold, for_=timedelta(minutes=5))), {}, "r1@0 t11@299", []),
    (start.then(cep.absent(cold, for_=timedelta(minutes=5))), {}, "r1@0 t11@301", ["r1"]),
    (a.then(cep.absent(b, for_=5 * S)).then(c), {}, "a@0 c1@3 c2@6", ["a c2"]),
    (a.then(cep.absent(b, for_=5 * S)).then(c), {}, "a@0 b@3 c@6", []),
    # `not A for 5 sec -> B`: from the first event of the key, where Siddhi counts from the start of the program
    (cep.absent(a, for_=5 * S).then(b), {"every": False}, "c@0 b1@3 b2@6 b3@7", ["b2"]),
    # `every not A for 5 sec`: each five seconds of silence
    (cep.absent(a, for_=5 * S).at_least(1), {"within": 16 * S}, "a@0", ["", "", ""]),
    (a.then(cep.any_of(cep.absent(b, for_=5 * S), c)), {}, "a@0 c@3", ["a c"]),  # `not B for 5 sec or C`
    (a.then(cep.any_of(cep.absent(b, for_=5 * S), c)), {}, "a@0 c@6", ["a"]),
    (a.then(cep.all_of(cep.absent(b, for_=5 * S), c)), {}, "a@0 c@3", ["a c"]),  # `not B for 5 sec and C`
    (a.then(cep.all_of(cep.absent(b, for_=5 * S), c)), {}, "a@0 c@3 b@4", []),
    # `A -> not B for 2 sec and not C for 5 sec`: counted from the same moment
    (a.then(cep.all_of(cep.absent(b, for_=2 * S), cep.absent(c, for_=5 * S))), {}, "a@0 b@2 c@5", ["a"]),
    (a.then(cep.all_of(cep.absent(b, for_=2 * S), cep.absent(c, for_=5 * S))), {}, "a@0 b@1", []),
    (a.then(cep.all_of(cep.absent(b, for_=2 * S), cep.absent(c, for_=5 * S))), {}, "a@0 c@4", []),
    (a.then(cep.all_of(cep.absent(b, for_=5 * S), cep.absent(c, for_=5 * S))), {}, "a@0 c@5", ["a"]),
    # `A -> not B for 2 sec or not C for 5 sec`: the first that is complete
    (a.then(cep.any_of(cep.absent(b, for_=2 * S), cep.absent(c, for_=5 * S))), {}, "a@0 b@1", ["a"]),
    (a.then(cep.any_of(cep.absent(b, for_=2 * S), cep.absent(c, for_=5 * S))), {}, "a@0 c@1", ["a"]),
    (a.then(cep.any_of(cep.absent(b, for_=2 * S), cep.absent(c, for_=5 * S))), {}, "a@0 b@1 c@4", []),
    # `not A for 5 sec and B`, `not A for 5 sec and not B for 5 sec` as the first step
    (cep.all_of(cep.absent(a, for_=5 * S), b), {"every": False}, "c@0 b@3", ["b"]),
    (cep.all_of(cep.absent(a, for_=5 * S), b), {"every": False}, "c@0 b@3 a@4", []),
    (cep.all_of(cep.absent(a, for_=5 * S), cep.absent(b, for_=5 * S)), {"every": False}, "c@0", [""]),
    # `not A for 5 sec or B`, `not A for 5 sec or not B for 5 sec` as the first step: with every=False, one of them
    (cep.any_of(cep.absent(a, for_=5 * S), b), {"every": False}, "c@0 b@3", ["b"]),
    (cep.any_of(cep.absent(a, for_=5 * S), b), {"every": False}, "c@0 b@6", [""]),
    (cep.any_of(cep.absent(a, for_=5 * S), cep.absent(b, for_=5 * S)), {"every": False}, "c@0 b@3", [""]),
]

SEQUENCES: list[tuple[cep.Pattern, dict[str, Any], str, list[str]]] = [
    (first.next(rising), {}, "t20 t22 t23 t25", ["t20 t22", "t23 t25"]),  # one right after the other
    (first.next(rising), {}, "t20 x t22", []),
    (a.next(b.at_least(1).consecutive().greedy()).next(c), {}, "a b1 b2 c", ["a b1 b2 c"]),
    (a.next(b.at_least(1).consecutive().optional().greedy()).next(c), {}, "a c", ["a c"]),
    (a.next(b.optional().greedy()).next(c), {}, "a b c", ["a b c"]),
]


@pytest.mark.parametrize(
    ("pattern", "options", "events", "expected"), [*PATTERNS, *COUNTING, *PART, *LOGICAL, *ABSENT, *SEQUENCES]
)
def test_a_pattern_gives_what_the_guide_says(
    pattern: cep.Pattern, options: dict[str, Any], events: str, expected: list[str]
) -> None:
    assert matches_of(pattern, events, **options) == expected


DIFFERENT = [
    (cep.every(cep.all_of(a, b)), "every takes only steps"),  # `every (A and B)`
]


@pytest.mark.parametrize(("pattern", "problem"), DIFFERENT)
def test_where_we_differ_on_purpose_it_is_refused(pattern: cep.Pattern, problem: str) -> None:
    with pytest.raises(DeclarationError, match=problem):
        matches_of(pattern, "a b")
