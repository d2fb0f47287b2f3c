"""Functions that decide how an event affects a partial match. They are built once for each wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.cep.match import NO_MATCH, Match
from penstock.cep.memory import PartialMatch, due_later
from penstock.cep.pattern import On
from penstock.cep.transitions import Absence, Alternative, AutomatonState, Guard, Transition

Test = Callable[[Any, Match], bool]
Begin = Callable[[Any], Sequence[AutomatonState]]
Decided = tuple[Sequence[AutomatonState], PartialMatch | None, bool]
Outcome = Decided | None
"""The places that take the event, the partial match that continues to wait (or None), and whether the match is
complete. The most frequent outcome, None, means that the partial match continues to wait unchanged."""
Verdict = Callable[[PartialMatch, Any, Match], Outcome]

OVER: Outcome = ((), None, False)
COMPLETE: Outcome = ((), None, True)


def fits(on: On, mixed: bool) -> Test:
    """Return a function that tests whether an event fits a pattern's step. `mixed` means that events have several
    classes. An event of a class derived from the step's class belongs to a different stream, and does not fit."""
    predicate, cls = on.predicate, on.event
    if not mixed:
        return predicate if predicate is not None else _any_event_fits
    if predicate is None:
        return lambda event, match: event.__declared__ is cls
    known = predicate
    return lambda event, match: event.__declared__ is cls and known(event, match)


def _any_event_fits(event: Any, match: Match) -> bool:
    return True


def begins(transitions: Sequence[Transition], mixed: bool) -> Begin:
    """Return a function that returns the places at which an event begins a match."""
    tests = [
        (fits(place.on, mixed), place, _barring_tests(wait, mixed))
        for wait in transitions
        for place in wait.places
        if not wait.silences
    ]
    if len(tests) == 1 and not tests[0][2]:
        ((only, place, _),) = tests
        taken = (place,)
        return lambda event: taken if only(event, NO_MATCH) else ()

    def begin(event: Any) -> list[AutomatonState]:
        return [
            place
            for test, place, barred in tests
            if test(event, NO_MATCH) and not any(bar(event, NO_MATCH) for bar in barred)
        ]

    return begin


def _barring_tests(wait: Transition, mixed: bool) -> list[Test]:
    """Return tests for events that must not begin a match: events for which `stop` is true, and events that a greedy
    repetition takes first."""
    barred = [] if wait.stop is None else [wait.stop]
    for guard in wait.guards:
        barred.append(_greedy_test([fits(place.on, mixed) for place in guard.places], guard.stop))
    return barred


def _greedy_test(tests: list[Test], stop: Test | None) -> Test:
    def test(event: Any, match: Match) -> bool:
        return not (stop is not None and stop(event, match)) and any(step_test(event, match) for step_test in tests)

    return test


def verdict(wait: Transition, mixed: bool) -> Verdict:
    """Return a function that decides how an event affects a partial match in this wait."""
    decide = _alternatives_verdict(wait, mixed) if wait.choices else _transition_verdict(wait, mixed)
    if wait.guards:
        decide = _verdict_with_guards(wait.guards, decide, mixed)
    if wait.stop is not None:
        decide = _verdict_with_stop(wait.stop, decide)
    if wait.not_now:
        decide = _verdict_with_not_now([fits(step, mixed) for step in wait.not_now], decide)
    if wait.never:
        decide = _verdict_with_never([fits(step, mixed) for step in wait.never], decide)
    return decide


def _transition_verdict(wait: Transition, mixed: bool) -> Verdict:
    if wait.how == "end_next":
        return lambda run, event, match: COMPLETE
    if wait.how in ("absent", "end_within"):
        return lambda run, event, match: None
    tests = [(fits(place.on, mixed), place) for place in wait.places]
    stays, other = wait.how == "then_any", OVER if wait.how == "next" else None
    if len(tests) == 1 and not stays:
        ((test, place),) = tests
        taken: Outcome = ((place,), None, False)
        return lambda run, event, match: taken if test(event, match) else other

    def decide(run: PartialMatch, event: Any, match: Match) -> Outcome:
        taken = [place for test, place in tests if test(event, match)]
        return (taken, run if stays else None, False) if taken else other

    return decide


