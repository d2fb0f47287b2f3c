"""What becomes of a partial match at an event, as functions made once for each wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.cep.match import NOTHING, Match
from penstock.cep.memory import Run, due_later
from penstock.cep.pattern import On
from penstock.cep.waits import Absence, Choice, Guard, Place, Wait

Test = Callable[[Any, Match], bool]
Begin = Callable[[Any], Sequence[Place]]
Decided = tuple[Sequence[Place], Run | None, bool]
Outcome = Decided | None
"""The places that take the event; the partial match as it goes on waiting; and whether it is complete. None, as it is
most of the time: it goes on waiting, and that is all."""
Verdict = Callable[[Run, Any, Match], Outcome]

OVER: Outcome = ((), None, False)
COMPLETE: Outcome = ((), None, True)


def fits(on: On, mixed: bool) -> Test:
    """Whether an event is one for the step. `mixed`: there are events of several classes. One of a class derived from
    the step's is of another stream, and none for it."""
    predicate, cls = on.predicate, on.event
    if not mixed:
        return predicate if predicate is not None else _anything
    if predicate is None:
        return lambda event, match: event.__declared__ is cls
    known = predicate
    return lambda event, match: event.__declared__ is cls and known(event, match)


def _anything(event: Any, match: Match) -> bool:
    return True


def begins(waits: Sequence[Wait], mixed: bool) -> Begin:
    """The places with which an event begins a match."""
    tests = [
        (fits(place.on, mixed), place, _barred(wait, mixed))
        for wait in waits
        for place in wait.places
        if not wait.silences
    ]
    if len(tests) == 1 and not tests[0][2]:
        ((only, place, _),) = tests
        taken = (place,)
        return lambda event: taken if only(event, NOTHING) else ()

    def begin(event: Any) -> list[Place]:
        return [
            place
            for test, place, barred in tests
            if test(event, NOTHING) and not any(each(event, NOTHING) for each in barred)
        ]

    return begin


def _barred(wait: Wait, mixed: bool) -> list[Test]:
    """What an event must not be to begin a match: a stop, or one for a greedy repetition that has not come to its."""
    barred = [] if wait.stop is None else [wait.stop]
    for guard in wait.guards:
        barred.append(_greedy([fits(place.on, mixed) for place in guard.places], guard.stop))
    return barred


def _greedy(tests: list[Test], stop: Test | None) -> Test:
    def test(event: Any, match: Match) -> bool:
        return not (stop is not None and stop(event, match)) and any(each(event, match) for each in tests)

    return test


def verdict(wait: Wait, mixed: bool) -> Verdict:
    """What becomes of a partial match in this wait."""
    decide = _choice(wait, mixed) if wait.choices else _decision(wait, mixed)
    if wait.guards:
        decide = _guarded(wait.guards, decide, mixed)
    if wait.stop is not None:
        decide = _stopped(wait.stop, decide)
    if wait.not_now:
        decide = _not_now([fits(each, mixed) for each in wait.not_now], decide)
    if wait.never:
        decide = _never([fits(each, mixed) for each in wait.never], decide)
    return decide


def _decision(wait: Wait, mixed: bool) -> Verdict:
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

    def decide(run: Run, event: Any, match: Match) -> Outcome:
        taken = [place for test, place in tests if test(event, match)]
        return (taken, run if stays else None, False) if taken else other

    return decide


def _choice(wait: Wait, mixed: bool) -> Verdict:
    """The alternatives that are not off take the event, or are called off by it. If none is left, it is over."""
    asked = [
        (bit, _unwanted(each, mixed), [(fits(place.on, mixed), place) for place in each.places])
        for bit, each in zip(wait.choice_bits, wait.choices, strict=True)
    ]
    silences, all_off = wait.silences, sum(wait.choice_bits)

    def decide(run: Run, event: Any, match: Match) -> Outcome:
        past, taken = run.past, list[Place]()
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
        return taken, _called_off(run, past, silences), False

    return decide


def _unwanted(choice: Choice, mixed: bool) -> list[Test]:
    """Tests of an event that calls an alternative off."""
    return [fits(each, mixed) for each in choice.never] + ([] if choice.stop is None else [choice.stop])


def _called_off(run: Run, past: int, silences: list[tuple[int, Absence]]) -> Run:
    """The same without some alternatives: the absence that is complete first may be a later one now, or none."""
    before = min((each.time for bit, each in silences if not run.past & bit), default=None)
    after = min((each.time for bit, each in silences if not past & bit), default=None)
    run = msgspec.structs.replace(run, past=past)
    if before is None:
        return run
    return due_later(run, None if after is None else after - before)


def _stopped(stop: Test, decide: Verdict) -> Verdict:
    return lambda run, event, match: OVER if stop(event, match) else decide(run, event, match)


def _never(tests: list[Test], decide: Verdict) -> Verdict:
    return lambda run, event, match: OVER if any(test(event, match) for test in tests) else decide(run, event, match)


def _not_now(tests: list[Test], decide: Verdict) -> Verdict:
    def checked(run: Run, event: Any, match: Match) -> Outcome:
        if not run.past & 1 and any(test(event, match) for test in tests):
            return OVER
        return _passed(run, decide(run, event, match), 1)

    return checked


def _guarded(guards: tuple[Guard, ...], decide: Verdict, mixed: bool) -> Verdict:
    """Gives way to a greedy repetition as long as that could go on."""
    tests = [[fits(place.on, mixed) for place in guard.places] for guard in guards]

    def guarded(run: Run, event: Any, match: Match) -> Outcome:
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
        return _passed(run, decide(run, event, match), past)

    return guarded


def _passed(run: Run, outcome: Outcome, past: int) -> Outcome:
    """The same, if it goes on waiting, with what it must know of what has passed."""
    places, stays, complete = outcome or ((), run, False)
    if stays is None or stays.past | past == stays.past:
        return outcome
    return places, msgspec.structs.replace(stays, past=stays.past | past), complete
