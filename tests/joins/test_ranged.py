"""A stream with a rollup: each event with the rows of a unit and a range, as the log has them when it comes."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import App, Event, gone, joins, windows
from penstock.app.check import check
from penstock.app.declared import Joiner
from penstock.core.shapes import shape_of
from penstock.handlers.evolution import misfit
from penstock.testing import CRASH, run, tick
from tests.joins.ads import BEGIN, Both
from tests.joins.test_random import SETTINGS

HOUR = timedelta(hours=1)
STEP = tick(timedelta(milliseconds=1))


class Sale(Event, time="at"):
    at: datetime
    shop: str = "a"
    till: int = 0
    number: int = 0


class Row(Event):
    per: str
    start: datetime
    shop: str
    till: int
    n: int


class Bare(Event):
    shop: str
    till: int
    n: int


class Odd(Event):
    per: int
    start: datetime
    shop: str
    till: int


def hours(count: float) -> datetime:
    return BEGIN + count * HOUR


def shown(sale: Sale, rows: list[Any]) -> Both:
    return Both(text=f"{sale.number}: {' '.join(f'{(row.start - BEGIN) // HOUR}={row.n}' for row in rows)}")


def records(function: Any = shown, **options: Any) -> tuple[App, Joiner]:
    app = App("records")
    sales = app.stream("sold", Sale, key="shop")
    keep = {"minute": 3 * HOUR, "hour": 100 * HOUR}
    rollup = app.rollup(
        "sales",
        reads=sales,
        key=["shop", "till"],
        by=["minute", "hour", "day"],
        aggregate={"n": windows.count()},
        keep=keep,
    )
    app.view("other", reads=sales, key="shop")(lambda sales: sales)
    given: dict[str, Any] = {
        "table": rollup,
        "row": Row,
        "key": ["till", "shop"],
        "per": "hour",
        "within": 5 * HOUR,
        "emits": Both,
        **options,
    }
    return app, app.enrich("known", reads=sales, **given)(function)


def row(hour: float, n: int, shop: str = "a", till: int = 0, per: str = "hour") -> Row:
    return Row(per=per, start=hours(hour), shop=shop, till=till, n=n)


def went(hour: float, shop: str = "a", till: int = 0, per: str = "hour") -> Event:
    return gone(Row, per=per, start=hours(hour), shop=shop, till=till)


def sale(hour: float, number: int = 0, **key: Any) -> Sale:
    return Sale(at=hours(hour), number=number, **key)


def apart(items: list[Any]) -> dict[str, list[Any]]:
    """Return a list for the rollup's rows and one for sales, in which the other's items become time."""
    return {
        "sales": [STEP if isinstance(item, Sale) else item for item in items],
        "sold": [item if isinstance(item, Sale) or item == CRASH else STEP for item in items],
    }


def texts(app: App, items: list[Any], **options: Any) -> list[str]:
    return [event.text for event in run(app, apart(items), **options).emitted("known")]


TABLE: dict[str, tuple[list[Any], list[str]]] = {
    "what began in the range, in order of time": ([row(7, 7), row(6, 6), sale(8)], ["0: 6=6 7=7"]),
    "the end belongs to it, and the beginning does not": (
        [row(3, 3), row(4, 4), row(8, 8), row(9, 9), sale(8)],
        ["0: 4=4 8=8"],
    ),
    "the row of the event's own hour": ([row(8, 1), sale(8.5)], ["0: 8=1"]),
    "a row as it is when the event comes": ([row(8, 1), sale(8, 1), row(8, 2), sale(8, 2)], ["1: 8=1", "2: 8=2"]),
    "none": ([sale(8)], ["0: "]),
    "a row that is gone": ([row(7, 7), row(8, 8), went(7), sale(8)], ["0: 8=8"]),
    "a row that is gone and comes again": ([row(8, 8), went(8), row(8, 9), sale(8)], ["0: 8=9"]),
    "another unit": ([row(8, 8), row(8, 1, per="minute"), went(8, per="minute"), sale(8)], ["0: 8=8"]),
    "another key": ([row(8, 8), row(8, 1, till=1), row(8, 2, shop="b"), went(8, shop="b"), sale(8)], ["0: 8=8"]),
    "a late event": ([row(2, 2), row(8, 8), sale(8, 1), sale(3, 2)], ["1: 8=8", "2: 2=2"]),
}  # fmt: skip


@pytest.mark.parametrize(("items", "expected"), TABLE.values(), ids=TABLE)
@pytest.mark.parametrize("crashes", [False, True], ids=["whole", "restarted"])
def test_an_event_is_joined_with(items: list[Any], expected: list[str], crashes: bool) -> None:
    app, _ = records()
    assert check(app) == []
    given = [step for item in items for step in ((item, CRASH) if crashes else (item,))]
    assert texts(app, given, batch_events=1 if crashes else 1_000) == expected


KEYS = st.tuples(st.sampled_from("ab"), st.integers(0, 1))
ITEMS = st.lists(st.tuples(st.sampled_from(["row", "row", "gone", "sale"]), st.integers(0, 12), KEYS), max_size=50)


@SETTINGS
@given(ITEMS, st.sampled_from(["left", "inner"]), st.sampled_from([1, 3, 1_000]), st.integers(1, 3))
def test_it_is_what_a_list_of_all_changes_so_far_says(
    drawn: list[tuple[str, int, tuple[str, int]]], how: Any, batch: int, shards: int
) -> None:
    items: list[Any] = []
    expected: list[str] = []
    rows: dict[Any, int] = {}
    for number, (kind, hour, (shop, till)) in enumerate(drawn):
        if kind == "row":
            rows[shop, till, hour] = number
            items.append(row(hour, number, shop, till))
        elif kind == "gone":
            rows.pop((shop, till, hour), None)
            items.append(went(hour, shop, till))
        else:
            mine = [(at, n) for (*key, at), n in sorted(rows.items()) if key == [shop, till] and hour - 5 < at <= hour]
            items.append(sale(hour, number, shop=shop, till=till))
            if mine or how == "left":
                expected.append(f"{number}: {' '.join(f'{at}={n}' for at, n in mine)}")
    app, known = records(how=how)
    result = run(app, apart(items), batch_events=batch, shards=shards)
    assert sorted(event.text for event in result.emitted("known")) == sorted(expected)
    assert result.failed(known) == []
    assert set(result.states(known)) == {f'["{till}","{shop}"]' for shop, till, _ in rows}


SALES = [sale(0, 1), sale(0.5, 2), CRASH, sale(1, 3), sale(1, 4, shop="b"), STEP, sale(2, 5), sale(3, 6), sale(7, 7)]


@pytest.mark.parametrize(("batch", "shards"), [(1, 1), (3, 2), (1_000, 1), (1_000, 3)])
def test_a_rollup_without_a_list_is_computed_and_each_event_sees_the_rows_of_those_before_it(
    batch: int, shards: int
) -> None:
    app, known = records()
    result = run(app, {"sold": SALES}, batch_events=batch, shards=shards)
    expected = ["1: ", "2: 0=1", "3: 0=2", "4: ", "5: 0=2 1=1", "6: 0=2 1=1 2=1", "7: 3=1"]
    assert sorted(event.text for event in result.emitted(known)) == expected
    assert result.digest(known) == run(app, {"sold": SALES}).digest(known)
    assert [event.text for event in run(app, {"sold": SALES, "sales": []}).emitted(known)][-1] == "7: "


def test_a_row_that_a_rollup_without_a_list_has_deleted_is_not_joined() -> None:
    """The keep of hours is 100 hours: a page of them ends, and then a later event comes with an old time."""
    app, known = records()
    result = run(app, {"sold": [sale(0, 1), tick(400 * HOUR), tick(HOUR), sale(0, 2)]})
    assert [event.text for event in result.emitted(known)] == ["1: ", "2: "]


def test_the_newest_rows_are_kept_and_an_event_that_needs_others_is_missed() -> None:
    app, _ = records(bounds=joins.Bounds(versions=6))
    items = [*(row(hour, hour) for hour in range(10)), sale(9, 1), sale(8, 2), sale(7, 3)]
    result = run(app, apart(items))
    assert [event.text for event in result.emitted("known")] == ["1: 5=5 6=6 7=7 8=8 9=9", "2: 4=4 5=5 6=6 7=7 8=8"]
    (missed,) = result.emitted("known.missed")
    assert (missed.reason, missed.key, missed.by_s, missed.at) == ("forgotten", '["0","a"]', 3600.0, hours(7))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no unit": ({"per": None}, "sales is a rollup: set per, the unit of the rows, to 'minute' or 'hour' or 'day'"),
    "another unit": ({"per": "year"}, "to 'minute' or 'hour' or 'day'; per is 'year'"),
    "no range": ({"within": None}, "sales is a rollup: set within, how far back to look, to a timedelta above zero"),
    "a negative range": ({"within": -HOUR}, "to a timedelta above zero; within is"),
    "no time": ({"within": 5}, "to a timedelta above zero; within is 5"),
    "longer than it is kept": ({"within": 101 * HOUR}, "but sales keeps hours only for 4 days, 4:00:00: increase"),
    "too many rows": ({"bounds": joins.Bounds(versions=4)}, "there can be 6 rows within 5:00:00, but bounds"),
    "half of the key": ({"key": "shop"}, "the rollup sales has the key shop, till; the lookup must use the whole key"),
    "no class": ({"row": None}, "with per, start, till, shop and all other columns of the view sales that the"),
    "a class without the range": ({"row": Bare}, "Bare must have the field `per: str`, which is used to look up rows"),
    "a class with another type": ({"row": Odd}, "Odd must have the field `per: str`, which is used to look up rows"),
    "keep": ({"keep": HOUR}, "keep applies only if the table is a stream; a rollup has a keep of its own"),
    "how": ({"how": "full"}, "how is 'full'; use 'left' or 'inner'"),
    "a stream": ({"table": "sold", "key": "shop"}, "per and within apply only to a rollup, and sold is not a rollup"),
    "another view": ({"table": "other", "key": "shop"}, "per and within apply only to a rollup, and other is not"),
    "a function of one": ({"function": lambda sale: None}, "its function must take two arguments"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_a_bad_lookup_in_a_rollup_is_refused_with_what_to_write(options: dict[str, Any], message: str) -> None:
    problems = [problem for problem in check(records(**options)[0]) if "handler known" in problem.message]
    assert any(message in problem.message for problem in problems), problems
    assert {Path(problem.where.file).name for problem in problems} == {"test_ranged.py"}


def test_a_lookup_without_a_class_for_the_rows_has_no_other_problem() -> None:
    """The rollup is declared, and app.enrich is what reads it."""
    options, message = BAD["no class"]
    [problem] = [problem for problem in check(records(**options)[0]) if "handler known" in problem.message]
    assert message in problem.message


def test_rows_of_another_unit_are_not_taken_for_its_own_and_another_range_is_free() -> None:
    state = records()[1].state
    assert misfit(shape_of(state), records(per="day")[1].state) is not None
    assert misfit(shape_of(state), records(within=HOUR)[1].state) is None
