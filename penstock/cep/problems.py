"""Validation of patterns, without any data. Each error is a sentence that says what to write instead."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from penstock.cep.durations import fits_gap, least_duration
from penstock.cep.memory import Bounds
from penstock.cep.pattern import Absent, AllOf, AnyOf, Every, Link, On, Pattern, Repeated
from penstock.cep.pattern import Sequence as InOrder
from penstock.cep.plan import PLACES_MAX, CompiledPattern, PatternTooLarge, first_part, plan, taking
from penstock.cep.skip import Skip
from penstock.cep.skip import none as no_skip
from penstock.cep.transitions import Transition
from penstock.core.operators import SPAN_MAX
from penstock.core.schema import Event

ALL_OF_MAX = 6
"""Maximum number of steps in an `all_of`, which has a place for each set of steps."""


def problems(
    pattern: Any,
    *,
    within: timedelta | None = None,
    gap: timedelta | None = None,
    skip: Any = no_skip,
    reads: Sequence[type[Event]] | None = None,
    bounded: bool = False,
) -> Iterator[str]:
    """Yield all errors in a pattern. `reads` contains the classes of the input events, or is None for any class. With
    `bounded`, the pattern must not be able to wait forever."""
    strange = [part for part in _pattern_and_parts(pattern) if not isinstance(part, Pattern)]
    if strange:
        yield f"{strange[0]!r} is not a pattern; make one with cep.on(name, Class, predicate)"
        return
    yield from _time_limit_problems("within", within)
    yield from _time_limit_problems("gap", gap)
    limits = TimeLimits(_valid_time_limit(within), _valid_time_limit(gap))
    errors = [
        *_pattern_part_problems(pattern, limits),
        *_step_name_problems(pattern),
        *_step_problems(pattern, reads),
        *_skip_problems(pattern, skip),
    ]
    yield from dict.fromkeys(errors)
    if not errors:
        yield from _whole_pattern_problems(pattern, limits, bounded)


class TimeLimits(NamedTuple):
    """The time limits of a match: for the whole match, and from one event to the next."""

    within: timedelta | None
    gap: timedelta | None

    @property
    def are_none(self) -> bool:
        return self.within is None and self.gap is None


def _time_limit_problems(name: str, time: Any) -> Iterator[str]:
    if time is not None and not (isinstance(time, timedelta) and time > timedelta(0)):
        yield f"{name} must be a timedelta above zero"
    elif time is not None and time > SPAN_MAX:
        yield f"{name}={time} is too long; use at most timedelta(days={SPAN_MAX.days})"


def _valid_time_limit(time: Any) -> timedelta | None:
    return min(time, SPAN_MAX) if isinstance(time, timedelta) and time > timedelta(0) else None


def bounds_problems(bounds: Any) -> list[str]:
    """Return the errors in a pattern's bounds."""
    if not isinstance(bounds, Bounds):
        names = ", ".join(f"{name}=..." for name in Bounds.__dataclass_fields__)
        return [f"bounds is {bounds!r}; pass cep.Bounds({names})"]
    return bounds.problems()


def _whole_pattern_problems(pattern: Pattern, limits: TimeLimits, bounded: bool) -> Iterator[str]:
    """Yield the errors in a pattern as a whole, if all of its parts are valid."""
    given = limits
    if any(map(_needs_timed_absence, _first_parts(pattern))):  # there is no earlier event to count the gap from
        limits = limits._replace(gap=None)
    if may_be_nothing(pattern):
        yield "every step is optional, so a match would need no events: make one of the steps required"
    if _ends_with_greedy_part(pattern):
        yield (
            "a greedy repetition at the end has no effect, because a match is emitted as soon as it is complete: "
            "add a step after it, or remove greedy()"
        )
    if bounded and limits.are_none:
        yield from _unbounded_pattern_problems(pattern)
    if limits.within is None and any(map(_repeats_absence_forever, _pattern_and_parts(pattern))):
        yield "absences that repeat without a limit need a time limit: set within=, or use times(low, high)"
    try:
        compiled_pattern = plan(pattern)
    except PatternTooLarge:
        yield (
            f"it expands to more than {PLACES_MAX:,} states, because times(n) repeats a part n times: use lower "
            "numbers or at_least(n)"
        )
        return
    yield from dict.fromkeys(
        error for place in compiled_pattern.places for error in _pattern_end_problems(place.after.transitions, limits)
    )
    yield from _too_long_absence_problems(pattern, compiled_pattern, given)


