"""The errors that `check` finds without Spark, each with the user's file and line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest

from penstock import App, Context, Event, Record, Shed, State
from penstock.app.check import check, require_sound
from penstock.app.graph import change_streams, derived, derived_levels, log_inputs, order, read_streams
from penstock.app.sql import tables
from penstock.core.errors import DeclarationError


class Fix(Event, id="fix_id", time="at"):
    fix_id: str
    at: datetime
    vehicle: str
    speed: float


class Arrived(Event):
    ingest_time: datetime


class NoTime(Event):
    vehicle: str


class Odd(Event):
    thing: object


class BadId(Event, id="nope", time="vehicle"):
    vehicle: str


class Reserved(Event):
    _key: str


class Place(Record):
    city: str
    country = "?"


class Untyped(Event):
    UNIT: ClassVar[str] = "kg"
    places: list[Place]
    weight = 0.0

    def heavy(self) -> bool:
        return self.weight > 100

    @property
    def first(self) -> Place:
        return self.places[0]


class Weighed(Event):
    vehicle: str
    severity: int | None = None
    weight: float = 1.0
    heavy: float = 2.0
    bare: float
    maybe: float | None = None
    whole: int = 1


def changed(body: str = "str", migrate: Any = None, **said: Any) -> type[Event]:
    """Return a class with declarations about its earlier versions."""
    space: dict[str, Any] = {"__annotations__": {"vehicle": str, "body": body}, "__module__": __name__}
    if migrate is not None:
        space["migrate"] = migrate
    meta: Any = type(Event)
    event_class: type[Event] = meta("Changed", (Event,), space, **said)
    return event_class


class WrongDefault(Event):
    vehicle: str
    count: int = "none"  # type: ignore[assignment]


class Seen(State):
    times: int = 0


class NoDefault(State):
    times: int


class Unordered(State):
    tags: set[str] = set()  # noqa: RUF012  # its order would not be the same in every run


class Unknown(State):
    times: Nowhere = 0  # type: ignore[name-defined]  # noqa: F821


def handle(state: Seen, event: Fix, ctx: Context) -> None:
    state.times += 1


async def handle_later(state: Seen, event: Fix, ctx: Context) -> None:
    state.times += 1


def sound(app: App) -> None:
    app.stream("fixes", Fix, key="vehicle", late_after=timedelta(minutes=2), ahead=timedelta(minutes=5))
    app.stream("hints", Weighed, shed=Shed(keep=0.25, unless="severity >= 3 OR vehicle = 'bus'", weight="weight"))
    app.stream("urgent", Weighed, shed=Shed(unless="NOT severity IS NULL"))
    app.sql("busiest", "SELECT vehicle, count(*) AS n FROM fixes GROUP BY vehicle", key="vehicle", top=10, by="n")
    app.sql("calm", "SELECT vehicle FROM busiest WHERE n < 3", key="vehicle")


def fresh() -> App:
    return App("fleet")


def test_a_sound_app_has_no_problems() -> None:
    app = fresh()
    sound(app)
    assert check(app) == []
    require_sound(app)


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (lambda app: app.stream("Fixes!", Fix), "the name is invalid"),
        (lambda app: app.stream("a" * 49, Fix), "the name is invalid"),
        (lambda app: app.stream("../x", Fix), "the name is invalid"),
        (lambda app: app.stream("fixes", Fix), "is already used by the declaration at"),
        (lambda app: app.stream("other", Fix, key="vehikle"), "'vehikle' is not a field of Fix; its fields are fix_id"),
        (lambda app: app.stream("other", Fix, key="speed"), "cannot identify an event"),
        (lambda app: app.stream("other", BadId), "the id 'nope' is not a field of BadId"),
        (lambda app: app.stream("other", BadId), "the time field 'vehicle' must be a datetime"),
        (lambda app: app.stream("other", Odd), "Odd.thing: the type object is not supported"),
        (lambda app: app.stream("other", Reserved), "the field name _key is reserved"),
        (lambda app: app.stream("other", Untyped), "Untyped.weight has no type, so it is not a field"),
        (lambda app: app.stream("other", Untyped), "Place.country has no type"),
        (lambda app: app.stream("other", int), "not a class derived from Event"),
        (lambda app: app.stream("other", changed(version=0)), "the version of Changed is 0; use 1, 2, 3"),
        (lambda app: app.stream("other", changed(version=True)), "the version of Changed is True; use 1, 2, 3"),
        (
            lambda app: app.stream("other", changed(dropped=["body"])),
            "Changed.body is declared as dropped or renamed, but the class still has it",
        ),
        (
            lambda app: app.stream("other", changed(renamed={"body": "x"})),
            "Changed.body is declared as dropped or renamed",
        ),
        (
            lambda app: app.stream("other", changed(renamed={"a": "b"})),
            "was renamed to b, but has no field of that name",
        ),
        (
            lambda app: app.stream("other", changed(renamed={"text": "body"}, dropped=["text"])),
            "declares text as both dropped and renamed",
        ),
        (lambda app: app.stream("other", changed(migrate=staticmethod(dict))), "Changed.migrate is never called"),
        (
            lambda app: app.stream("other", changed(migrate=lambda fields: fields, version=2)),
            "Changed.migrate must be a static method with two arguments",
        ),
        (
            lambda app: app.handler("h", reads="fixes", key="vehicle", state=Seen, emits=changed(version=-1))(handle),
            "the version of Changed is -1",
        ),
        (lambda app: app.stream("other", WrongDefault), "of WrongDefault.count is 'none', which is not of type int"),
        (lambda app: app.stream("other", NoTime, late_after=timedelta(1)), "late_after needs an event time"),
        (lambda app: app.stream("other", Fix, late_after=timedelta(-1)), "late_after must be a timedelta of zero"),
        (
            lambda app: app.stream("other", NoTime, ahead=timedelta(1)),
            "ahead needs an event time: write class NoTime(Event, t",
        ),
        (lambda app: app.stream("other", Fix, ahead=timedelta(0)), "ahead must be a timedelta above zero"),
        (lambda app: app.stream("other", Fix, ahead=60), "ahead must be a timedelta above zero"),
        (
            lambda app: app.stream("other", Fix, ahead=timedelta.max),
            "but the maximum is 36525 days; omit it to accept any",
        ),
        (lambda app: app.stream("other", Fix, partitions=0), "partitions must be from 1 to"),
        (
            lambda app: app.sql("v", "SELECT a FROM nowhere", key="a"),
            "reads 'nowhere', which is not a stream or view",
        ),
        (
            lambda app: app.sql("v", "\n  SELEC a", key="a"),
            "view v: its SQL is invalid: it is not a SELECT (line 2, column 3, at 'SELEC a')",
        ),
        (
            lambda app: app.sql("v", "SELECT vehicle,\n  count(* AS n\nFROM fixes", key="vehicle"),
            "view v: its SQL is invalid: line 2, column 11, at 'AS n'",
        ),
        (
            lambda app: app.sql("v", "SELECT window(at, '1 day') w (2 FROM fixes", key="w"),
            "view v: its SQL is invalid: line 1, column 30, at '(2 FROM fixes'",
        ),
        (lambda app: app.sql("v", "SELECT vehicle FROM", key="vehicle"), "column 16, at 'FROM'"),
        (lambda app: app.sql("v", "SELECT 'a FROM fixes", key="a"), "it has an unclosed quote or comment"),
        (lambda app: app.sql("v", " ", key="a"), "its SQL is invalid: it is empty"),
        (lambda app: app.sql("v", "SELECT 1 AS a", key="a"), "view v: it reads nothing"),
        (lambda app: app.sql("v", "SELECT vehicle FROM fixes", key=[]), "it has no key"),
        (lambda app: app.sql("v", "SELECT vehicle FROM fixes", key=["a", "a"]), "contains a column twice"),
        (lambda app: app.sql("v", "SELECT vehicle FROM fixes", key="vehicle", top=3), "top and by must be set"),
        (lambda app: app.sql("v", "SELECT vehicle FROM fixes", key="vehicle", emit="often"), "emit is 'often'"),
        (lambda app: app.sql("v", "SELECT vehicle FROM fixes", key="vehicle", time="wall"), "use 'event' or 'ingest'"),
        (lambda app: app.sql("v", "SELECT n FROM busiest", key="n", time="ingest"), "is computed, not ingested"),
        (
            lambda app: app.handler("h", reads="nope", key="x", state=Seen)(handle),
            "it reads 'nope', which is not a stream",
        ),
        (lambda app: app.handler("h", reads="calm", key="x", state=Seen)(handle), "which is a view, but a handler"),
        (lambda app: app.handler("h", reads=[], key="x", state=Seen)(handle), "handler h: it reads nothing"),
        (lambda app: app.handler("h", reads="fixes", key="x", state=Seen)(handle), "the key 'x' is not a field of Fix"),
        (lambda app: app.handler("h", reads="fixes", key="speed", state=Seen)(handle), "cannot be used as a key"),
        (
            lambda app: app.handler("h", reads="fixes", key="vehicle", state=Fix)(handle),
            "not a class derived from State",
        ),
        (
            lambda app: app.handler("h", reads="fixes", key="vehicle", state=NoDefault)(handle),
            "NoDefault.times needs a default",
        ),
        (lambda app: app.handler("h", reads="fixes", key="vehicle", state=Unordered)(handle), "tags: the type set"),
        (
            lambda app: app.handler("h", reads="fixes", key="vehicle", state=Unknown)(handle),
            "a type of Unknown cannot be resolved: name 'Nowhere' is not defined",
        ),
        (lambda app: app.handler("h", reads="fixes", key="vehicle", state=Seen)(handle_later), "it is async"),
        (
            lambda app: app.handler("h", reads="fixes", key="vehicle", state=Seen, emits=Odd)(handle),
            "it emits Odd.thing: the type",
        ),
        (
            lambda app: app.handler("h", reads="fixes", key="vehicle", state=Seen, emits=Seen)(handle),
            "not a class derived from",
        ),
        (
            lambda app: app.handler("h", reads="fixes", key="vehicle", state=Seen, emits=[Fix, Fix])(handle),
            "the same name",
        ),
        (
            lambda app: app.handler("fixes", reads="fixes", key="vehicle", state=Seen)(handle),
            "is already used by the declaration",
        ),
        (lambda app: app.source("feed", object(), into="nowhere"), "which is not a stream of this app"),
    ],
)
def test_a_problem_is_found_at_its_line(declare: Callable[[App], object], expected: str) -> None:
    app = fresh()
    sound(app)
    declare(app)
    problems = [problem for problem in check(app) if expected in problem.message]
    assert len(problems) == 1, [str(problem) for problem in check(app)]
    assert problems[0].where.file.endswith("test_graph.py")
    assert problems[0].where.line == declare.__code__.co_firstlineno


@pytest.mark.parametrize("reads", [3, None, Fix, ["fixes", 3]])
def test_what_cannot_be_read_is_told_where_it_is_written(reads: Any) -> None:
    with pytest.raises(TypeError, match="cannot be read: pass a stream, a view, a view's changes, a handler, or"):
        App("fleet").handler("h", reads=reads, key="vehicle", state=Seen)(handle)


def test_a_cycle_is_found_with_its_way_round() -> None:
    app = fresh()
    app.stream("fixes", Fix)
    app.sql("a", "SELECT vehicle FROM b JOIN fixes USING (vehicle)", key="vehicle")
    app.sql("b", "SELECT vehicle FROM a", key="vehicle")
    messages = [problem.message for problem in check(app)]
    assert any("reads its own output through a <- b <- a" in message for message in messages)


def test_handlers_that_read_each_other_are_a_cycle() -> None:
    app = fresh()
    app.handler("a", reads="b", key="vehicle", state=Seen, emits=NoTime)(handle)
    app.handler("b", reads="a", key="vehicle", state=Seen, emits=NoTime)(handle)
    assert any("handler a: it reads its own output through a <- b <- a" in problem.message for problem in check(app))


def test_views_and_handlers_come_after_what_they_read() -> None:
    app = fresh()
    app.stream("fixes", Fix, key="vehicle")
    app.sql("v", "SELECT vehicle FROM first", key="vehicle")
    app.handler("second", reads="first", key="vehicle", state=Seen)(handle)
    app.handler("first", reads="fixes", key="vehicle", state=Seen, emits=NoTime)(handle)
    assert check(app) == []
    assert [node.name for node in order(app)] == ["first", "second", "v"]


def test_every_problem_is_reported_at_once() -> None:
    app = fresh()
    app.stream("Bad", Fix, key="x")
    with pytest.raises(DeclarationError) as caught:
        require_sound(app)
    assert len(caught.value.fields["problems"]) == 2


def test_views_come_after_what_they_read() -> None:
    app = fresh()
    app.sql("last", "SELECT vehicle FROM middle", key="vehicle")
    app.sql("middle", "SELECT vehicle FROM first", key="vehicle")
    app.sql("first", "SELECT vehicle FROM fixes", key="vehicle")
    app.stream("fixes", Fix)
    assert [view.name for view in order(app)] == ["first", "middle", "last"]
    assert [view.name for view in derived(app)] == ["middle", "last"]
    assert derived_levels(app) == [["middle"], ["last"]]
    assert change_streams(app) == frozenset()


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT * FROM fixes", ("fixes",)),
        ("SELECT * FROM fixes f JOIN `speed-by-minute` s ON f.a = s.a", ("fixes", "speed-by-minute")),
        ("WITH x AS (SELECT * FROM fixes) SELECT * FROM x", ("fixes",)),
        ("SELECT * FROM (SELECT * FROM a) UNION ALL SELECT * FROM b", ("a", "b")),
        ("SELECT 'FROM nothing' AS t FROM fixes", ("fixes",)),
        ("SELECT window, count(*) FROM fixes GROUP BY window(at, '1 minute')", ("fixes",)),
        ("SELECT window(at, '1 day') AS w, 'window(' AS t FROM a GROUP BY Window (at, '1 day'), x", ("a",)),
        ("SELECT sum(n) OVER w FROM fixes WINDOW w AS (PARTITION BY k)", ("fixes",)),
        ("not sql at all (", ()),
        ("'", ()),
    ],
)
def test_what_a_query_reads_is_found_in_its_text(query: str, names: tuple[str, ...]) -> None:
    assert sorted(tables(query)) == sorted(names)


@pytest.mark.parametrize(
    ("shed", "expected"),
    [
        (0.1, "shed is 0.1; use Shed(keep=0.1)"),
        (Shed(), "Shed needs keep= (a fraction of the events)"),
        *(
            (Shed(keep=keep), f"keep in Shed is {keep!r}; use a fraction above 0 and below 1")  # type: ignore[arg-type]
            for keep in (0.0, 1.0, -0.5, 10.0, 1, True, "0.1", float("nan"))
        ),
        (Shed(keep=0.1, weight="mass"), "the weight 'mass' is not a field of Weighed; its fields are vehicle"),
        *(
            (Shed(keep=0.1, weight=name), f"write `{name}: float = 1.0`")
            for name in ("vehicle", "heavy", "bare", "maybe", "whole")
        ),
        (Shed(unless="severity > 1", weight="weight"), "weight= needs keep="),
        (Shed(unless="sevrity > 1"), "there is no column 'sevrity'; did you mean severity?"),
        (Shed(unless="severity > 'high'"), "severity (a number) cannot be compared with 'high' (text)"),
        (Shed(unless="java_method('a', 'b')"), "there is no function 'java_method'"),
        (Shed(unless=3), "where is not a string"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_with_shedding_is_found_where_the_stream_is_declared(shed: Any, expected: str) -> None:
    app = fresh()
    declared = app.stream("hints", Weighed, shed=shed)
    (problem,) = check(app)
    assert problem.where == declared.where
    assert problem.message.startswith("stream hints: ")
    assert expected in problem.message


def test_what_comes_too_late_for_a_view_is_a_stream_that_others_read_after_it() -> None:
    app = fresh()
    sound(app)
    app.sql("late-cars", "SELECT id, late_s FROM `busiest.late`", key="id")
    app.sql("came", "SELECT window(ingest_time, '1 minute') AS w FROM fixes", key="w", time="ingest")
    assert check(app) == []
    assert {name: stream.name for name, stream in app.late.items()} == {"busiest": "busiest.late"}
    names = [node.name for node in order(app)]
    assert names.index("busiest") < names.index("late-cars")


def test_a_field_that_would_hide_the_ingest_time_is_refused() -> None:
    app = fresh()
    app.stream("arrivals", Arrived)
    app.sql("v", "SELECT ingest_time FROM arrivals", key="ingest_time", time="ingest")
    (problem,) = check(app)
    expected = "Arrived has a field ingest_time, but time='ingest' adds a column with this name; rename the field"
    assert expected in problem.message


def on_views() -> App:
    app = fresh()
    app.stream("fixes", Fix, key="vehicle")
    app.sql("speeds", "SELECT vehicle, max(speed) AS speed FROM fixes GROUP BY vehicle", key="vehicle")
    return app


MIXED = "reads both the stream fixes and the rows of the view speeds, but a batch that is run again could see"


def test_a_view_that_reads_what_is_gone_is_told_that_alone() -> None:
    """It is not also reported that it mixes a stream with the rows of a view."""
    app = on_views()
    app.sql("v", "SELECT * FROM speeds JOIN removed USING (vehicle)", key="vehicle")
    (problem,) = check(app)
    assert "it reads 'removed', which is not a stream or view of this app" in problem.message


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (lambda app: app.view("v", reads=["fixes", "speeds"], key="vehicle")(len), MIXED),
        (lambda app: app.sql("v", "SELECT * FROM fixes JOIN speeds USING (vehicle)", key="vehicle"), "app.enrich"),
        (
            lambda app: app.sql("v", "SELECT * FROM speeds", key="vehicle", emit="close"),
            "emit='close' cannot be used on a view that reads other views",
        ),
        (
            lambda app: app.sql("v", "SELECT * FROM speeds", key="vehicle", keep=timedelta(1)),
            "set keep on speeds, or add a condition to the query",
        ),
        (lambda app: app.sql("v", "SELECT * FROM speeds", key="vehicle", time="ingest"), "is computed, not ingested"),
        (lambda app: app.sql("v", "SELECT * FROM speeds.changes", key="vehicle"), "in backticks: `speeds.changes`"),
        (
            lambda app: app.handler("h", reads="speeds.changes", key="vehicle", state=Seen)(handle),
            "it reads 'speeds.changes', which only a view can read: look up the rows of speeds with app.enrich(",
        ),
    ],
)
def test_a_view_that_could_not_be_right_is_refused_with_what_to_write(
    declare: Callable[[App], Any], expected: str
) -> None:
    app = on_views()
    declare(app)
    assert any(expected in problem.message for problem in check(app)), list(map(str, check(app)))


def test_rows_and_changes_of_views_are_told_apart() -> None:
    app = on_views()
    above = app.sql("above", "SELECT vehicle FROM speeds", key="vehicle")
    app.sql("changes", "SELECT vehicle FROM `above.changes`", key="vehicle")
    app.sql("both", "SELECT * FROM fixes JOIN `speeds.changes` USING (vehicle)", key="vehicle")
    assert check(app) == []
    assert [view.name for view in derived(app)] == ["above"]
    assert change_streams(app) == {"above", "speeds"}
    assert [node.name for node in order(app)] == ["speeds", "above", "changes", "both"]
    inputs = {node.name: log_inputs(app, node) for node in order(app)}
    assert inputs == {
        "speeds": ["fixes"],
        "above": [],
        "changes": ["above.changes"],
        "both": ["fixes", "speeds.changes"],
    }
    assert read_streams(app, above) == ["fixes"]
