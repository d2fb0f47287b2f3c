"""What is wrong with a pattern, each in a sentence that says what to write instead. Nothing here looks at data."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from penstock.cep.memory import Bounds
from penstock.cep.pattern import Absent, AllOf, AnyOf, Every, Link, On, Pattern, Repeated
from penstock.cep.pattern import Sequence as InOrder
from penstock.cep.plan import PLACES_MAX, TooLarge, first_part, plan, taking
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
    gap: timedelta | None = None,
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
    yield from _span("within", within)
    yield from _span("gap", gap)
    limits = Limits(_spanned(within), _spanned(gap))
    found = [*_parts(pattern, limits), *_names(pattern), *_steps(pattern, reads), *_skip(pattern, skip)]
    yield from dict.fromkeys(found)
    if not found:
        yield from _whole(pattern, limits, bounded)


class Limits(NamedTuple):
    """The times that a match may take: all of it, and from one event to the next."""

    within: timedelta | None
    gap: timedelta | None

    @property
    def are_none(self) -> bool:
        return self.within is None and self.gap is None


def _span(name: str, time: Any) -> Iterator[str]:
    if time is not None and not (isinstance(time, timedelta) and time > timedelta(0)):
        yield f"{name} must be a timedelta above zero"
    elif time is not None and time > SPAN_MAX:
        yield f"{name}={time} is too long to be added to a time; give at most timedelta(days={SPAN_MAX.days})"


def _spanned(time: Any) -> timedelta | None:
    return min(time, SPAN_MAX) if isinstance(time, timedelta) and time > timedelta(0) else None


def bounds_problems(bounds: Any) -> list[str]:
    """What is wrong with what was given as bounds."""
    if not isinstance(bounds, Bounds):
        return [f"bounds is {bounds!r}; give cep.Bounds(partial=..., events=..., waiting=..., full=..., remember=...)"]
    return bounds.problems()


def _whole(pattern: Pattern, limits: Limits, bounded: bool) -> Iterator[str]:
    """What is wrong with a pattern whose parts are right."""
    if any(map(_is_timed, _first_parts(pattern))):  # no event before it that a gap counts from
        limits = limits._replace(gap=None)
    if may_be_nothing(pattern):
        yield "every step is optional, so nothing is a match already: make one of them needed"
    if _ends_greedy(pattern):
        yield (
            "a greedy repetition at the end has no effect, since a match is told as soon as it is there: "
            "put a step after it, or leave greedy() out"
        )
    if bounded and limits.are_none:
        yield from _unbounded(pattern)
    if limits.within is None and any(map(_is_silent_without_end, _walk(pattern))):
        yield "absences that are repeated without end need a time: give within=, or times(low, high)"
    try:
        made = plan(pattern)
    except TooLarge:
        yield f"it has more than {PLACES_MAX:,} places, for times(n) is written out: use smaller numbers or at_least(n)"
        return
    yield from dict.fromkeys(told for place in made.places for told in _end(place.after.waits, limits))


def _is_silent_without_end(part: Pattern) -> bool:
    return isinstance(part, Repeated) and part.high is None and _may_be_silent(part.of)


def _may_be_silent(pattern: Pattern) -> bool:
    """Whether it may match by absences alone."""
    if isinstance(pattern, Repeated):
        return pattern.optionally or _may_be_silent(pattern.of)
    if isinstance(pattern, AnyOf):
        return any(map(_may_be_silent, pattern.of))
    if isinstance(pattern, InOrder):
        wanted = [link.to for link in pattern.links if link.how not in ("not_next", "not_then")]
        return all(map(_may_be_silent, (pattern.first, *wanted)))
    return isinstance(pattern, Absent) or (isinstance(pattern, AllOf) and not taking(pattern))


def _end(waits: Sequence[Wait], limits: Limits) -> Iterator[str]:
    """What is wrong with an end that is something that must not come."""
    for wait in waits:
        if wait.how == "end_within" and limits.are_none:
            yield (
                "it ends with not_then, and nobody says how long to wait: give within=, or write "
                ".then(cep.absent(step, for_=...))"
            )
        if wait.how in ("end_next", "end_within"):
            if any(each is not wait and not each.back for each in waits):
                yield "what must not come at the end must be the last thing: nothing optional or repeated may follow it"
            if wait.never and wait.not_now:
                yield "it ends with both not_next and not_then: keep one of them"


def _unbounded(pattern: Pattern) -> Iterator[str]:
    for part in _walk(pattern):
        if isinstance(part, Repeated) and part.high is None:
            yield "without within= a repetition without end would be kept forever: give within=, or times(low, high)"
            return
        relaxed = isinstance(part, Repeated) and part.how != "next" and (part.high or 0) > 1 and taking(part)
        joined = isinstance(part, InOrder) and any(
            link.how in ("then", "then_any") and taking(link.to) for link in part.links
        )
        unordered = isinstance(part, AllOf) and len(taking(part)) > (0 if _is_timed(part) else 1)
        if relaxed or joined or unordered:
            yield "without within= a partial match could wait forever for its next event: give within="
            return


def _parts(pattern: Pattern, limits: Limits) -> Iterator[str]:
    for part in _walk(pattern):
        if isinstance(part, Repeated):
            yield from _repeated(part)
        elif isinstance(part, InOrder):
            yield from _sequence(part)
        elif isinstance(part, Absent):
            yield from _absent(part, limits)
        elif isinstance(part, AllOf):
            yield from _all_of(part)
        elif isinstance(part, AnyOf):
            yield from _any_of(part)
    yield from _untimed(pattern)
    yield from _everies(pattern, limits)
    for first in _first_parts(pattern):
        if _is_timed(first) and any(isinstance(each, Absent) and each.time is None for each in first.parts()):
            yield (
                "as the first step, all_of takes absences that all have a time, for_=, or absences without one: write "
                "cep.absent(step, for_=...).then(cep.all_of(cep.absent(other), ...))"
            )


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
    if begins_with_absence(part.of) and (part.how != "then" or part.stop is not None or part.is_greedy):
        yield "what begins with an absence takes times(n) and at_least(n), and none of the other words for a repetition"
    if isinstance(part.of, Absent) and part.optionally:
        yield "an absence cannot be optional: leave it out"
    elif may_be_nothing(part.of) and not once:
        yield "a group that may be nothing cannot be repeated: make one of its steps needed"


def _sequence(part: InOrder) -> Iterator[str]:
    before: Pattern = part.first
    for link, following in zip(part.links, (*part.links[1:], None), strict=True):
        if begins_with_absence(link.to) and link.how != "then":
            yield f"an absence follows with then, not with {link.how}"
        if link.how in ("not_next", "not_then"):
            yield from _negation(link, before, following)
        elif begins_with_absence(link.to) and may_be_nothing(before):
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


def _absent(part: Absent, limits: Limits) -> Iterator[str]:
    if not isinstance(part.step, On):
        yield "cep.absent takes a single step: cep.absent(cep.on(name, Class, predicate), for_=...)"
    if part.time is None:
        return
    if not (isinstance(part.time, timedelta) and part.time > timedelta(0)):
        yield "for_ must be a timedelta above zero"
    elif part.time > SPAN_MAX:
        yield f"for_={part.time} is too long to be added to a time; give at most timedelta(days={SPAN_MAX.days})"
    else:
        for name, limit in limits._asdict().items():
            if limit is not None and part.time > limit:
                yield f"it can never match: an absence for {part.time} is longer than {name}={limit}"


def _any_of(part: AnyOf) -> Iterator[str]:
    if len(part.of) < 2:
        yield "any_of needs two parts or more"
    if any(map(may_be_nothing, part.of)):
        yield "a part of any_of must not be optional: write cep.any_of(...).optional()"
    firsts = [each for alternative in part.of for each in _first_parts(alternative)]
    if any(isinstance(each, AllOf) and _is_timed(each) for each in firsts):
        yield (
            "all_of with an absence that has a time cannot begin a part of any_of: put a step before it, or make a "
            "pattern of each part"
        )


def _all_of(part: AllOf) -> Iterator[str]:
    if len(part.of) < 2:
        yield "all_of needs two parts or more"
    if not all(isinstance(each, On | Absent) for each in part.of):
        yield "all_of takes single steps: cep.on(name, Class, predicate) each, and cep.absent(step, for_=...)"
    if all(isinstance(each, Absent) and each.time is None for each in part.of):
        yield "all_of has absences without a time alone, so nothing completes it: add a step, or give one of them for_="
    if len(part.of) > ALL_OF_MAX:
        yield f"all_of takes up to {ALL_OF_MAX} steps"


def _needs_silence(part: Pattern) -> bool:
    return isinstance(part, AllOf) and any(isinstance(each, Absent) for each in part.of)


def _is_timed(part: Pattern) -> bool:
    """Whether it waits for an absence that has a time."""
    if isinstance(part, AllOf):
        return any(isinstance(each, Absent) and each.time is not None for each in part.of)
    return isinstance(part, Absent)


def _untimed(pattern: Pattern) -> Iterator[str]:
    """What is wrong with absences that have no time."""
    known = [each for part in _walk(pattern) if isinstance(part, AllOf) for each in part.of]
    for part in _walk(pattern):
        if isinstance(part, Absent) and part.time is None and not any(part is each for each in known):
            yield "an absence needs a time, for_=, but for one that is a part of all_of(cep.absent(step), ...)"


def _everies(pattern: Pattern, limits: Limits) -> Iterator[str]:
    links = pattern.links if isinstance(pattern, InOrder) else ()
    known = [first_part(pattern), *(link.to for link in links if link.how == "then")]
    for part in _walk(pattern):
        if not isinstance(part, Every):
            continue
        if not any(part is each for each in known):
            yield (
                "every is a part of the whole pattern, that begins it or follows with then: it cannot stand in a "
                "group, a repetition, any_of, all_of or another every"
            )
        elif part is not first_part(pattern) and limits.gap is not None:
            yield "every after a step takes within=, not gap=: the step before it may be long ago"
        if not _is_plain(part.of):
            yield (
                "every takes steps that follow each other with then, and times(n) of them: write the rest behind it, "
                "or leave every out and give skip=cep.skip.past_last"
            )
    before = first_part(pattern)
    for link in links:
        if isinstance(link.to, Every) and may_be_nothing(before):
            yield "the step before every must not be optional: it begins again after that"
        if not link.how.startswith("not"):
            before = link.to


def _is_plain(part: Pattern) -> bool:
    """Whether there is one way to match it, which nothing can break."""
    if isinstance(part, Repeated):
        return part == Repeated(part.of, part.low, part.low) and _is_plain(part.of)
    if isinstance(part, InOrder):
        return _is_plain(part.first) and all(link.how == "then" and _is_plain(link.to) for link in part.links)
    return isinstance(part, On)


def begins_with_absence(pattern: Pattern) -> bool:
    """Whether an absence may be the first thing that it waits for."""
    return any(isinstance(part, Absent) or _needs_silence(part) for part in _first_parts(pattern))


def _first_parts(pattern: Any) -> Iterator[Any]:
    """The parts with which a pattern may begin, each with all that it is in."""
    yield pattern
    if isinstance(pattern, Repeated):
        yield from _first_parts(pattern.of)
    elif isinstance(pattern, AnyOf):
        for each in pattern.of:
            yield from _first_parts(each)
    elif isinstance(pattern, InOrder):
        for part in (pattern.first, *(link.to for link in pattern.links if not link.how.startswith("not"))):
            yield from _first_parts(part)
            if not may_be_nothing(part):
                return


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
    if isinstance(skip, Skip) and skip.kind not in ("none", "to_next") and isinstance(first_part(pattern), Every):
        yield f"every at the beginning says when the next match begins: leave skip={skip} out, or every"


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
