"""The public API, checked as a user's editor checks it: correct code passes, wrong code is reported."""

from __future__ import annotations

from pathlib import Path

from mypy import api

GOOD = """
from typing import Any
from datetime import datetime, timedelta
from pyspark.sql import DataFrame
from collections.abc import Iterator
from penstock import App, Context, EpochMillis, Event, Record, Shed, State, cep, collect
from penstock.testing import CRASH, TICK, run

class Venue(Record):
    name: str
    lat: float | None = None

class Visit(Event, id="visit", time="at"):
    visit: str
    at: EpochMillis
    venue: Venue | None = None
    weight: float = 1.0

class Stay(Event, id="stay", version=2, renamed={"text": "body"}, dropped=["note"]):
    stay: str
    body: str
    nights: int = 1

    @staticmethod
    def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "nights": 2}

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

first = cep.on("first", Visit, lambda visit, match: visit.weight > 2)
later = cep.on("later", Visit, lambda visit, match: visit.weight > match["first"].weight)

@app.match("rising", reads=visits, key="visit", pattern=first.then(later.times(2, 3)).not_then(first),
           within=timedelta(minutes=1), skip=cep.skip.past_last, emits=Visit, timeouts=Visit)
def rising(match: cep.Match) -> Visit:
    return Visit(visit=match.key, at=match["later"].at, weight=len(match.all("later")))

@rising.timeout
def fallen(match: cep.Match) -> Visit | None:
    return None

matches: list[cep.Match] = cep.find(first.then(later), [], within=timedelta(minutes=1))
seen: list[Visit] = run(app, {visits: [CRASH, TICK]}).emitted(counter)
count = Count()
count.n += 1
visit = Visit(visit="1", at=datetime.now(), venue=Venue(name="hall"))
rows: DataFrame = app.preview(everything, [visit])
"""

CLIENT = """
from penstock import Event
from penstock.client import Change, Client, Consumer, Events, Intent, Producer, Progress, Reset, Snapshot, Stall, Tx

class Visit(Event, id="visit"):
    visit: str

async def handle(message: Events[Visit] | Progress | Stall | Reset, tx: Tx) -> None:
    if isinstance(message, Events):
        tx.intend("greet", [visit.visit for visit in message.events])

async def greet(intent: Intent) -> None:
    print(intent.id, intent.payload)

async def main() -> None:
    async with Client("http://127.0.0.1:8080", key=lambda: "secret") as client:
        receipt = await client.publish("visits", [Visit(visit="1"), {"visit": "2"}])
        count: int = receipt.accepted
        async for page in client.events("visits", of=Visit, limit=10):
            last: Visit = page.events[-1]
        name: object = (await client.rows("all", order="visit")).rows[0]["visit"]
        async with client.follow(view="all", of=Visit, since="latest", transport="sse") as messages:
            async for message in messages:
                match message:
                    case Snapshot(rows=rows) | Change(upserts=rows):
                        first: Visit = rows[0]
        async with client.table("all", of=Visit, key=["visit"]) as table:
            seen: list[Visit] = table.rows
        async with Producer(client, "visits", "outbox.db", when_full="refuse") as producer:
            await producer.send(last)
        visits = client.follow(stream="visits", of=Visit)
        async with Consumer(visits, "visits.db", handle, effects={"greet": greet}) as consumer:
            await consumer.run()
"""

CLIENT_WRONG = {
    "client.follow()": "overload variants",
    "client.follow(stream='a', view='b')": "No overload variant",
    "client.follow(stream='a', transport='pigeon')": "No overload variant",
    "await client.rows('all', since='latest')": "No overload variant",
    "await client.publish('visits', 7)": "incompatible type",
    "await producer.send('visit')": "incompatible type",
    "Consumer(client.follow(stream='visits'), 'v.db', handle)": "incompatible type",
    "message.cursor = 'x'": "read-only",
}

WRONG = {
    "visit.visit = '2'": "read-only",
    "Visit(visit=1, at=datetime.now())": "incompatible type",
    "Visit(visit='1')": "Missing named argument",
    "Visit('1', datetime.now())": "Too many positional arguments",
    "Venue(name='hall').name = 'x'": "read-only",
    "app.stream('more', int)": "incompatible type",
    "app.stream('more', Visit, shed=0.1)": "incompatible type",
    "Shed(keep=0.1).keep = 0.2": "read-only",
    "cep.on('x', Visit, lambda visit: True)": "Cannot infer type of lambda",
    "cep.on('x', Visit, lambda visit, match: visit.nothing)": "has no attribute",
    "first.then('later')": "incompatible type",
    "first.greedy()": "has no attribute",
    "class Later(Event, version='2'): pass": "incompatible type",
    "class Other(Event, renamed=['a']): pass": "incompatible type",
    "class Fewer(Event, gone=['a']): pass": "Unexpected keyword argument",
    "Stay(stay='1', body='x', text='y')": "Unexpected keyword argument",
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
    report = check(tmp_path, GOOD + "\n".join(WRONG))
    first = GOOD.count("\n") + 1
    for number, (code, says) in enumerate(WRONG.items()):
        lines = [line for line in report if f"user.py:{first + number}: error" in line]
        assert any(says in line for line in lines), f"{code}: {report}"


def test_right_code_of_a_client_passes_and_each_mistake_is_pointed_at(tmp_path: Path) -> None:
    assert check(tmp_path, CLIENT) == []
    report = check(tmp_path, CLIENT + "".join(f"        {code}\n" for code in CLIENT_WRONG))
    first = CLIENT.count("\n") + 1
    for number, (code, says) in enumerate(CLIENT_WRONG.items()):
        lines = [line for line in report if f"user.py:{first + number}: error" in line]
        assert any(says in line for line in lines), f"{code}: {report}"
