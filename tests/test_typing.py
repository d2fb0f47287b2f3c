"""The public API, checked the way a user's editor checks it: right code passes, wrong code is pointed at."""

from __future__ import annotations

from pathlib import Path

from mypy import api

GOOD = """
from datetime import datetime, timedelta
from pyspark.sql import DataFrame
from collections.abc import Iterator
from penstock import App, Context, EpochMillis, Event, Record, Shed, State, collect
from penstock.testing import CRASH, TICK, run

class Venue(Record):
    name: str
    lat: float | None = None

class Visit(Event, id="visit", time="at"):
    visit: str
    at: EpochMillis
    venue: Venue | None = None
    weight: float = 1.0

class Count(State):
    n: int = 0

app = App("visits")
visits = app.stream("visits", Visit, key="visit", late_after=timedelta(seconds=1))
hints = app.stream("hints", Visit, shed=Shed(keep=0.1, unless="visit = 'first'", weight="weight"))
app.source("feed", collect.websocket("ws://127.0.0.1:1/feed"), into=visits)

@app.view("all", reads=visits, key=["visit"])
def everything(visits: DataFrame) -> DataFrame:
    return visits

@app.handler("counter", reads=visits, key="visit", state=Count, emits=Visit)
def counter(count: Count, visit: Visit, ctx: Context) -> Iterator[Visit]:
    count.n += 1
    ctx.timer("again", ctx.now + timedelta(seconds=1))
    if ctx.random.random() < 0.5:
        yield visit

@counter.timer("again")
def again(count: Count, ctx: Context) -> None:
    ctx.timer("again", None)

seen: list[Visit] = run(app, {visits: [CRASH, TICK]}).emitted(counter)
count = Count()
count.n += 1
visit = Visit(visit="1", at=datetime.now(), venue=Venue(name="hall"))
rows: DataFrame = app.preview(everything, [visit])
"""

WRONG = {
    "visit.visit = '2'": "read-only",
    "Visit(visit=1, at=datetime.now())": "incompatible type",
    "Visit(visit='1')": "Missing named argument",
    "Visit('1', datetime.now())": "Too many positional arguments",
    "Venue(name='hall').name = 'x'": "read-only",
    "app.stream('more', int)": "incompatible type",
    "app.stream('more', Visit, shed=0.1)": "incompatible type",
    "Shed(keep=0.1).keep = 0.2": "read-only",
    "app.view('v', reads=visits, key='a', emit='often')": "incompatible type",
}


def check(tmp_path: Path, code: str) -> list[str]:
    file = tmp_path / "user.py"
    file.write_text(code)
    out, err, _ = api.run(["--strict", "--no-error-summary", "--hide-error-context", str(file)])
    assert not err
    return out.splitlines()


def test_right_code_passes_a_strict_check(tmp_path: Path) -> None:
    assert check(tmp_path, GOOD) == []


def test_each_mistake_is_pointed_at(tmp_path: Path) -> None:
    found = check(tmp_path, GOOD + "\n".join(WRONG))
    first = GOOD.count("\n") + 1
    for number, (code, says) in enumerate(WRONG.items()):
        lines = [line for line in found if f"user.py:{first + number}: error" in line]
        assert any(says in line for line in lines), f"{code}: {found}"
