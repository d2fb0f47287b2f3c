"""Fingerprint of a search: stored partial matches are used only by the search that began them.

It covers all that the user wrote but the code of predicates and the bounds: names and classes of steps, how they follow
each other, how often, times, `skip`. It also covers the numbers by which partial matches name waits and steps, so a new
way to compile the same pattern gives another one.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from hashlib import blake2b
from typing import Any

from penstock.cep.pattern import Link, On, Pattern
from penstock.cep.plan import Plan
from penstock.cep.search import Search
from penstock.cep.waits import Choice, Place, Wait


def fingerprint(search: Search, plan: Plan) -> str:
    """Return the digest that is stored with the partial matches of a search. It is the same in every process."""
    options = [repr(each) for each in (search.within, search.gap, str(search.skip), search.every)]
    chosen = [search.preferred, search.merges]
    text = repr((described(search.pattern), options, chosen, _numbers(plan)))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def described(part: Any) -> Any:
    """Return a part of a pattern as nested lists of text and numbers. Of a predicate it says only that there is one."""
    if isinstance(part, tuple):
        return [described(each) for each in part]
    if isinstance(part, On):
        return ["On", part.name, part.event.__name__, part.predicate is not None]
    if isinstance(part, Pattern | Link):
        return [type(part).__name__, *(described(getattr(part, field.name)) for field in fields(part))]  # type: ignore[arg-type]
    if isinstance(part, timedelta):
        return repr(part)
    return "predicate" if callable(part) else part


def _numbers(plan: Plan) -> list[Any]:
    """Return the numbers of waits, places and steps as they refer to each other."""
    place_of = {place: number for number, place in enumerate(plan.places)}
    wait_of = {wait: number for number, wait in enumerate(plan.waits)}
    return [
        [step.name for step in plan.steps],
        [_wait(wait, place_of) for wait in wait_of],
        [(place.step, [wait_of[wait] for wait in place.after.waits]) for place in place_of],
    ]


def _wait(wait: Wait, place_of: dict[Place, int]) -> list[Any]:
    rival = None if wait.rival is None else place_of[wait.rival.place]
    guards = [[place_of[place] for place in guard.places] for guard in wait.guards]
    said = [
        wait.how,
        [place_of[place] for place in wait.places],
        repr(wait.time),
        rival,
        wait.goes_on,
        wait.back,
        guards,
    ]
    return [*said, [_choice(each, place_of) for each in wait.choices]] if wait.choices else said


def _choice(choice: Choice, place_of: dict[Place, int]) -> list[Any]:
    silence = None if choice.absence is None else place_of[choice.absence.place]
    return [[place_of[place] for place in choice.places], silence]
