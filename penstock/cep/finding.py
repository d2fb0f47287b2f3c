"""Find the matches of a pattern in a list, without Spark or an app. For tests and notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.cep.engine import PatternEngine
from penstock.cep.match import Match
from penstock.cep.memory import Bounds, memory_class
from penstock.cep.pattern import Pattern
from penstock.cep.search import Search
from penstock.cep.skip import Skip
from penstock.cep.skip import none as no_skip
from penstock.cep.step import StepResult
from penstock.core.errors import DeclarationError
from penstock.core.operators import SPAN_MAX

_NARROWER = "set within=, use then instead of then_any, or choose limits with bounds=cep.Bounds(...)"
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
_TOO_MANY_PERIODS = (
    "an absence is repeated too many times without an event: pass until=, or choose a limit with "
    "bounds=cep.Bounds(periods=...)"
)
LIST_BOUNDS = Bounds(partial=10_000, events=10_000, periods=10_000)
FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class At:
    """A `Moment` for the pattern engine: a time without a key."""

    now: datetime
    key: str = ""


def find(
    pattern: Pattern,
    events: Iterable[Any],
    *,
    within: timedelta | None = None,
    gap: timedelta | None = None,
    skip: Skip = no_skip,
    every: bool = True,
    bounds: Bounds | None = None,
    timed_out: bool = False,
    until: datetime | None = None,
) -> list[Match]:
    """Return the matches of a pattern in a list of events, as if all of the events had the same key.

    Events are processed in order of time. Events with the same time, or without a time, keep their order in the list.
    After the last event, time advances to `until`, or indefinitely, so absences complete and partial matches time out.
    With `timed_out`, partial matches that timed out are included and marked. Without `bounds`, exceeding `LIST_BOUNDS`
    is an error.
    """
    search = Search(pattern, within, skip, every, LIST_BOUNDS if bounds is None else bounds, gap=gap)
    if wrong := search.problems():
        raise DeclarationError("; ".join(wrong), problems=list(wrong))
    return find_matches(search, events, timed_out=timed_out, until=until, loses=bounds is not None)


def find_matches(
    search: Search,
    events: Iterable[Any],
    *,
    timed_out: bool = False,
    until: datetime | None = None,
    loses: bool = False,
) -> list[Match]:
    """Return the matches that a valid search finds in a list of events. With `loses`, partial matches and periods
    beyond the bounds are dropped; otherwise they cause an error."""
    ordered = sorted(_searched_events(events), key=lambda pair: pair[0])
    steps = search.pattern.steps()
    classes = list(dict.fromkeys([*(step.event for step in steps), *(event.__declared__ for _, event in ordered)]))
    engine = PatternEngine(search, classes)
    memory = memory_class("Found", classes)()
    matches: list[Match] = []

    def tell(step_result: StepResult | None) -> None:
        if step_result is not None:
            if step_result.lost and not loses:
                raise DeclarationError(
                    f"there are too many partial matches, or too many events in one of them: {_NARROWER}"
                )
            if step_result.left_out and not loses:
                raise DeclarationError(_TOO_MANY_PERIODS)
            matches.extend(step_result.matches)
            matches.extend(step_result.timed_out if timed_out else ())

    time = BEGIN
    try:
        for time, event in ordered:
            tell(engine.feed(memory, event, time, At(time)))
        tell(engine.advance(memory, until or FOREVER, At(BEGIN)))
    except OverflowError:
        if FOREVER - time > SPAN_MAX:  # it came from a predicate
            raise
        raise DeclarationError(
            f"an event has the time {time}, so a time limit or an absence that begins then would end after the year "
            "9999: use earlier times"
        ) from None
    if until is None:
        tell(engine.finish(memory, At(BEGIN)))
    return matches


def _searched_events(events: Iterable[Any]) -> Iterable[tuple[datetime, Any]]:
    """Yield each event of a searched list with its time. An event without a time is assigned the previous event's time
    plus one second."""
    time = BEGIN
    for event in events:
        field = getattr(event, "__time_field__", None)
        known = None if field is None else getattr(event, field)
        time = time + timedelta(seconds=1) if known is None else known
        yield time, event