def _too_long_absence_problems(
    pattern: Pattern, compiled_pattern: CompiledPattern, limits: TimeLimits
) -> Iterator[str]:
    """Yield the time limits that every match would exceed because of its absences."""
    least = least_duration(compiled_pattern)
    absences = [part.time for part in _pattern_and_parts(pattern) if isinstance(part, Absent) and part.time is not None]
    too_long = {
        "within": limits.within is not None and least is not None and least > limits.within,
        "gap": limits.gap is not None and not fits_gap(compiled_pattern, limits.gap),
    }
    for name, limit in limits._asdict().items():
        longest = max((time for time in absences if limit is not None and time > limit), default=None)
        if too_long[name] and longest is not None:
            yield f"it can never match: an absence of {longest} is longer than {name}={limit}"
        elif too_long[name]:
            times = f"at least {least}, but" if name == "within" else "longer than"
            yield f"it can never match: its absences, one after the other, take {times} {name}={limit}"


def _repeats_absence_forever(part: Pattern) -> bool:
    return isinstance(part, Repeated) and part.high is None and _may_match_by_absence(part.of)


def _may_match_by_absence(pattern: Pattern) -> bool:
    """Return whether a pattern can match with absences alone."""
    if isinstance(pattern, Repeated):
        return pattern.optionally or _may_match_by_absence(pattern.of)
    if isinstance(pattern, AnyOf):
        return any(map(_may_match_by_absence, pattern.of))
    if isinstance(pattern, InOrder):
        wanted = [link.to for link in pattern.links if link.how not in ("not_next", "not_then")]
        return all(map(_may_match_by_absence, (pattern.first, *wanted)))
    return isinstance(pattern, Absent) or (isinstance(pattern, AllOf) and not taking(pattern))


def _pattern_end_problems(transitions: Sequence[Transition], limits: TimeLimits) -> Iterator[str]:
    """Yield the errors in a pattern that ends with an unwanted event."""
    for wait in transitions:
        if wait.how == "end_within" and limits.are_none:
            yield (
                "it ends with not_then, but has no time limit: set within=, or write .then(cep.absent(step, for_=...))"
            )
        if wait.how in ("end_next", "end_within"):
            if any(other is not wait and not other.back for other in transitions):
                yield "an unwanted event at the end must be the last part: no optional or repeated part may follow it"
            if wait.never and wait.not_now:
                yield "it ends with both not_next and not_then: use only one of them"


def _unbounded_pattern_problems(pattern: Pattern) -> Iterator[str]:
    for part in _pattern_and_parts(pattern):
        if isinstance(part, Repeated) and part.high is None:
            yield (
                "without within=, the events of an unlimited repetition would be kept forever: set within=, or use "
                "times(low, high)"
            )
            return
        relaxed = isinstance(part, Repeated) and part.how != "next" and (part.high or 0) > 1 and taking(part)
        joined = isinstance(part, InOrder) and any(
            link.how in ("then", "then_any") and taking(link.to) for link in part.links
        )
        unordered = isinstance(part, AllOf) and len(taking(part)) > (0 if _needs_timed_absence(part) else 1)
        if relaxed or joined or unordered:
            yield "without within=, a partial match could wait forever for its next event: set within="
            return


