"""Fingerprints of searches, which ensure that only the search that began a partial match continues it.

A fingerprint covers everything that the user wrote except the bounds and the code of predicates: the names and classes
of steps, their order and repetitions, times, and `skip`. It also covers the numbers with which partial matches refer to
waits and steps, so a change in how the pattern is compiled changes the fingerprint.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from hashlib import blake2b
from typing import Any

from penstock.cep.pattern import Link, On, Pattern
from penstock.cep.plan import CompiledPattern
from penstock.cep.search import Search
from penstock.cep.transitions import Alternative, AutomatonState, Transition


def fingerprint(search: Search, plan: CompiledPattern) -> str:
    """Return the digest that is stored with a search's partial matches. It is the same in every process."""
    options = [repr(option) for option in (search.within, search.gap, str(search.skip), search.every)]
    chosen = [search.preferred, search.merges]
    text = repr((described(search.pattern), options, chosen, _pattern_numbers(plan)))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def described(part: Any) -> Any:
    """Return a part of a pattern as nested lists of strings and numbers. Of a predicate, the lists contain only whether
    it exists."""
    if isinstance(part, tuple):
        return [described(child) for child in part]
    if isinstance(part, On):
        return ["On", part.name, part.event.__name__, part.predicate is not None]
    if isinstance(part, Pattern | Link):
        return [type(part).__name__, *(described(getattr(part, field.name)) for field in fields(part))]  # type: ignore[arg-type]
    if isinstance(part, timedelta):
        return repr(part)
    return "predicate" if callable(part) else part


def _pattern_numbers(plan: CompiledPattern) -> list[Any]:
    """Return the numbers by which a pattern's waits, places and steps refer to each other."""
    place_of = {place: number for number, place in enumerate(plan.places)}
    wait_of = {wait: number for number, wait in enumerate(plan.transitions)}
    return [
        [step.name for step in plan.steps],
        [_transition_numbers(wait, place_of) for wait in wait_of],
        [(place.step, [wait_of[wait] for wait in place.after.transitions]) for place in place_of],
    ]


def _transition_numbers(wait: Transition, place_of: dict[AutomatonState, int]) -> list[Any]:
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
    return [*said, [_alternative_numbers(choice, place_of) for choice in wait.choices]] if wait.choices else said


def _alternative_numbers(choice: Alternative, place_of: dict[AutomatonState, int]) -> list[Any]:
    silence = None if choice.absence is None else place_of[choice.absence.place]
    return [[place_of[place] for place in choice.places], silence]
