"""Events in a short notation: `L1@0 R1@5` are a left one and a right one, each with its second.

The number of an event is the digits after its letter. `L1b@0` is of the key b; `+9` lets nine seconds of log time pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import App, Event
from penstock.app.check import check
from penstock.app.declared import Joiner
from penstock.testing import CRASH, Result, run, tick

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
S = timedelta(seconds=1)
ITEM = re.compile(r"(?P<side>[LR])(?P<number>\d+)(?P<key>[a-z]?)@(?P<at>-?[\d.]+)|\+(?P<tick>\d+)")


class Left(Event, time="at"):
    at: datetime
    number: int
    key: str = "k"


class Right(Event, time="at"):
    at: datetime
    number: int
    name: str = "k"


class Both(Event):
    text: str


def pair(left: Any, right: Any) -> Both:
    return Both(text=f"{shown(left)} {shown(right)}")


def shown(event: Any) -> str:
    if event is None:
        return "-"
    return f"{'L' if isinstance(event, Left) else 'R'}{event.number}"


def second(number: float) -> datetime:
    return BEGIN + timedelta(seconds=number)


def parsed(text: str) -> list[Any]:
    items: list[Any] = []
    for match in map(ITEM.fullmatch, text.split()):
        assert match is not None, text
        if match["tick"]:
            items.append(tick(int(match["tick"]) * S))
        else:
            key, number, at = match["key"] or "k", int(match["number"]), second(float(match["at"]))
            left = match["side"] == "L"
            items.append(Left(at=at, number=number, key=key) if left else Right(at=at, number=number, name=key))
    return items


def apart(items: Iterable[Any]) -> dict[str, list[Any]]:
    """Return one list for each stream. They come in the order of the items: where one has an item, the other lets time
    pass, by exactly the step that an item takes."""
    step = tick(timedelta(milliseconds=1))
    given: dict[str, list[Any]] = {"lefts": [], "rights": []}
    for item in items:
        mine = None if not isinstance(item, Left | Right) else "lefts" if isinstance(item, Left) else "rights"
        for stream, items_there in given.items():
            items_there.append(item if mine in (None, stream) else step)
    return given


def join_app(*, late: tuple[float, float] = (1, 1), **options: Any) -> tuple[App, Joiner]:
    app = App("ads")
    delays = [timedelta(seconds=delay) if delay else None for delay in late]
    app.stream("lefts", Left, key="key", late_after=delays[0])
    app.stream("rights", Right, key="name", late_after=delays[1])
    options = {"within": 10 * S, **options}
    joiner = app.join("both", left="lefts", right="rights", key=("key", "name"), emits=Both, **options)(pair)
    assert check(app) == []
    return app, joiner


def result_of(app: App, items: Iterable[Any], *, crashes: bool = False, **options: Any) -> Result:
    given = [step for item in items for step in ((item, CRASH) if crashes else (item,))]
    return run(app, apart(given), **({"batch_events": 1} if crashes else {}), **options)


def texts(result: Result, stream: str = "both") -> list[str]:
    return [event.text for event in result.emitted(stream)]


def missed_texts(result: Result, stream: str = "both.missed") -> list[str]:
    return [f"{miss.stream} {miss.reason} {miss.by_s:g}" for miss in result.emitted(stream)]


def lookup_app(*, late: tuple[float, float] = (0, 0), **options: Any) -> tuple[App, Joiner]:
    """Return an app in which left events are looked up in the table of right ones."""
    app = App("ads")
    delays = [timedelta(seconds=delay) if delay else None for delay in late]
    app.stream("lefts", Left, key="key", late_after=delays[0])
    app.stream("rights", Right, key="name", late_after=delays[1])
    lookup = app.enrich("both", reads="lefts", table="rights", key=("key", "name"), emits=Both, **options)(pair)
    assert check(app) == []
    return app, lookup