def _pattern_part_problems(pattern: Pattern, limits: TimeLimits) -> Iterator[str]:
    for part in _pattern_and_parts(pattern):
        if isinstance(part, Repeated):
            yield from _repetition_problems(part)
        elif isinstance(part, InOrder):
            yield from _sequence_problems(part)
        elif isinstance(part, Absent):
            yield from _absence_problems(part)
        elif isinstance(part, AllOf):
            yield from _all_of_problems(part)
        elif isinstance(part, AnyOf):
            yield from _any_of_problems(part)
    yield from _untimed_absence_problems(pattern)
    yield from _every_problems(pattern, limits)
    for first in _first_parts(pattern):
        if _needs_timed_absence(first) and any(
            isinstance(part, Absent) and part.time is None for part in first.parts()
        ):
            yield (
                "if all_of is the first step, either all or none of its absences must have a time, for_=: write "
                "cep.absent(step, for_=...).then(cep.all_of(cep.absent(other), ...))"
            )


def _repetition_problems(part: Repeated) -> Iterator[str]:
    low, high = part.low, part.high
    if not isinstance(low, int) or low < 1:
        yield f"times({low}) can never match: use 1 or more, or optional() for zero"
    elif high is not None and (not isinstance(high, int) or high < low):
        yield f"times({low}, {high}) can never match: the second number is smaller than the first"
    once = low == high == 1
    if part.stop is not None and once:
        yield "until applies to a repetition: put times(n) or at_least(n) before it"
    if part.stop is not None:
        yield from _predicate_problems("the predicate of until", part.stop)
    if part.is_greedy and once and not part.optionally:
        yield "greedy applies to a repetition or an optional step: put times(n), at_least(n) or optional() before it"
    if part.is_greedy and not isinstance(part.of, On):
        yield "greedy applies to a single step, not to a group: add it to the step that should repeat"
    if begins_with_absence(part.of) and (part.how != "then" or part.stop is not None or part.is_greedy):
        yield "a part that begins with an absence can be repeated only with times(n) or at_least(n)"
    if isinstance(part.of, Absent) and part.optionally:
        yield "an absence cannot be optional: remove the absence"
    elif may_be_nothing(part.of) and not once:
        yield "a group in which all steps are optional cannot be repeated: make one of its steps required"


def _sequence_problems(part: InOrder) -> Iterator[str]:
    before: Pattern = part.first
    for link, following in zip(part.links, (*part.links[1:], None), strict=True):
        if begins_with_absence(link.to) and link.how != "then":
            yield f"an absence must be linked with then, not with {link.how}"
        if link.how in ("not_next", "not_then"):
            yield from _negation_problems(link, before, following)
        elif begins_with_absence(link.to) and may_be_nothing(before):
            yield "the step before an absence must not be optional, because the time is counted from that step"
        if link.how not in ("not_next", "not_then"):
            before = link.to


def _negation_problems(link: Link, before: Pattern, following: Link | None) -> Iterator[str]:
    if not isinstance(link.to, On):
        yield f"{link.how} takes a single step, not a group: pass cep.on(name, Class, predicate)"
        return
    if may_be_nothing(before):
        yield f"the step before {link.how} must not be optional, because the check starts from that step"
    if following is None or not isinstance(following.to, On) or not _is_same_step(link.to, following.to):
        return
    if link.how == "not_then" or following.how == "next":
        yield f"it can never match: {following.to.name!r} must occur, but {link.to.name!r}, the same step, must not"


def _is_same_step(one: On, other: On) -> bool:
    return one.event is other.event and one.predicate is other.predicate


def _absence_problems(part: Absent) -> Iterator[str]:
    if not isinstance(part.step, On):
        yield "cep.absent takes a single step: cep.absent(cep.on(name, Class, predicate), for_=...)"
    if part.time is None:
        return
    if not (isinstance(part.time, timedelta) and part.time > timedelta(0)):
        yield "for_ must be a timedelta above zero"
    elif part.time > SPAN_MAX:
        yield f"for_={part.time} is too long; use at most timedelta(days={SPAN_MAX.days})"


def _any_of_problems(part: AnyOf) -> Iterator[str]:
    if len(part.of) < 2:
        yield "any_of needs at least two parts"
    if any(map(may_be_nothing, part.of)):
        yield "a part of any_of must not be optional: use cep.any_of(...).optional()"
    firsts = [first for alternative in part.of for first in _first_parts(alternative)]
    if any(isinstance(first, AllOf) and _needs_timed_absence(first) for first in firsts):
        yield (
            "an all_of with a timed absence cannot begin a part of any_of: put a step before it, or declare a separate "
            "pattern for each part"
        )


