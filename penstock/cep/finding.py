"""A pattern over a list, without Spark and without an app: for tests and notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.cep.engine import Engine
from penstock.cep.match import Match
from penstock.cep.memory import Bounds, memory_class
from penstock.cep.pattern import Pattern
from penstock.cep.search import Search
from penstock.cep.skip import Skip
from penstock.cep.skip import none as no_skip
from penstock.cep.turn import Found
from penstock.errors import DeclarationError

_NARROWER = "give within=, use then rather than then_any, or say with bounds=cep.Bounds(...) what is to be done"
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
LIST_BOUNDS = Bounds(partial=10_000, events=10_000)
FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class At:
    """A moment, of no key."""

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
    """The matches of a pattern in a list of events, as if they were all of one key.

    Events are taken in the order of their time; of the same time, or without one, in that of the list. After the last
    one time goes on, to `until` or without end, so absences and times that are over are told too. With `timed_out`,
    partial matches whose time was over are among the matches, each marked so. Without `bounds`, more partial matches
    than `LIST_BOUNDS` has are an error.
    """
    search = Search(pattern, within, skip, every, LIST_BOUNDS if bounds is None else bounds, gap=gap)
    if wrong := search.problems():
        raise DeclarationError("; ".join(wrong), problems=list(wrong))
    return searched(search, events, timed_out=timed_out, until=until, loses=bounds is not None)


def searched(
    search: Search,
    events: Iterable[Any],
    *,
    timed_out: bool = False,
    until: datetime | None = None,
    loses: bool = False,
) -> list[Match]:
    """The matches of a search without problems in a list. It `loses` partial matches for room, or that is an error."""
    ordered = sorted(_timed(events), key=lambda each: each[0])
    steps = search.pattern.steps()
    classes = list(dict.fromkeys([*(step.event for step in steps), *(event.__declared__ for _, event in ordered)]))
    engine = Engine(search, classes)
    memory = memory_class("Found", classes)()
    made: list[Match] = []

    def tell(found: Found | None) -> None:
        if found is not None:
            if found.lost and not loses:
                raise DeclarationError(f"there are too many partial matches, or events of one: {_NARROWER}")
            made.extend(found.matches)
            made.extend(found.timed_out if timed_out else ())

    for time, event in ordered:
        tell(engine.feed(memory, event, time, At(time)))
    tell(engine.advance(memory, until or FOREVER, At(BEGIN)))
    if until is None:
        tell(engine.finish(memory, At(BEGIN)))
    return made


def _timed(events: Iterable[Any]) -> Iterable[tuple[datetime, Any]]:
    """Each event with its time; a second after the one before it, if its class has none."""
    time = BEGIN
    for event in events:
        field = getattr(event, "__time_field__", None)
        known = None if field is None else getattr(event, field)
        time = time + timedelta(seconds=1) if known is None else known
        yield time, event
