"""The fingerprint that decides whether stored partial matches still belong to the pattern: every edit changes it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from penstock import cep
from penstock.cep import skip
from penstock.cep.engine import PatternEngine
from penstock.cep.memory import Bounds
from penstock.cep.pattern import Pattern, Repeated
from penstock.cep.search import Search
from tests.cep.letters import Letter, on
from tests.harness import ROOT

S = timedelta(seconds=1)
a, b, c, d = on("a"), on("b"), on("c"), on("d")


class Digit(Letter):
    """An event of another class with the same fields."""


def is_d(event: Letter, match: cep.Match) -> bool:
    return event.kind == "d"


def is_e(event: Letter, match: cep.Match) -> bool:
    return event.kind == "e"


def printed(pattern: Pattern, **options: Any) -> str:
    return PatternEngine(Search(pattern, **{"within": 60 * S, **options}), [Letter, Digit]).fingerprint


EDITS: list[tuple[str, Callable[[], Pattern], Callable[[], Pattern]]] = [
    ("name", lambda: a.then(b), lambda: a.then(on("b", "other"))),
    ("class", lambda: a.then(cep.on("x", Letter)), lambda: a.then(cep.on("x", Digit))),
    ("predicate added", lambda: a.then(cep.on("x", Letter)), lambda: a.then(cep.on("x", Letter, is_d))),
    ("order", lambda: a.then(b), lambda: b.then(a)),
    ("one step more", lambda: a.then(b), lambda: a.then(b).then(c)),
    ("next", lambda: a.then(b), lambda: a.next(b)),
    ("then_any", lambda: a.then(b), lambda: a.then_any(b)),
    ("not_then added", lambda: a.then(b), lambda: a.not_then(c).then(b)),
    ("step of not_then", lambda: a.not_then(c).then(b), lambda: a.not_then(d).then(b)),
    ("class of not_then", lambda: a.not_then(cep.on("x", Letter)), lambda: a.not_then(cep.on("x", Digit))),
    ("step of not_next", lambda: a.not_next(c).then(b), lambda: a.not_next(d).then(b)),
    ("not_next for not_then", lambda: a.not_then(c).then(b), lambda: a.not_next(c).then(b)),
    ("step of an absence", lambda: a.then(cep.absent(b, for_=S)), lambda: a.then(cep.absent(c, for_=S))),
    ("step of a first absence", lambda: cep.absent(a, for_=S), lambda: cep.absent(b, for_=S)),
    ("class of an absence", lambda: cep.absent(cep.on("x", Letter), for_=S),
     lambda: cep.absent(cep.on("x", Digit), for_=S)),
    ("time of an absence", lambda: a.then(cep.absent(b, for_=S)), lambda: a.then(cep.absent(b, for_=2 * S))),
    ("step of an absence in any_of", lambda: a.then(cep.any_of(cep.absent(b, for_=S), c)),
     lambda: a.then(cep.any_of(cep.absent(d, for_=S), c))),
    ("step of an absence in all_of", lambda: a.then(cep.all_of(cep.absent(b, for_=S), c)),
     lambda: a.then(cep.all_of(cep.absent(d, for_=S), c))),
    ("step of two absences in all_of", lambda: a.then(cep.all_of(cep.absent(b, for_=S), cep.absent(c, for_=S))),
     lambda: a.then(cep.all_of(cep.absent(b, for_=S), cep.absent(d, for_=S)))),
    ("time of two absences", lambda: a.then(cep.all_of(cep.absent(b, for_=S), cep.absent(c, for_=2 * S))),
     lambda: a.then(cep.all_of(cep.absent(b, for_=2 * S), cep.absent(c, for_=S)))),
    ("step of two absences in any_of", lambda: a.then(cep.any_of(cep.absent(b, for_=S), cep.absent(c, for_=S))),
     lambda: a.then(cep.any_of(cep.absent(b, for_=S), cep.absent(d, for_=S)))),
    ("time of two absences in any_of", lambda: a.then(cep.any_of(cep.absent(b, for_=S), cep.absent(c, for_=2 * S))),
     lambda: a.then(cep.any_of(cep.absent(b, for_=2 * S), cep.absent(c, for_=S)))),
    ("step of an absence without a time", lambda: cep.all_of(cep.absent(a), b), lambda: cep.all_of(cep.absent(c), b)),
    ("time for an absence", lambda: a.then(cep.all_of(cep.absent(b), c)),
     lambda: a.then(cep.all_of(cep.absent(b, for_=S), c))),
    ("every at the beginning", lambda: a.then(b).then(c), lambda: cep.every(a.then(b)).then(c)),
    ("every after a step", lambda: a.then(b).then(c), lambda: a.then(cep.every(b)).then(c)),
    ("what is in every", lambda: cep.every(a.then(b)).then(c), lambda: cep.every(a).then(b).then(c)),
    ("any_of for all_of", lambda: a.then(cep.any_of(b, c)), lambda: a.then(cep.all_of(b, c))),
    ("order in any_of", lambda: a.then(cep.any_of(b, c)), lambda: a.then(cep.any_of(c, b))),
    ("times", lambda: a.times(2).then(b), lambda: a.times(3).then(b)),
    ("times, high", lambda: a.times(2).then(b), lambda: a.times(2, 3).then(b)),
    ("at_least", lambda: a.times(2).then(b), lambda: a.at_least(2).then(b)),
    ("at_least, low", lambda: a.at_least(1).then(b), lambda: a.at_least(2).then(b)),
    ("consecutive", lambda: a.times(2).then(b), lambda: a.times(2).consecutive().then(b)),
    ("combinations", lambda: a.times(2).then(b), lambda: a.times(2).combinations().then(b)),
    ("optional", lambda: a.then(b.times(2)).then(c), lambda: a.then(b.times(2).optional()).then(c)),
    ("greedy", lambda: a.at_least(1).then(b), lambda: a.at_least(1).greedy().then(b)),
    ("greedy, of an optional step", lambda: a.then(b.optional()).then(c),
     lambda: a.then(b.optional().greedy()).then(c)),
    ("until", lambda: a.at_least(1).then(b), lambda: a.at_least(1).until(is_d).then(b)),
    ("a group", lambda: a.then(b.times(2)), lambda: a.then(b).times(2)),
    ("a group in a group", lambda: a.times(4), lambda: a.times(2).times(2)),
]  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {"within": None},
    {"within": 61 * S},
    {"gap": S},
    {"gap": 2 * S},
    {"every": False},
    {"skip": skip.to_next},
    {"skip": skip.past_last},
    {"skip": skip.to_first("a")},
    {"skip": skip.to_first("b")},
    {"skip": skip.to_last("a")},
]


def all_printed() -> str:
    return " ".join(printed(builder()) for _, *two in EDITS for builder in two)


@pytest.mark.parametrize(
    ("what", "before", "after"), EDITS, ids=lambda argument: argument if isinstance(argument, str) else ""
)
def test_an_edit_of_one_thing_changes_the_fingerprint(
    what: str, before: Callable[[], Pattern], after: Callable[[], Pattern]
) -> None:
    assert printed(before()) == printed(before()), "the same pattern built twice"
    assert printed(after()) == printed(after()), "the same pattern built twice"
    assert printed(before()) != printed(after())


def test_each_option_changes_the_fingerprint() -> None:
    fingerprints = [printed(a.then(b), **options) for options in ({}, *OPTIONS)]
    assert len(set(fingerprints)) == len(fingerprints)


def test_the_table_has_every_word_of_a_repetition_and_every_option_of_a_search() -> None:
    edited = {what.split(",")[0] for what, _, _ in EDITS} | {name for options in OPTIONS for name in options}
    words = {"of": "a group", "low": "times", "high": "times", "how": "consecutive", "stop": "until"}
    words |= {"is_greedy": "greedy", "optionally": "optional", "is_reluctant": "times"}
    assert {words[field.name] for field in fields(Repeated)} <= edited
    assert {field.name for field in fields(Search)} - edited == {"pattern", "bounds", "preferred", "merges"}


def test_the_code_of_a_predicate_and_the_bounds_do_not_count() -> None:
    assert printed(a.at_least(1).until(is_d).then(b)) == printed(a.at_least(1).until(is_e).then(b))
    assert printed(a.then(b), bounds=Bounds(partial=1)) == printed(a.then(b), bounds=Bounds(partial=2))


def test_the_fingerprint_is_the_same_in_another_process() -> None:
    code = "from tests.cep.test_identity import all_printed; print(all_printed())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert outputs == {all_printed() + "\n"}
