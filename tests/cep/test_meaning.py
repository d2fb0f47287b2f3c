"""The meaning of each part of the language: a pattern, the events, and the matches in the order of their emission."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from penstock import Event, cep
from penstock.cep import skip
from penstock.cep.engine import PatternEngine
from penstock.cep.finding import At
from penstock.cep.memory import memory_class
from penstock.cep.pattern import Absent, On
from penstock.cep.search import Search
from penstock.core.errors import DeclarationError
from tests.cep.letters import Letter, letters, matches_of, on, second, shown

a, b, c, d, e, f = on("a"), on("b"), on("c"), on("d"), on("e"), on("f")
S = timedelta(seconds=1)


def is_d(event: Letter, match: cep.Match) -> bool:
    return event.kind == "d"


def is_first(event: Letter, match: cep.Match) -> bool:
    return event.number == 1


CONTIGUITY = [
    (a.next(b), "a c b1 b2", []),
    (a.then(b), "a c b1 b2", ["a b1"]),
    (a.then_any(b), "a c b1 b2", ["a b1", "a b2"]),
    (a.next(b), "a1 a2 b", ["a2 b"]),
    (a.then(b), "a1 a2 b", ["a1 b", "a2 b"]),
    (a.then(b).next(c), "a b c", ["a b c"]),
    (a.then(b).next(c), "a b d c", []),
    (a.next(b).then(c), "a b d c", ["a b c"]),
    (a.then(b.next(c)), "a b d b c", []),  # the first b is the one
    (a.then_any(b.next(c)), "a b1 d b2 c", ["a b2 c"]),
    (a, "a1 b a2", ["a1", "a2"]),
]

REPETITION = [
    (a.times(2), "a1 b a2 a3", ["a1 a2", "a2 a3"]),
    (a.times(2).consecutive(), "a1 b a2 a3", ["a2 a3"]),
    (a.times(2).combinations(), "a1 a2 a3", ["a1 a2", "a1 a3", "a2 a3"]),
    (a.times(1, 2), "a1 a2", ["a1", "a1 a2", "a2"]),
    (c.then(a.at_least(1)).then(b), "c d a1 a2 a3 d a4 b", ["c a1 b", "c a1 a2 b", "c a1 a2 a3 b", "c a1 a2 a3 a4 b"]),
    (c.then(a.at_least(1).consecutive()).then(b), "c d a1 a2 a3 d a4 b", ["c a1 b", "c a1 a2 b", "c a1 a2 a3 b"]),
    (c.then_any(a.at_least(1).consecutive()).next(b), "c a1 d a2 d a3 b", ["c a3 b"]),
    (
        c.then_any(a.at_least(1)).then(b),
        "c a1 d a2 d a3 b",
        ["c a1 b", "c a1 a2 b", "c a1 a2 a3 b", "c a2 b", "c a2 a3 b", "c a3 b"],
    ),
    (
        c.then_any(a.at_least(1).combinations()).then(b),
        "c a1 d a2 d a3 b",
        ["c a1 b", "c a1 a2 b", "c a1 a3 b", "c a1 a2 a3 b", "c a2 b", "c a2 a3 b", "c a3 b"],
    ),
    (
        c.then(a.at_least(1).combinations()).then(b),
        "c a1 a2 a3 b",
        ["c a1 b", "c a1 a2 b", "c a1 a3 b", "c a1 a2 a3 b"],
    ),
    (a.at_least(2).next(b), "a1 a2 a3 b", ["a1 a2 a3 b", "a2 a3 b"]),
    (a.then(b).times(2), "a1 b1 a2 b2", ["a1 b1 a2 b2"]),
    (a.next(b).at_least(1).next(c), "a1 b1 a2 b2 c", ["a1 b1 a2 b2 c", "a2 b2 c"]),
    (a.then(b.times(2, 3)).next(c), "a b1 b2 b3 c", ["a b1 b2 b3 c"]),
    # times repeats everything before it
    (a.times(2).times(3), "a1 a2 a3 a4 a5 a6 a7", ["a1 a2 a3 a4 a5 a6", "a2 a3 a4 a5 a6 a7"]),
    (a.times(2).at_least(2), "a1 a2 a3 a4 a5", ["a1 a2 a3 a4", "a2 a3 a4 a5"]),
    (a.times(2).consecutive().times(2), "a1 a2 b a3 a4", ["a1 a2 a3 a4"]),
    (a.optional().times(2).next(b), "b", ["b"]),  # optional gives no number, so the number is that of two
]

OPTIONAL = [
    (a.then(b.optional()).then(c), "a b c", ["a b c", "a c"]),
    (a.then(b.optional()).then(c), "a c", ["a c"]),
    (a.next(b.optional()).next(c), "a b c", ["a b c"]),
    (a.next(b.optional()).next(c), "a c", ["a c"]),
    (a.then(b.times(2).optional()).then(c), "a b1 c", ["a c"]),
    (a.then(b.at_least(1).optional()).then(c), "a b1 b2 c", ["a b1 c", "a b1 b2 c", "a c"]),
    (a.optional().next(b), "a b c b", ["a b", "b", "b"]),
    (a.optional().then(b.optional()).then(c), "a b c", ["a b c", "a c", "b c", "c"]),
    (a.then(b.optional()), "a b", ["a", "a b"]),
    (c.then(a.optional().then(b)), "c a b", ["c a b", "c b"]),
    # omitting the beginning of a group does not change how the next step follows
    (c.next(a.optional().then(b)), "c d b", ["c b"]),
    (c.next(a.optional().then(b)), "c d a b", ["c b"]),
    (c.then(a.optional().next(b)), "c d b", []),
    (c.then(a.optional().next(b)), "c d a b", ["c a b"]),
    # nor does omitting the beginning of a group in a group
    (c.next(a.optional().next(b.optional().then(d))), "c x d", ["c d"]),
    (c.then(a.optional().next(b.optional().greedy().then(on("bd", "bd")))), "c x b", ["c b"]),
]

GREEDY = [
    (a.then(on("bc", "x").at_least(1)).then(c), "a b c1 c2", ["a b c1", "a b c1 c2"]),
    (a.then(on("bc", "x").at_least(1).greedy()).then(c), "a b c1 c2", []),
    (a.then(on("bc", "x").times(1, 2).greedy()).then(c), "a b c1 c2", ["a b c1 c2"]),
    (a.then(b.at_least(1).greedy()).then(c), "a b1 d b2 c", ["a b1 b2 c"]),
    (a.then(b.at_least(1)).then(c), "a b1 d b2 c", ["a b1 c", "a b1 b2 c"]),
    (a.then(b.optional().greedy()).then(c), "a b c", ["a b c"]),
    (a.then(b.optional().greedy()).then(c), "a c", ["a c"]),
    (a.then(b.at_least(1).consecutive().greedy()).then(c), "a b1 b2 d b3 c", ["a b1 b2 c"]),
    # a greedy repetition that could not continue has ended for good, whatever comes later
    (b.at_least(1).consecutive().greedy().then(on("bc", "x")), "b1 d b2", ["b1 b2"]),
    (b.at_least(1).consecutive().greedy().not_next(c).then(on("bc", "x")), "b1 d b2", ["b1 b2"]),
    (b.at_least(1).greedy().until(is_d).then(on("bc", "x")), "b1 d b2", ["b1 b2"]),
    (b.at_least(1).greedy().until(is_d).not_next(c).then(on("bc", "x")), "b1 d b2", ["b1 b2"]),
    (b.at_least(1).consecutive().greedy().until(is_d).not_next(c).then(on("bc", "x")), "b1 d b2", ["b1 b2"]),
    (b.at_least(1).consecutive().greedy().not_next(d).then(on("bc", "x")), "b1 d b2", []),
    # also in a group that may be omitted as a whole
    (a.then(b.optional().greedy().then(d.optional().greedy())).then(c), "a b d c", ["a b d c"]),
]

UNTIL = [
    (a.at_least(1).until(lambda event, match: event.kind == "b"), "a1 c a2 b a3", ["a1", "a1 a2", "a2", "a3"]),
    (c.then(a.at_least(1).until(lambda event, match: event.kind == "d")).then(b), "c a1 d a2 b", ["c a1 b"]),
    (
        a.at_least(1).until(lambda event, match: len(match.all("a")) == 2).next(b),
        "a1 a2 a3 b",
        ["a2 a3 b", "a3 b"],
    ),
    # of a group it is checked between repetitions, not inside one
    (a.then(b).at_least(1).until(is_d), "a1 b1 a2 d b2", ["a1 b1", "a1 b1 a2 b2", "a2 b2"]),
    (a.then(b).at_least(1).until(is_d), "a1 b1 d a2 b2", ["a1 b1", "a2 b2"]),
    # of a step inside a group it is checked again each time
    (c.then(a.at_least(1).until(is_d)).times(2), "c1 a1 d c2 a2", ["c1 a1 c2 a2"]),
]

NEGATION = [
    (a.not_next(b).then(c), "a b c", []),
    (a.not_next(b).then(c), "a d b c", ["a c"]),
    (a.not_next(b).then(c), "a c", ["a c"]),
    (a.not_then(b).then(c), "a d b c", []),
    (a.not_then(b).then(c), "a d c b", ["a c"]),
    (a.not_then(b).then(c), "a1 b a2 c", ["a2 c"]),
    (a.not_then(b).then_any(c), "a c1 b c2", ["a c1"]),
    (a.not_then(on("bc", "x")).then(c), "a c", []),  # the unwanted event wins
    (a.not_then(b).not_then(d).then(c), "a d c", []),
    (a.not_then(b).then(d.optional()).then(c), "a b d c", []),
    (a.not_then(b).then(d.optional()).then(c), "a d b c", ["a d c"]),
    (a.not_next(b), "a1 b a2 c", ["a2"]),
    (a.at_least(1).not_then(d).next(b), "a1 a2 b", ["a1 a2 b", "a2 b"]),
]

NEGATION_AFTER_REPETITION = [
    (a.times(2).not_then(d).then(b), "a1 d a2 b", []),
    (a.times(2).not_then(d).then(b), "a1 a2 d b", []),
    (a.times(2).not_then(d).then(b), "d a1 a2 b", ["a1 a2 b"]),
    (c.then(a.times(2)).not_then(d).then(b), "c d a1 a2 b", ["c a1 a2 b"]),  # it begins with the first repetition
    (a.at_least(1).not_then(d).then(b), "a1 d a2 b", ["a2 b"]),
    (a.at_least(2).not_then(d).then(b), "a1 d a2 a3 b", ["a2 a3 b"]),
    (a.times(1, 2).combinations().not_then(d).then(b), "a1 d a2 b", ["a2 b"]),
    (a.times(2).not_then(c).not_then(d).then(b), "a1 c a2 b", []),
    (a.times(2).not_then(on("ad", "x")).then(b), "a1 a2 b", []),  # the unwanted event wins
    (a.times(2).not_next(d).then(b), "a1 d a2 b", ["a1 a2 b"]),  # only the event after the last
    # of a group between two repetitions, not within one
    (a.then(c).times(2).not_then(d).then(b), "a1 c1 d a2 c2 b", []),
    (a.then(c).times(2).not_then(d).then(b), "a1 c1 a2 d c2 b", ["a1 c1 a2 c2 b"]),
    # the repetition may be the last part of a group
    (c.then(cep.all_of(a, b).then(e.times(2))).not_then(d).then(f), "c a b e1 d e2 f", []),
    (cep.any_of(a.times(2), c).not_then(d).then(b), "a1 d a2 b", []),
    (a.times(2).then(c).not_then(d).then(b), "a1 d a2 c b", ["a1 a2 c b"]),  # the part before not_then is not affected
]

LOGICAL = [
    (a.then(cep.any_of(b, c)), "a b c", ["a b"]),
    (a.then(cep.any_of(b, c)), "a c b", ["a c"]),
    (a.then_any(cep.any_of(b, c)), "a c b", ["a c", "a b"]),
    (cep.any_of(b, c).next(d), "b d c d", ["b d", "c d"]),
    (a.then(cep.any_of(b.next(c), c.next(b))).then(d), "a c b d", ["a c b d"]),
    (cep.any_of(on("ab", "x"), on("bc", "y")), "a b c", ["a", "b", "b", "c"]),
    (cep.any_of(a.next(b), a.then(b)), "a b", ["a b"]),  # the same steps took the same events: one match
    (a.then(cep.all_of(b, c)).then(d), "a b c d", ["a b c d"]),
    (a.then(cep.all_of(b, c)).then(d), "a c b d", ["a c b d"]),
    (a.then(cep.all_of(b, c)).then(d), "a b d c", []),
    (cep.all_of(a, b, c), "b d c a", ["b c a"]),
    (a.next(cep.all_of(b, c)), "a d b c", []),
    (cep.any_of(a, b).times(2).consecutive(), "a b c a", ["a b"]),
]


@pytest.mark.parametrize(
    ("pattern", "events", "expected"),
    [*CONTIGUITY, *REPETITION, *OPTIONAL, *GREEDY, *UNTIL, *LOGICAL, *NEGATION, *NEGATION_AFTER_REPETITION],
)
def test_a_pattern_matches_these_and_no_others(pattern: cep.Pattern, events: str, expected: list[str]) -> None:
    assert sorted(matches_of(pattern, events)) == sorted(expected)


TIME = [
    (a.then(b), 10, "a@0 b@9.9", ["a b"]),
    (a.then(b), 10, "a@0 b@10", ["a b"]),
    (a.then(b), 10, "a@0 b@10.000001", []),
    (a.then(b).then(c), 10, "a@0 b@9 c@11", []),
    (a.not_then(b), 10, "a@0 b@10", []),
    (a.not_then(b), 10, "a@0 b@10.000001", ["a"]),
    (a.not_then(b), 10, "a@0", ["a"]),
    (a.then(c).not_then(b), 10, "a@0 c@5 b@11", ["a c"]),
    (a.then(cep.absent(b, for_=5 * S)), None, "a@0 b@4.9", []),
    (a.then(cep.absent(b, for_=5 * S)), None, "a@0 b@5", ["a"]),
    (a.then(cep.absent(b, for_=5 * S)).then(c), None, "a@0 c1@4 c2@6", ["a c2"]),
    (a.then(cep.absent(b, for_=5 * S)).next(c), None, "a@0 d@4 c@6", ["a c"]),
    (a.then(cep.absent(b, for_=5 * S)).next(c), None, "a@0 d@6 c@7", []),
    (a.then(cep.absent(b, for_=5 * S)).then(c), 10, "a@0 c@10", ["a c"]),
    (a.then(cep.absent(b, for_=5 * S)).then(c), 10, "a@0 c@10.000001", []),
    (a.then(cep.absent(b, for_=2 * S)).then(cep.absent(c, for_=2 * S)), None, "a@0 c@1 b@3", ["a"]),
    (a.then(cep.absent(b, for_=2 * S)).then(cep.absent(c, for_=2 * S)), None, "a@0 b@1 c@5", []),
    (a.then(cep.absent(b, for_=10 * S)), 10, "a@0", ["a"]),
    (a.then(c).then(cep.absent(b, for_=5 * S)), 10, "a@0 c@5", ["a c"]),
    (a.then(c).then(cep.absent(b, for_=5 * S)), 10, "a@0 c@5.000001", []),
    (a.then(c).then(cep.absent(b, for_=5 * S)), 10, "a@0 c@5.000002", []),
    (a.not_next(b), 10, "a@0 c@10", ["a"]),
    (a.not_next(b), 10, "a@0 c@10.000001", []),  # the next event decides, and it came too late
    (a.not_next(b), 10, "a@0", []),
]


def silent(step: On, seconds: float) -> Absent:
    return cep.absent(step, for_=seconds * S)


REPEATED_ABSENCE = [
    (a.then(silent(b, 2).times(3)), None, "a@0 c@1", ["a"]),
    (a.then(silent(b, 2).times(3)), None, "a@0 b@5.9", []),
    (a.then(silent(b, 2).at_least(1)), 7, "a@0", ["a", "a", "a"]),
    (a.then(silent(b, 2).at_least(1)), 7, "a@0 b@4", ["a", "a"]),
    (a.then(silent(b, 2).at_least(1)).then(c), 7, "a@0 c@5", ["a c"]),  # however often it was silent
    (a.then(silent(b, 1).at_least(1)).then(silent(c, 2)), 5, "a@0", ["a", "a", "a"]),  # at 3, at 4 and at 5
    (a.then(silent(b, 2).then(c)).times(2), None, "a1@0 c1@3 a2@4 c2@6", ["a1 c1 a2 c2"]),
]

ONCE_OR_MORE = a.at_least(1).greedy()
UNTIL_FIRST = cep.any_of(a.at_least(1).until(is_first), e)
ABSENCE_OR = [
    (a.then(cep.any_of(silent(b, 5), c)), None, "a@0 c@4", ["a c"]),
    (a.then(cep.any_of(silent(b, 5), c)), None, "a@0 c@5", ["a"]),  # the absence is complete first
    (a.then(cep.any_of(silent(b, 5), c)), None, "a@0 b@3 c@9", ["a c"]),  # it is called off, and c may still come
    (a.then(cep.any_of(silent(b, 5), c)), None, "a@0 b@3", []),
    (a.then(cep.any_of(silent(b, 5), c)), 4, "a@0 c@3", ["a c"]),
    (a.then(cep.any_of(silent(b, 5).then(d), c)), None, "a@0 d1@4 d2@6 c@7", ["a d2"]),
    (a.then(cep.any_of(silent(b, 5), c)).then(d), 20, "a@0 d1@4 d2@6", ["a d2"]),
    # several absences: the first that is complete, and each is called off on its own
    (a.then(cep.any_of(silent(b, 5), silent(c, 3))), None, "a@0", ["a"]),
    (a.then(cep.any_of(silent(b, 5), silent(c, 3))), None, "a@0 c@2", ["a"]),
    (a.then(cep.any_of(silent(b, 5), silent(c, 3))), None, "a@0 c@2 b@4", []),
    (a.then(cep.any_of(silent(b, 5), silent(c, 3))), None, "a@0 b@1 c@2", []),
    (a.then(cep.any_of(silent(b, 5), silent(c, 3))).then(d), 20, "a@0 d1@2 d2@4", ["a d2"]),
    (a.then(cep.any_of(silent(b, 5), silent(c, 3))).then(d), 20, "a@0 c@2 d1@4 d2@6", ["a d2"]),
    (a.then(cep.any_of(silent(b, 5), silent(c, 3), d)), None, "a@0 c@1 b@2 d@9", ["a d"]),
    (a.then(cep.any_of(silent(b, 3).then(d), silent(c, 3).then(e))), 20, "a@0 e@4 d@5", ["a e", "a d"]),  # both at once
    (a.then(cep.any_of(silent(b, 5), silent(c, 3)).times(2)), None, "a@0 c@4", ["a"]),  # at 3, then from there b's at 8
    # each time the first is called off, the next one is due at its own time
    (a.then(cep.any_of(silent(b, 7), silent(c, 3), silent(d, 5))).then(e), 20, "a@0 c@1 d@2 e1@6 e2@8", ["a e2"]),
    # an absence without a time belongs to its alternative alone, and so does an `until`
    (d.then(cep.any_of(cep.all_of(cep.absent(a), b), c)), None, "d a b c", ["d c"]),
    (d.then(cep.any_of(cep.all_of(cep.absent(a), b), c)), None, "d b c", ["d b"]),
    (d.then(cep.any_of(cep.all_of(cep.absent(a), b), cep.all_of(cep.absent(c), e))), None, "d a c b e", []),
    # and stays called off when another one is
    (d.then(cep.any_of(cep.all_of(cep.absent(a), b), cep.all_of(cep.absent(c), e), f)), None, "d a c b f", ["d f"]),
    # an absence that was called off after the first second is waited for again after the second
    (a.then(silent(b, 1).at_least(1)).then(cep.any_of(cep.all_of(cep.absent(c), d), e)), 9, "a@0 c@1.5 d@2.5", ["a d"]),
    (c.then(cep.any_of(a.at_least(1).until(is_d), b)), None, "c d a b", ["c b"]),
    (c.then(cep.any_of(a.at_least(1).until(is_d), b)), None, "c a1 b a2 d a3", ["c a1", "c a1 a2"]),
    (c.then_any(cep.any_of(a.at_least(2).until(is_d), b)), None, "c d a1 a2 b1 b2", ["c b1", "c b2"]),
    (c.next(cep.any_of(a.at_least(1).until(is_d), b)), None, "c x b", []),
    # an `until` of all alternatives ends each of them
    (c.then(cep.any_of(UNTIL_FIRST.at_least(1).until(is_d), b)), None, "c d e b", ["c b"]),
    (UNTIL_FIRST.at_least(1).until(is_first), None, "e1 e2", ["e2"]),
    # calling off is independent of other effects of an event: a `not_next`, a greedy repetition
    (a.not_next(e).then(cep.any_of(cep.all_of(cep.absent(b), c), d)), None, "a x c", ["a c"]),
    (a.not_next(e).then(cep.any_of(cep.all_of(cep.absent(b), c), d)), None, "a b c d", ["a d"]),
    (ONCE_OR_MORE.consecutive().then(cep.any_of(cep.all_of(cep.absent(b), c), d)), None, "a x c", ["a c"]),
    (ONCE_OR_MORE.consecutive().then(cep.any_of(cep.all_of(cep.absent(b), c), d)), None, "a b c d", ["a d"]),
    (ONCE_OR_MORE.then(cep.any_of(cep.all_of(cep.absent(b), c), on("ad", "ad"))), None, "a1 b a2", []),
    # after an omitted step they follow as written, and give way to it if it is greedy
    (a.next(b.optional().then(cep.any_of(c.at_least(1).until(is_d), e))), None, "a x c", ["a c"]),
    (a.then(b.optional().greedy().then(cep.any_of(c.at_least(1).until(is_d), on("be", "be")))), None, "a b", []),
]

ABSENCE_AND = [
    (a.then(cep.all_of(silent(b, 5), c)), None, "a@0 c@2", ["a c"]),
    (a.then(cep.all_of(silent(b, 5), c)), None, "a@0 c@9", ["a c"]),
    (a.then(cep.all_of(silent(b, 5), c)), None, "a@0 c@2 b@4", []),  # its time continues when c has come
    (a.then(cep.all_of(silent(b, 5), c)), None, "a@0 c@2 b@5", ["a c"]),
    (a.then(cep.all_of(silent(b, 5), c)), None, "a@0 b@6 c@9", ["a c"]),
    (a.then(cep.all_of(silent(b, 5), c, d)).then(on("e")), 20, "a@0 d@1 e1@2 c@3 e2@4 e3@6", ["a d c e3"]),
]

ABSENCE_FIRST = [
    (silent(a, 5), None, "a@0 a@4 a@8", [""]),  # once, after the last one
    (silent(a, 5), None, "a@0 a@4 a@9 a@20", ["", "", ""]),  # one at 9, before the event then
    (silent(a, 5), None, "b@0 b@3 b@6", [""]),  # from the first event of the key
    (silent(a, 5), None, "b@0 a@3 b@20", [""]),
    (silent(a, 5).then(b), 60, "a@0 b1@4 b2@6", ["b2"]),
    (silent(a, 5).then(b), 10, "a@0 b@10.000001", []),
    (silent(a, 5).then(b), 10, "a1@0 a2@7 b@9", ["b"]),  # the first lasts until b, the second is not complete yet
    (silent(a, 5).times(2), None, "a@0 a@9 a@19", ["", ""]),
    (silent(a, 5).at_least(1), 20, "a@0", ["", "", "", ""]),  # every five seconds
    (cep.any_of(silent(a, 5), b), None, "a@0 b@2 b@3", ["b", "b", ""]),  # each begins a match of its own
    (cep.any_of(silent(a, 5), silent(b, 3)), None, "c@0 b@2 a@3", ["", ""]),  # at 5, of b, and at 8
    (cep.any_of(cep.all_of(cep.absent(a), b), c), None, "b1 a b2 c", ["b1", "c"]),
    (cep.all_of(cep.absent(a), cep.absent(c), b), None, "b1 a b2", ["b1"]),
    (cep.all_of(cep.absent(a), cep.absent(c), b), None, "b1 c b2", ["b1"]),
    # with others in any order: counted from the last unwanted event, or the first event of the key
    (cep.all_of(silent(a, 5), b), None, "a@0 b@2", ["b"]),
    (cep.all_of(silent(a, 5), b), None, "a@0 b@7", ["b"]),
    (cep.all_of(silent(a, 5), b), None, "a1@0 b1@1 a2@2 b2@3", ["b2"]),
    (cep.all_of(silent(a, 5), b), None, "c@0 b@1", ["b"]),
    (cep.all_of(silent(a, 5), b), None, "b1@0 b2@1", ["b1"]),  # the event that it is counted from is the b
    (cep.all_of(silent(on("ab", "x"), 5), b), None, "b1@0 b2@1", []),  # an event that is both
    (cep.all_of(silent(a, 5), b), 4, "b@0", None),
    (cep.all_of(silent(a, 5), b).then(c), 20, "a@0 b@1 c1@3 c2@6", ["b c2"]),
    (cep.all_of(silent(a, 5), b, d), None, "d@0 b@1", ["d b"]),
    (cep.all_of(silent(a, 5), silent(b, 3)), None, "c@0", [""]),
    (cep.all_of(silent(a, 5), silent(b, 3)), None, "c@0 b@2 a@8", ["", ""]),  # from 2 at 7, from 8 at 13
    (cep.all_of(silent(a, 5), silent(b, 3)), None, "c@0 b@2 a@6", [""]),
    (silent(a, 2).not_then(c).then(b), None, "a@0 c@3 b@4", []),
]


@pytest.mark.parametrize(
    ("pattern", "within_s", "events", "expected"), [*REPEATED_ABSENCE, *ABSENCE_OR, *ABSENCE_AND, *ABSENCE_FIRST]
)
def test_an_absence_may_stand_anywhere(
    pattern: cep.Pattern, within_s: int | None, events: str, expected: list[str] | None
) -> None:
    within = None if within_s is None else within_s * S
    if expected is None:
        with pytest.raises(DeclarationError, match="is longer than within"):
            matches_of(pattern, events, within=within)
    else:
        assert matches_of(pattern, events, within=within) == expected


def test_periods_beyond_the_bound_are_left_out_up_to_the_last_one() -> None:
    """Two parts in turn make one period of five seconds; each event allows as many periods again."""
    two = silent(a, 2).then(silent(b, 3)).at_least(1)
    matches = cep.find(two, letters("a@0 c@103 c@117"), within=100 * S, bounds=cep.Bounds(periods=2))
    assert [match.ended for match in matches] == [second(number) for number in (5, 10, 100)]
    matches = cep.find(two, letters("a@0 c@53 c@77"), within=100 * S, bounds=cep.Bounds(periods=2))
    assert [match.ended for match in matches] == [second(number) for number in (5, 10, 50, 55, 60, 75, 80, 85, 100)]


POSSIBLE: list[tuple[cep.Pattern, dict[str, timedelta], str, list[str]]] = [
    (a.then(cep.any_of(silent(b, 6), c)), {"within": 5 * S}, "a@0 c@1", ["a c"]),
    (cep.any_of(silent(b, 6), a.then(c)), {"within": 5 * S}, "a@0 c@1", ["a c"]),
    (a.then(cep.all_of(silent(b, 2), silent(c, 5))), {"within": 5 * S}, "a@0", ["a"]),
    (a.then(cep.all_of(silent(b, 5), c)), {"gap": 3 * S}, "a@0 c@3", ["a c"]),  # since c it takes two seconds
    (a.then(silent(b, 2)).then(c).then(silent(d, 2)), {"gap": 3 * S}, "a@0 c@3", ["a c"]),
    (silent(a, 5).then(b).then(c), {"gap": 2 * S, "within": 9 * S}, "a@0 b@6 c@8", ["b c"]),
]


@pytest.mark.parametrize(("pattern", "times", "events", "expected"), POSSIBLE)
def test_an_absence_longer_than_a_time_limit_is_accepted_if_a_match_does_not_need_it(
    pattern: cep.Pattern, times: dict[str, timedelta], events: str, expected: list[str]
) -> None:
    assert matches_of(pattern, events, **times) == expected


@pytest.mark.parametrize("pattern", [a.then(b), a.not_then(b), silent(a, 5), a.then(silent(b, 5))])
def test_an_event_too_close_to_the_last_time_of_all_is_an_error_in_one_sentence(pattern: cep.Pattern) -> None:
    event = Letter(at=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), kind="a")
    with pytest.raises(DeclarationError, match=r"an event has the time 9999-12-31 23:59:59.* use earlier times"):
        cep.find(pattern, [event], within=10 * S)


def test_an_overflow_in_a_predicate_is_raised_as_it_is() -> None:
    with pytest.raises(OverflowError, match="math range"):
        cep.find(cep.on("a", Letter, lambda event, match: math.exp(1e9) > 0), letters("a"))


def test_a_list_with_too_many_periods_is_an_error() -> None:
    pattern, century = silent(a, 5).at_least(1), timedelta(days=36_500)
    with pytest.raises(DeclarationError, match=r"repeated too many times .* pass until="):
        cep.find(pattern, letters("a@0"), within=century)
    assert len(cep.find(pattern, letters("a@0"), within=century, until=second(60))) == 12


def test_a_match_that_begins_with_an_absence_begins_when_the_silence_does() -> None:
    [match] = cep.find(silent(a, 5), letters("a@0 a@3"))
    assert (match.began, match.ended, match.events, match.steps) == (second(3), second(8), [], [])


GAP = [
    (a.then(b).then(c), "a@0 b@3 c@6", ["a b c"]),
    (a.then(b).then(c), "a@0 b@3 c@6.000001", []),
    (a.then(b).then(c), "a@0 b@3.000001 c@4", []),
    (a.at_least(3), "a1@0 a2@3 a3@6 a4@10 a5@11", ["a1 a2 a3"]),
    (a.then(b).not_then(c), "a@0 b@2 c@5", []),
    (a.then(b).not_then(c), "a@0 b@2 c@5.1", ["a b"]),
    (a.then(silent(b, 2)).then(c), "a@0 c@3", ["a c"]),
    (a.then(silent(b, 2)).then(c), "a@0 c@3.1", []),  # an absence is not an event
]


@pytest.mark.parametrize(("pattern", "events", "expected"), GAP)
def test_a_gap_bounds_the_time_from_one_event_to_the_next(
    pattern: cep.Pattern, events: str, expected: list[str]
) -> None:
    assert matches_of(pattern, events, gap=3 * S) == expected
    assert matches_of(pattern, events, gap=3 * S, within=60 * S) == expected


def test_within_and_gap_hold_both() -> None:
    assert matches_of(a.times(3), "a1@0 a2@3 a3@6", gap=3 * S, within=5 * S) == []
    matches = cep.find(a.then(b), letters("a@0 b@9"), gap=3 * S, within=5 * S, timed_out=True)
    assert [(match.timed_out, match.ended) for match in matches] == [(True, second(3))]


@pytest.mark.parametrize(("pattern", "within_s", "events", "expected"), TIME)
def test_time_bounds_a_match(pattern: cep.Pattern, within_s: int | None, events: str, expected: list[str]) -> None:
    assert matches_of(pattern, events, within=None if within_s is None else within_s * S) == expected


x, y, z, last = on("abc", "x"), on("bc", "y"), on("c", "z"), on("d")
BC, AB = b.at_least(1).next(c), a.then(b.at_least(1))
SKIPS = [
    (BC, skip.none, "b1 b2 b3 c", ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
    (BC, skip.to_next, "b1 b2 b3 c", ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
    (BC, skip.past_last, "b1 b2 b3 c", ["b1 b2 b3 c"]),
    (BC, skip.to_first("b"), "b1 b2 b3 c", ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
    (BC, skip.to_last("b"), "b1 b2 b3 c", ["b1 b2 b3 c", "b3 c"]),
    (x.next(y).next(z.at_least(1).greedy()).next(last), skip.none, "a b c1 c2 c3 d",
     ["a b c1 c2 c3 d", "b c1 c2 c3 d", "c1 c2 c3 d"]),
    (x.next(y).next(z.at_least(1).greedy()).next(last), skip.to_first("z"), "a b c1 c2 c3 d",
     ["a b c1 c2 c3 d", "c1 c2 c3 d"]),
    (AB, skip.none, "a b1 b2 b3", ["a b1", "a b1 b2", "a b1 b2 b3"]),
    (AB, skip.to_next, "a b1 b2 b3", ["a b1"]),
    (a.times(2), skip.past_last, "a1 a2 a3 a4", ["a1 a2", "a3 a4"]),
    (a.then_any(b), skip.past_last, "a1 a2 b1 b2 a3 b3", ["a1 b1", "a3 b3"]),
    (a.then(b.optional()).next(c), skip.to_first("b"), "a1 c", ["a1 c"]),  # no event of that name: nothing is skipped
    # the event from which an absence at the beginning is counted does not belong to the step
    (cep.absent(a, for_=S).then(b), skip.none, "a1@0 a2@2 b1@5", ["b1", "b1"]),
    (cep.absent(a, for_=S).then(b), skip.to_first("b"), "a1@0 a2@2 b1@5", ["b1"]),
    (cep.absent(a, for_=S).then(b), skip.to_last("b"), "a1@0 a2@2 b1@5", ["b1"]),
    # a1 is not over when `b2 c` is complete, and it would skip that
    (cep.any_of(a.then(d), b.next(c)), skip.past_last, "a1 b c d", ["a1 d"]),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "after", "events", "expected"), SKIPS)
def test_a_match_skips_others(pattern: cep.Pattern, after: skip.Skip, events: str, expected: list[str]) -> None:
    assert matches_of(pattern, events, skip=after) == expected


def test_of_two_that_begin_and_end_together_the_one_with_the_earlier_last_event_skips_the_other() -> None:
    pattern = a.optional().next(on("a", "more")).not_then(b)
    assert matches_of(pattern, "a1 a2@0 a3@0", skip=skip.past_last, within=4 * S) == ["a1", "a2", "a3"]


@pytest.mark.parametrize(
    ("pattern", "events", "expected"),
    [
        (a.then(b.at_least(1)).then(c), "a b1 b2 c", ["a b1 b2 c"]),  # b2 is earlier than c
        (a.then(b.optional()).then(c), "a b c", ["a b c"]),
        (a.then_any(b).then(c), "a b1 b2 c", ["a b1 c"]),
        (cep.any_of(a.then(b).then(d), a.then(c).then(d)), "a c b d", ["a c d"]),
    ],
)
@pytest.mark.parametrize("after", [skip.to_next, skip.past_last])
def test_of_matches_with_the_same_first_and_last_event_the_one_with_the_earlier_events_is_kept(
    pattern: cep.Pattern, events: str, expected: list[str], after: skip.Skip
) -> None:
    assert matches_of(pattern, events, skip=after) == matches_of(pattern, events, every=False) == expected


@pytest.mark.parametrize("after", [skip.to_next, skip.past_last])
def test_of_matches_with_the_same_events_the_one_that_begins_with_a_silence_is_kept(after: skip.Skip) -> None:
    pattern = cep.any_of(a, silent(b, 2)).then(c)
    assert matches_of(pattern, "a@0 c@2", within=9 * S) == ["c", "a c"]
    assert matches_of(pattern, "a@0 c@2", within=9 * S, skip=after) == ["c"]


def test_matches_that_are_complete_together_are_told_in_the_order_of_their_events() -> None:
    assert matches_of(a.then(b.at_least(1)).then(c), "a1 b1 a2 b2 c") == ["a1 b1 b2 c", "a1 b1 c", "a2 b2 c"]


def test_a_match_that_waits_for_an_earlier_one_is_told_when_that_is_over() -> None:
    pattern = cep.any_of(a.then(d), b.next(c))
    assert matches_of(pattern, "a@0 b@1 c@2 x@20", skip=skip.past_last, within=10 * S) == ["b c"]


def test_a_match_that_waits_for_an_earlier_one_is_told_after_the_list_unless_time_stops_before_that_is_decided() -> (
    None
):
    pattern, after = cep.any_of(a.then(d), b.next(c)), {"skip": skip.past_last, "within": 10 * S}
    assert matches_of(pattern, "a@0 b@1 c@2", **after) == ["b c"]
    assert matches_of(pattern, "a@0 b@1 c@2", until=second(10), **after) == []
    assert matches_of(pattern, "a@0 b@1 c@2", until=second(11), **after) == ["b c"]


def test_a_match_does_not_wait_for_a_longer_one_with_the_same_first_event() -> None:
    assert matches_of(AB, "a@0 b@1", skip=skip.to_next, until=second(1)) == ["a b"]


def test_once_is_the_first_match_and_no_more() -> None:
    assert matches_of(a.then(b), "a1 a2 b1 a3 b2", every=False) == ["a1 b1"]
    assert matches_of(a.then_any(b), "a1 b1 b2", every=False, skip=skip.past_last) == ["a1 b1"]


def test_a_predicate_sees_what_has_matched_so_far() -> None:
    rising = cep.on("up", Letter, lambda event, match: "up" not in match or event.number > match["up"].number)
    assert matches_of(rising.times(3), "a1 a3 a2 a5") == ["a1 a3 a5"]
    second_b = cep.on("end", Letter, lambda event, match: event.number == sum(e.number for e in match.all("up")))
    assert matches_of(rising.times(2).next(second_b), "a1 a2 a3") == ["a1 a2 a3"]


def test_events_of_other_classes_are_passed_over_and_count_as_events() -> None:
    class Noise(Event, time="at"):
        at: datetime

    events = [*letters("a@0 b@2"), Noise(at=second(1))]
    assert len(cep.find(a.then(b), events)) == 1
    assert cep.find(a.next(b), events) == []


def test_a_match_has_events_by_name_and_its_times() -> None:
    [match] = cep.find(a.then(b.times(2)).then(c.optional()), letters("a1 b1 b2"))
    assert (match["a"].text, match["b"].text, [event.text for event in match.all("b")]) == ("a1", "b2", ["b1", "b2"])
    assert "c" not in match
    assert match.get("c") is None
    assert match.all("c") == []
    with pytest.raises(KeyError, match="the step 'c' has not matched an event"):
        match["c"]
    assert (match.began, match.ended, match.timed_out) == (second(0), second(2), False)
    assert match.steps == ["a", "b", "b"]


def test_partial_matches_whose_time_is_over_are_told_if_asked_for() -> None:
    pattern = a.then(b).then(c)
    matches = cep.find(pattern, letters("a1@0 b1@1 a2@5 c1@12 b2@20"), within=10 * S, timed_out=True)
    assert [(match.timed_out, [e.text for e in match.events], match.ended) for match in matches] == [
        (True, ["a1", "b1"], second(10)),
        (True, ["a2"], second(15)),
    ]


def test_a_match_that_could_have_been_longer_has_not_timed_out() -> None:
    assert matches_of(a.then(b.at_least(1)), "a b1", within=10 * S, timed_out=True) == ["a b1"]


def test_a_final_not_next_that_no_event_decides_in_time_is_a_partial_match_whose_time_was_over() -> None:
    for events in ("a@0 c@10.000001", "a@0 b@10.000001", "a@0"):
        [match] = cep.find(a.not_next(b), letters(events), within=10 * S, timed_out=True)
        assert (match.timed_out, match.ended, len(match.events)) == (True, second(10), 1)
    assert cep.find(a.not_next(b), letters("a@0 b@10"), within=10 * S, timed_out=True) == []


@pytest.mark.parametrize("before", [a, a.not_next(e), ONCE_OR_MORE.consecutive()])
def test_alternatives_that_were_all_called_off_have_not_timed_out(before: cep.Pattern) -> None:
    pattern = before.then(cep.any_of(silent(b, 5), silent(c, 3)))
    assert matches_of(pattern, "a@0 b@1 c@2", within=10 * S, timed_out=True) == []


def test_silences_in_any_of_that_were_called_off_have_timed_out_when_within_is_over() -> None:
    pattern = a.then(cep.any_of(silent(b, 5), silent(c, 3), d))
    [match] = cep.find(pattern, letters("a@0 b@1 c@2 d@11"), within=10 * S, timed_out=True)
    assert (match.timed_out, match.ended) == (True, second(10))


def test_a_silence_with_others_begins_when_the_silence_does() -> None:
    [match] = cep.find(cep.all_of(silent(a, 5), b), letters("a@1 b@3"))
    assert (match.began, match.ended, match.steps) == (second(1), second(6), ["b"])


def test_a_predicate_that_raises_on_the_event_that_a_silence_would_count_from_changes_nothing() -> None:
    def fits(event: Letter, match: cep.Match) -> bool:
        return event.kind == "b" and 1 // event.number > 0

    pattern = cep.all_of(silent(a, 5), cep.on("b", Letter, fits))
    engine, memory = PatternEngine(Search(pattern, 20 * S), [Letter]), memory_class("Kept", [Letter])()
    bad, good = letters("b@0 b1@1")
    with pytest.raises(ZeroDivisionError):
        engine.feed(memory, bad, bad.at, At(bad.at))
    assert (memory.watched, memory.runs, memory.held_0) == (False, [], {})
    engine.feed(memory, good, good.at, At(good.at))
    assert shown(engine.advance(memory, second(6), At(second(6))).matches) == ["b1"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (a.then(cep.every(b)), []),
        (a.then(cep.every(b)).not_then(c), ["a"]),
        (a.then(cep.every(b)).then(c), ["a", "a b"]),
    ],
)
def test_an_every_that_would_begin_again_has_timed_out_unless_nothing_is_behind_it(
    pattern: cep.Pattern, expected: list[str]
) -> None:
    matches = cep.find(pattern, letters("a@0 b@1"), within=5 * S, timed_out=True)
    assert sorted(shown([match for match in matches if match.timed_out])) == expected


def test_time_after_the_list_goes_on_until_it_is_told_to_stop() -> None:
    pattern = a.then(cep.absent(b, for_=5 * S))
    assert matches_of(pattern, "a@0", until=second(4)) == []
    assert matches_of(pattern, "a@0", until=second(5)) == ["a"]


@pytest.mark.parametrize("is_choice", [False, True])
@pytest.mark.parametrize("look", [False, True])
def test_partial_matches_that_wait_for_the_same_are_asked_together_unless_they_are_looked_at(
    look: bool, is_choice: bool
) -> None:
    asked = 0

    def fits(event: Letter, match: cep.Match) -> bool:
        nonlocal asked
        asked += 1
        return event.kind == "b" and not (look and match["a"].number % 2)

    many = 500
    events = [*letters(" ".join(f"a{number}" for number in range(many))), Letter(at=second(many), kind="b")]
    wanted: cep.Pattern = cep.on("b", Letter, fits)
    matches = cep.find(a.then(cep.any_of(wanted, c.at_least(1).until(is_d)) if is_choice else wanted), events)
    assert len(matches) == (many // 2 if look else many)
    assert asked < 20 * many  # testing each separately would take 125,000 calls


def test_events_are_taken_in_order_of_time_whatever_the_list_says() -> None:
    assert matches_of(a.next(b).next(c), "c@2 a@0 b@1") == ["a b c"]
