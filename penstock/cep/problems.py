"""What is wrong with a pattern, each in a sentence that says what to write instead. Nothing here looks at data."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from penstock.cep.memory import Bounds
from penstock.cep.pattern import Absent, AllOf, AnyOf, Link, On, Pattern, Repeated
from penstock.cep.pattern import Sequence as InOrder
from penstock.cep.plan import PLACES_MAX, TooLarge, plan, taking
from penstock.cep.skip import Skip
from penstock.cep.skip import none as no_skip
from penstock.cep.waits import Wait
from penstock.making import SPAN_MAX
from penstock.schema import Event

ALL_OF_MAX = 6
"""Steps of an `all_of`: there is a place for each set of them."""


def problems(
    pattern: Any,
    *,
    within: timedelta | None = None,
    skip: Any = no_skip,
    reads: Sequence[type[Event]] | None = None,
    bounded: bool = False,
) -> Iterator[str]:
    """All that is wrong. `reads` are the classes of the events that there are, None for any. With `bounded`, a pattern
    must not wait without end."""
    strange = [part for part in _walk(pattern) if not isinstance(part, Pattern)]
    if strange:
        yield f"{strange[0]!r} is no pattern; make one with cep.on(name, Class, predicate)"
        return
    if within is not None and not (isinstance(within, timedelta) and within > timedelta(0)):
        yield "within must be a timedelta above zero"
        within = None
    elif within is not None and within > SPAN_MAX:
        yield f"within={within} is too long to be added to a time; give at most timedelta(days={SPAN_MAX.days})"
        within = SPAN_MAX
    found = [*_parts(pattern, within), *_names(pattern), *_steps(pattern, reads), *_skip(pattern, skip)]
    if isinstance(pattern, Absent):
        found.append(_ABSENT)
    yield from dict.fromkeys(found)
    if not found:
        yield from _whole(pattern, within, bounded)


_ABSENT = "an absence needs a step before it, that says since when: write first.then(cep.absent(step, for_=...))"


def bounds_problems(bounds: Any) -> list[str]:
    """What is wrong with what was given as bounds."""
    if not isinstance(bounds, Bounds):
        return [f"bounds is {bounds!r}; give cep.Bounds(partial=..., events=..., waiting=..., full=..., remember=...)"]
    return bounds.problems()


def _whole(pattern: Pattern, within: timedelta | None, bounded: bool) -> Iterator[str]:
    """What is wrong with a pattern whose parts are right."""
    if may_be_nothing(pattern):
        yield "every step is optional, so nothing is a match already: make one of them needed"
    if _ends_greedy(pattern):
        yield (
            "a greedy repetition at the end has no effect, since a match is told as soon as it is there: "
            "put a step after it, or leave greedy() out"
        )
    if bounded and within is None:
        yield from _unbounded(pattern)
    try:
        made = plan(pattern)
    except TooLarge:
        yield f"it has more than {PLACES_MAX:,} places, for times(n) is written out: use smaller numbers or at_least(n)"
        return
    yield from dict.fromkeys(told for place in made.places for told in _end(place.after.waits, within))


def _end(waits: Sequence[Wait], within: timedelta | None) -> Iterator[str]:
    """What is wrong with an end that is something that must not come."""
    for wait in waits:
        if wait.how == "end_within" and within is None:
            yield (
                "it ends with not_then, and nobody says how long to wait: give within=, or write "
                ".then(cep.absent(step, for_=...))"
            )
        if wait.how in ("end_next", "end_within"):
            if len(waits) > 1:
                yield "what must not come at the end must be the last thing: nothing optional or repeated may follow it"
            if wait.never and wait.not_now:
                yield "it ends with both not_next and not_then: keep one of them"


def _unbounded(pattern: Pattern) -> Iterator[str]:
    for part in _walk(pattern):
        if isinstance(part, Repeated) and part.high is None:
            yield "without within= a repetition without end would be kept forever: give within=, or times(low, high)"
            return
        relaxed = isinstance(part, Repeated) and part.how != "next" and (part.high or 0) > 1
        joined = isinstance(part, InOrder) and any(
            link.how in ("then", "then_any") and not isinstance(link.to, Absent) for link in part.links
        )
        if relaxed or joined or isinstance(part, AllOf):
            yield "without within= a partial match could wait forever for its next event: give within="
            return


def _parts(pattern: Pattern, within: timedelta | None) -> Iterator[str]:
    for part in _walk(pattern):
        if isinstance(part, Repeated):
            yield from _repeated(part)
        elif isinstance(part, InOrder):
            yield from _sequence(part)
        elif isinstance(part, Absent):
            yield from _absent(part, within)
        elif isinstance(part, AllOf | AnyOf):
            yield from _several(part)


def _repeated(part: Repeated) -> Iterator[str]:
    low, high = part.low, part.high
    if not isinstance(low, int) or low < 1:
        yield f"times({low}) can never match: use 1 or more, and optional() for none"
    elif high is not None and (not isinstance(high, int) or high < low):
        yield f"times({low}, {high}) can never match: the second number must not be smaller"
    once = low == high == 1
    if part.stop is not None and once:
        yield "until is for a repetition: put times(n) or at_least(n) before it"
    if part.stop is not None:
        yield from _arity("the predicate of until", part.stop)
    if part.is_greedy and once and not part.optionally:
        yield "greedy is for a repetition or an optional step: put times(n), at_least(n) or optional() before it"
    if part.is_greedy and not isinstance(part.of, On):
        yield "greedy is for a single step, not for a group: write it at the step that is to repeat as often as it can"
    if isinstance(part.of, Absent):
        yield "an absence cannot be repeated: ask for a longer time instead"
    elif may_be_nothing(part.of) and not once:
        yield "a group that may be nothing cannot be repeated: make one of its steps needed"


def _sequence(part: InOrder) -> Iterator[str]:
    before: Pattern = part.first
    if isinstance(before, Absent):
        yield _ABSENT
    for link, following in zip(part.links, (*part.links[1:], None), strict=True):
        if isinstance(link.to, Absent) and link.how != "then":
            yield f"an absence follows with then, not with {link.how}"
        if link.how in ("not_next", "not_then"):
            yield from _negation(link, before, following)
        elif isinstance(link.to, Absent) and may_be_nothing(before):
            yield "the step before an absence must not be optional: it says since when"
        if link.how not in ("not_next", "not_then"):
            before = link.to


def _negation(link: Link, before: Pattern, following: Link | None) -> Iterator[str]:
    if not isinstance(link.to, On):
        yield f"{link.how} takes a single step, not a group: write cep.on(name, Class, predicate) in it"
        return
    if may_be_nothing(before):
        yield f"the step before {link.how} must not be optional: it says since when"
    if following is None or not isinstance(following.to, On) or not _same(link.to, following.to):
        return
    if link.how == "not_then" or following.how == "next":
        yield f"it can never match: {link.to.name!r} must not come, and {following.to.name!r}, the same, must"


def _same(one: On, other: On) -> bool:
    return one.event is other.event and one.predicate is other.predicate


def _absent(part: Absent, within: timedelta | None) -> Iterator[str]:
    if not isinstance(part.step, On):
        yield "cep.absent takes a single step: cep.absent(cep.on(name, Class, predicate), for_=...)"
    if not (isinstance(part.time, timedelta) and part.time > timedelta(0)):
        yield "for_ must be a timedelta above zero"
    elif part.time > SPAN_MAX:
        yield f"for_={part.time} is too long to be added to a time; give at most timedelta(days={SPAN_MAX.days})"
    elif within is not None and part.time > within:
        yield f"it can never match: an absence for {part.time} is longer than within={within}"


def _several(part: AllOf | AnyOf) -> Iterator[str]:
    word = "all_of" if isinstance(part, AllOf) else "any_of"
    if len(part.of) < 2:
        yield f"{word} needs two parts or more"
    if any(isinstance(each, Absent) for each in part.of):
        yield f"an absence cannot stand in {word}: write step.then(cep.absent(...)) there"
    if isinstance(part, AnyOf) and any(map(may_be_nothing, part.of)):
        yield "a part of any_of must not be optional: write cep.any_of(...).optional()"
    if isinstance(part, AnyOf) and any(map(_begins_with_until, part.of)):
        yield "what stands in any_of cannot begin with a repetition that has an until: put a step before that"
    if isinstance(part, AllOf) and not all(isinstance(each, On) for each in part.of):
        yield "all_of takes single steps: cep.on(name, Class, predicate) each"
    if isinstance(part, AllOf) and len(part.of) > ALL_OF_MAX:
        yield f"all_of takes up to {ALL_OF_MAX} steps"


def _begins_with_until(pattern: Pattern) -> bool:
    if isinstance(pattern, Repeated):
        return pattern.stop is not None or _begins_with_until(pattern.of)
    if isinstance(pattern, InOrder):
        parts = pattern.parts()
        needed = next((place for place, part in enumerate(parts) if not may_be_nothing(part)), len(parts) - 1)
        return any(map(_begins_with_until, parts[: needed + 1]))
    return isinstance(pattern, AnyOf) and any(map(_begins_with_until, pattern.of))


def _names(pattern: Pattern) -> Iterator[str]:
    for name, count in _counted(pattern).items():
        if count > 1:
            yield f"the name {name!r} is given to {count} steps: give each a name of its own"


def _counted(pattern: Pattern) -> Counter[str]:
    """How often each name is given. In the parts of an `any_of` the same step may stand again."""
    if isinstance(pattern, On):
        return Counter([pattern.name])
    counted = [_counted(part) for part in pattern.parts()]
    if not isinstance(pattern, AnyOf):
        return sum(counted, Counter())
    steps: dict[str, set[On]] = {}
    for step in pattern.steps():
        steps.setdefault(step.name, set()).add(step)
    most = {name: max(each[name] for each in counted) for name in steps}
    return Counter({name: max(most[name], len(steps[name])) for name in steps})


def _steps(pattern: Pattern, reads: Sequence[type[Event]] | None) -> Iterator[str]:
    for step in pattern.steps():
        if not isinstance(step.name, str) or not step.name:
            yield f"the name of a step is {step.name!r}; use some text"
        if not (isinstance(step.event, type) and issubclass(step.event, Event) and step.event is not Event):
            yield f"the step {step.name!r} is on {step.event!r}, which is not a class derived from Event"
        elif reads is not None and step.event not in reads:
            listed = ", ".join(each.__name__ for each in reads)
            yield (
                f"the step {step.name!r} is on {step.event.__name__}, which is not read; there are events of {listed}: "
                "add its stream to reads"
            )
        if step.predicate is not None:
            yield from _arity(f"the predicate of {step.name!r}", step.predicate)


def _arity(what: str, predicate: Callable[..., Any]) -> Iterator[str]:
    if not callable(predicate):
        yield f"{what} is {predicate!r}; write lambda event, match: ..."
        return
    try:
        inspect.signature(predicate).bind(None, None)
    except TypeError:
        yield f"{what} must take two arguments: write lambda event, match: ..."
    except ValueError:
        return  # it does not say what it takes


def _skip(pattern: Pattern, skip: Any) -> Iterator[str]:
    if not isinstance(skip, Skip):
        yield f"skip is {skip!r}; use cep.skip.none, to_next, past_last, to_first(name) or to_last(name)"
    elif skip.name is not None:
        names = [step.name for step in taking(pattern)]
        if skip.name not in names:
            yield f"skip={skip} names no step; there are {', '.join(map(repr, names))}"


def _walk(pattern: Any) -> Iterator[Any]:
    yield pattern
    for part in pattern.parts() if isinstance(pattern, Pattern) else ():
        yield from _walk(part)


def may_be_nothing(pattern: Pattern) -> bool:
    """Whether it may match without an event."""
    if isinstance(pattern, Repeated):
        return pattern.optionally or may_be_nothing(pattern.of)
    if isinstance(pattern, AnyOf):
        return any(map(may_be_nothing, pattern.of))
    if isinstance(pattern, InOrder):
        wanted = [link.to for link in pattern.links if link.how not in ("not_next", "not_then")]
        return all(map(may_be_nothing, (pattern.first, *wanted)))
    return False


def _ends_greedy(pattern: Pattern) -> bool:
    if isinstance(pattern, Repeated):
        return pattern.is_greedy or _ends_greedy(pattern.of)
    if isinstance(pattern, InOrder):
        last = _ends_greedy(pattern.links[-1].to)
        return last or (may_be_nothing(pattern.links[-1].to) and _ends_greedy(_without_last(pattern)))
    return isinstance(pattern, AnyOf) and any(map(_ends_greedy, pattern.of))


def _without_last(pattern: InOrder) -> Pattern:
    return InOrder(pattern.first, pattern.links[:-1]) if len(pattern.links) > 1 else pattern.first
