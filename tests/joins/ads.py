"""Events that are easy to write down: `L1@0 R1@5` are a left one and a right one, each with its second.

The number of an event is the digits after its letter. `L1b@0` is of the key b; `+9` lets nine seconds of log time pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import App, Event
from penstock.declared import Joiner
from penstock.graph import check
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
    made: list[Any] = []
    for found in map(ITEM.fullmatch, text.split()):
        assert found is not None, text
        if found["tick"]:
            made.append(tick(int(found["tick"]) * S))
        else:
            key, number, at = found["key"] or "k", int(found["number"]), second(float(found["at"]))
            left = found["side"] == "L"
            made.append(Left(at=at, number=number, key=key) if left else Right(at=at, number=number, name=key))
    return made


def apart(items: Iterable[Any]) -> dict[str, list[Any]]:
    """One list for each stream. They come in the order of the items: where one has an item, the other lets time pass,
    by nothing but the step that an item takes."""
    step = tick(timedelta(milliseconds=1))
    given: dict[str, list[Any]] = {"lefts": [], "rights": []}
    for item in items:
        mine = None if not isinstance(item, Left | Right) else "lefts" if isinstance(item, Left) else "rights"
        for stream, items_there in given.items():
            items_there.append(item if mine in (None, stream) else step)
    return given


def join_app(*, late: tuple[float, float] = (1, 1), **options: Any) -> tuple[App, Joiner]:
    app = App("ads")
    delays = [timedelta(seconds=each) if each else None for each in late]
    app.stream("lefts", Left, key="key", late_after=delays[0])
    app.stream("rights", Right, key="name", late_after=delays[1])
    options = {"within": 10 * S, **options}
    made = app.join("both", left="lefts", right="rights", key=("key", "name"), emits=Both, **options)(pair)
    assert check(app) == []
    return app, made


def result_of(app: App, items: Iterable[Any], *, crashes: bool = False, **options: Any) -> Result:
    given = [each for item in items for each in ((item, CRASH) if crashes else (item,))]
    return run(app, apart(given), **({"batch_events": 1} if crashes else {}), **options)


def texts(result: Result, stream: str = "both") -> list[str]:
    return [each.text for each in result.emitted(stream)]


def told(result: Result, stream: str = "both.missed") -> list[str]:
    return [f"{each.stream} {each.reason} {each.by_s:g}" for each in result.emitted(stream)]


def lookup_app(*, late: tuple[float, float] = (0, 0), **options: Any) -> tuple[App, Joiner]:
    """Left ones are the events, right ones the rows of the table."""
    app = App("ads")
    delays = [timedelta(seconds=each) if each else None for each in late]
    app.stream("lefts", Left, key="key", late_after=delays[0])
    app.stream("rights", Right, key="name", late_after=delays[1])
    made = app.enrich("both", reads="lefts", table="rights", key=("key", "name"), emits=Both, **options)(pair)
    assert check(app) == []
    return app, made