def _all_of_problems(part: AllOf) -> Iterator[str]:
    if len(part.of) < 2:
        yield "all_of needs at least two parts"
    if not all(isinstance(child, On | Absent) for child in part.of):
        yield "all_of takes only single steps: cep.on(name, Class, predicate) and cep.absent(step, for_=...)"
    if all(isinstance(child, Absent) and child.time is None for child in part.of):
        yield "all_of has only absences without a time, so nothing completes it: add a step, or set for_= on an absence"
    if len(part.of) > ALL_OF_MAX:
        yield f"all_of takes up to {ALL_OF_MAX} steps"


def _is_all_of_with_absence(part: Pattern) -> bool:
    return isinstance(part, AllOf) and any(isinstance(child, Absent) for child in part.of)


def _needs_timed_absence(part: Pattern) -> bool:
    """Return whether a pattern's part waits for an absence with a time."""
    if isinstance(part, AllOf):
        return any(isinstance(child, Absent) and child.time is not None for child in part.of)
    return isinstance(part, Absent)


def _untimed_absence_problems(pattern: Pattern) -> Iterator[str]:
    """Yield the errors in a pattern's absences without a time."""
    known = [child for part in _pattern_and_parts(pattern) if isinstance(part, AllOf) for child in part.of]
    for part in _pattern_and_parts(pattern):
        if isinstance(part, Absent) and part.time is None and not any(part is other for other in known):
            yield "an absence needs a time, for_=, unless it is a part of all_of, as in all_of(cep.absent(step), ...)"


def _every_problems(pattern: Pattern, limits: TimeLimits) -> Iterator[str]:
    links = pattern.links if isinstance(pattern, InOrder) else ()
    known = [first_part(pattern), *(link.to for link in links if link.how == "then")]
    for part in _pattern_and_parts(pattern):
        if not isinstance(part, Every):
            continue
        if not any(part is other for other in known):
            yield (
                "every must be a top-level part of the pattern, at its beginning or after then: it cannot be inside a "
                "group, a repetition, any_of, all_of or another every"
            )
        elif part is not first_part(pattern) and limits.gap is not None:
            yield "every after a step needs within= instead of gap=: the step before it may have matched long ago"
        if not _is_plain_pattern(part.of):
            yield (
                "every takes only steps linked with then, or times(n) of such steps: put other steps after every, or "
                "use skip=cep.skip.past_last instead of every"
            )
    before = first_part(pattern)
    for link in links:
        if isinstance(link.to, Every) and may_be_nothing(before):
            yield "the step before every must not be optional: every begins again after that step"
        if not link.how.startswith("not"):
            before = link.to


def _is_plain_pattern(part: Pattern) -> bool:
    """Return whether there is only one way to match a pattern's part, and no event can end a match early."""
    if isinstance(part, Repeated):
        return part == Repeated(part.of, part.low, part.low) and _is_plain_pattern(part.of)
    if isinstance(part, InOrder):
        return _is_plain_pattern(part.first) and all(
            link.how == "then" and _is_plain_pattern(link.to) for link in part.links
        )
    return isinstance(part, On)


def begins_with_absence(pattern: Pattern) -> bool:
    """Return whether a pattern can begin by waiting for an absence."""
    return any(isinstance(part, Absent) or _is_all_of_with_absence(part) for part in _first_parts(pattern))


def _first_parts(pattern: Any) -> Iterator[Any]:
    """Yield the parts that a pattern can begin with, and the parts that contain them."""
    yield pattern
    if isinstance(pattern, Repeated):
        yield from _first_parts(pattern.of)
    elif isinstance(pattern, AnyOf):
        for alternative in pattern.of:
            yield from _first_parts(alternative)
    elif isinstance(pattern, InOrder):
        for part in (pattern.first, *(link.to for link in pattern.links if not link.how.startswith("not"))):
            yield from _first_parts(part)
            if not may_be_nothing(part):
                return