def _alternatives_verdict(wait: Transition, mixed: bool) -> Verdict:
    """Return the function for a partial match's wait with alternatives. Each alternative that the event fits takes it;
    the event can also rule out other alternatives. If no alternative is left, the match ends."""
    asked = [
        (bit, _unwanted_event_tests(choice, mixed), [(fits(place.on, mixed), place) for place in choice.places])
        for bit, choice in zip(wait.choice_bits, wait.choices, strict=True)
    ]
    silences, all_off = wait.silences, sum(wait.choice_bits)

    def decide(run: PartialMatch, event: Any, match: Match) -> Outcome:
        past, taken = run.past, list[AutomatonState]()
        for bit, unwanted, tests in asked:
            if past & bit:
                continue
            if any(test(event, match) for test in unwanted):
                past |= bit
            else:
                taken += [place for test, place in tests if test(event, match)]
        if wait.how == "next" or past & all_off == all_off or (taken and wait.how != "then_any"):
            return taken, None, False
        if past == run.past:
            return (taken, run, False) if taken else None
        return taken, _with_alternatives_off(run, past, silences), False

    return decide


def _unwanted_event_tests(choice: Alternative, mixed: bool) -> list[Test]:
    """Return tests for events that rule out an alternative of a pattern."""
    return [fits(step, mixed) for step in choice.never] + ([] if choice.stop is None else [choice.stop])


def _with_alternatives_off(run: PartialMatch, past: int, silences: list[tuple[int, Absence]]) -> PartialMatch:
    """Return the partial match with some alternatives ruled out. Its first absence may now complete later or no longer
    exist."""
    before = min((absence.time for bit, absence in silences if not run.past & bit), default=None)
    after = min((absence.time for bit, absence in silences if not past & bit), default=None)
    run = msgspec.structs.replace(run, past=past)
    if before is None:
        return run
    return due_later(run, None if after is None else after - before)


def _verdict_with_stop(stop: Test, decide: Verdict) -> Verdict:
    return lambda run, event, match: OVER if stop(event, match) else decide(run, event, match)


def _verdict_with_never(tests: list[Test], decide: Verdict) -> Verdict:
    return lambda run, event, match: OVER if any(test(event, match) for test in tests) else decide(run, event, match)


def _verdict_with_not_now(tests: list[Test], decide: Verdict) -> Verdict:
    def checked(run: PartialMatch, event: Any, match: Match) -> Outcome:
        if not run.past & 1 and any(test(event, match) for test in tests):
            return OVER
        return _outcome_with_past(run, decide(run, event, match), 1)

    return checked


def _verdict_with_guards(guards: tuple[Guard, ...], decide: Verdict, mixed: bool) -> Verdict:
    """Return a function that gives greedy repetitions precedence for as long as they can continue."""
    tests = [[fits(place.on, mixed) for place in guard.places] for guard in guards]

    def guarded(run: PartialMatch, event: Any, match: Match) -> Outcome:
        past = run.past
        for number, guard in enumerate(guards):
            off = 2 << number
            if past & off:
                continue
            if guard.stop is not None and guard.stop(event, match):
                past |= off
            elif any(test(event, match) for test in tests[number]):
                return OVER
            elif guard.how == "next":
                past |= off
        return _outcome_with_past(run, decide(run, event, match), past)

    return guarded


def _outcome_with_past(run: PartialMatch, outcome: Outcome, past: int) -> Outcome:
    """Add the bits in `past` to the outcome's partial match, if it continues to wait."""
    places, stays, complete = outcome or ((), run, False)
    if stays is None or stays.past | past == stays.past:
        return outcome
    return places, msgspec.structs.replace(stays, past=stays.past | past), complete