def _step_name_problems(pattern: Pattern) -> Iterator[str]:
    for name, count in _step_name_counts(pattern).items():
        if count > 1:
            yield f"{count} steps have the name {name!r}: give each step a unique name"


def _step_name_counts(pattern: Pattern) -> Counter[str]:
    """Count the uses of each step name. The parts of an `any_of` can contain the same step."""
    if isinstance(pattern, On):
        return Counter([pattern.name])
    counted = [_step_name_counts(part) for part in pattern.parts()]
    if not isinstance(pattern, AnyOf):
        return sum(counted, Counter())
    steps: dict[str, set[On]] = {}
    for step in pattern.steps():
        steps.setdefault(step.name, set()).add(step)
    most = {name: max(counts[name] for counts in counted) for name in steps}
    return Counter({name: max(most[name], len(steps[name])) for name in steps})


def _step_problems(pattern: Pattern, reads: Sequence[type[Event]] | None) -> Iterator[str]:
    for step in pattern.steps():
        if not isinstance(step.name, str) or not step.name:
            yield f"a step has the name {step.name!r}; use a non-empty string"
        if not (isinstance(step.event, type) and issubclass(step.event, Event) and step.event is not Event):
            yield f"the class of the step {step.name!r} is {step.event!r}, which is not a class derived from Event"
        elif reads is not None and step.event not in reads:
            listed = ", ".join(cls.__name__ for cls in reads)
            yield (
                f"the class of the step {step.name!r} is {step.event.__name__}, but only events of {listed} are read: "
                "add the stream of that class to reads"
            )
        if step.predicate is not None:
            yield from _predicate_problems(f"the predicate of {step.name!r}", step.predicate)


def _predicate_problems(what: str, predicate: Callable[..., Any]) -> Iterator[str]:
    if not callable(predicate):
        yield f"{what} is {predicate!r}; write lambda event, match: ..."
        return
    try:
        inspect.signature(predicate).bind(None, None)
    except TypeError:
        yield f"{what} must take two arguments: write lambda event, match: ..."
    except ValueError:
        return  # there is no signature to check


def _skip_problems(pattern: Pattern, skip: Any) -> Iterator[str]:
    if not isinstance(skip, Skip):
        yield f"skip is {skip!r}; use cep.skip.none, to_next, past_last, to_first(name) or to_last(name)"
    elif skip.name is not None:
        names = [step.name for step in taking(pattern)]
        if skip.name not in names:
            yield f"skip={skip} names an unknown step; the steps are {', '.join(map(repr, names))}"
    if isinstance(skip, Skip) and skip.kind not in ("none", "to_next") and isinstance(first_part(pattern), Every):
        yield (
            f"every at the beginning already determines when the next match begins: remove either skip={skip} or every"
        )


def _pattern_and_parts(pattern: Any) -> Iterator[Any]:
    yield pattern
    for part in pattern.parts() if isinstance(pattern, Pattern) else ():
        yield from _pattern_and_parts(part)


def may_be_nothing(pattern: Pattern) -> bool:
    """Return whether a pattern can match without any event."""
    if isinstance(pattern, Repeated):
        return pattern.optionally or may_be_nothing(pattern.of)
    if isinstance(pattern, AnyOf):
        return any(map(may_be_nothing, pattern.of))
    if isinstance(pattern, InOrder):
        wanted = [link.to for link in pattern.links if link.how not in ("not_next", "not_then")]
        return all(map(may_be_nothing, (pattern.first, *wanted)))
    return False


def _ends_with_greedy_part(pattern: Pattern) -> bool:
    if isinstance(pattern, Repeated):
        return pattern.is_greedy or _ends_with_greedy_part(pattern.of)
    if isinstance(pattern, InOrder):
        last = _ends_with_greedy_part(pattern.links[-1].to)
        return last or (may_be_nothing(pattern.links[-1].to) and _ends_with_greedy_part(_without_last_link(pattern)))
    return isinstance(pattern, AnyOf) and any(map(_ends_with_greedy_part, pattern.of))


def _without_last_link(pattern: InOrder) -> Pattern:
    return InOrder(pattern.first, pattern.links[:-1]) if len(pattern.links) > 1 else pattern.first
