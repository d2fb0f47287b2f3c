"""Rollups of keys with several fields, and of the events for which `where` is true."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import App, windows
from penstock.app.check import check
from penstock.app.fingerprints.declared import handler_print
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind, handler_verdict
from penstock.app.loading import load
from penstock.core.shapes import shape_of
from penstock.handlers.evolution import misfit
from penstock.testing import run
from tests.rollups.shop import AGGREGATES, Sale, logged, moment
from tests.rollups.test_random import KEEP, Came, bucket, comings, in_batch

UNITS = [*KEEP, "month", "year"]
WHERE = "amount >= 2"


class Sold(Sale, time="at"):
    till: int = 0


def sold(sale: Sale) -> Sold:
    """Return the same sale, at one of two tills."""
    return Sold(at=sale.at, shop=sale.shop, amount=sale.amount, till=sale.at.second % 2)


def tills(**options: Any) -> tuple[App, Any]:
    app = App("shop")
    stream = app.stream("sold", Sold, key="shop")
    given: dict[str, Any] = {"key": ["shop", "till"], "by": UNITS, "aggregate": AGGREGATES, **options}
    keep = {unit: KEEP.get(unit, timedelta(days=3_000)) for unit in given["by"] if unit != "year"}
    return app, app.rollup("sales", reads=stream, keep=keep, **given)


@settings(max_examples=60, deadline=None)
@given(
    came=comings(),
    after=st.sampled_from([timedelta(0), timedelta(minutes=3), timedelta(hours=5), timedelta(90)]),
    batch=st.sampled_from([1, 3, 1_000]),
    shards=st.integers(1, 2),
)
def test_rows_are_those_of_a_batch_over_the_events_taken_of_each_pair(
    came: list[Came], after: timedelta, batch: int, shards: int
) -> None:
    until = came[-1].at + after
    app, rollup = tills(where=WHERE)
    events = [Came(arrival.at, sold(arrival.sale)) for arrival in came]
    items = logged([*((event.at, event.sale) for event in events), (until, None)])
    result = run(app, {"sold": items}, batch_events=batch, shards=shards)
    pairs: dict[tuple[str, int], list[Came]] = defaultdict(list)
    for event in events:
        if event.sale.amount is not None and event.sale.amount >= 2:
            assert isinstance(event.sale, Sold)
            pairs[event.sale.shop, event.sale.till].append(event)
    expected = {
        (unit, start, shop, till): figures
        for (shop, till), mine in pairs.items()
        for (unit, start, _), figures in in_batch(mine, UNITS, until).items()
    }
    rows = {(row.per, row.start, row.shop, row.till): (row.orders, row.total) for row in result.rows("sales")}
    assert rows == expected
    assert result.emitted("sales.missed") == []
    assert result.failed(rollup) == []


def test_a_row_has_a_column_for_each_field_and_is_identified_by_all_of_them() -> None:
    app, rollup = tills()
    assert check(app) == []
    assert rollup.view.key == ("per", "start", "shop", "till")
    assert rollup.row.__struct_fields__ == ("per", "start", "end", "shop", "till", "orders", "total")


def test_what_is_missed_is_told_with_its_whole_key() -> None:
    app, _ = tills(by=["second"])
    sales = [
        (moment("10:00:00"), sold(Sale(at=moment(clock), shop="a", amount=1.0))) for clock in ("10:00:00", "03:00:00")
    ]
    (missed,) = run(app, {"sold": logged(sales)}).emitted("sales.missed")
    assert (missed.key, missed.reason, missed.at) == ('["a","0"]', "late", moment("03:00:00"))


def test_an_event_that_is_not_taken_moves_no_time_of_its_key_and_leaves_no_state() -> None:
    """A key's time is determined by the event that was the least behind: here that would be the ignored one."""
    old, new = moment("03:00:00"), moment("10:00:00")
    given = [(old, 5.0), (new, 1.0), (old, 6.0)]
    items = logged([(new, sold(Sale(at=at, shop="a", amount=amount))) for at, amount in given])
    app, rollup = tills(by=["second"], where=WHERE)
    result = run(app, {"sold": items})
    assert result.emitted("sales.missed") == []
    assert [(row.start, row.orders) for row in result.rows("sales")] == [(bucket("second", old), 2)]
    assert len(run(tills(by=["second"])[0], {"sold": items}).emitted("sales.missed")) == 1
    only = logged([(new, sold(Sale(at=new, shop="b", amount=1.0)))])
    assert run(app, {"sold": only}).states(rollup) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": ["shop", "till", "shop"]}, "the key is shop, till, shop, which contains a field twice"),
        ({"key": ["shop", "desk"]}, "the key 'desk' is not a field of Sold"),
        ({"key": ["shop", 5]}, "the key is ('shop', 5); use the name of one or more fields of Sold"),
        ({"where": "desk = 1"}, "where='desk = 1' for sold: there is no column 'desk'"),
        (
            {"aggregate": {"till": windows.count()}},
            "an aggregate has the name 'till', which is already used by another column",
        ),
    ],
)
def test_a_bad_key_or_condition_is_refused(options: dict[str, Any], message: str) -> None:
    app, _ = tills(**options)
    problems = check(app)
    assert any(problem.message.startswith(f"handler sales: {message}") for problem in problems), problems
    assert {Path(problem.where.file).name for problem in problems} == {"test_keys.py"}


def test_rollups_of_one_field_keep_the_state_that_they_had_before_there_could_be_several() -> None:
    """The mark is stored with the state: with another mark the state would be refused."""
    (rollup,) = load(str(Path(__file__).parents[2] / "docs/examples/sales.py")).app.view_handlers
    assert shape_of(rollup.state).fields["declared"] == "'2845ffe4'"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({"key": "shop"}, {}, "its key was shop and is now (shop, till), but its state is stored by the old key"),
        ({}, {"where": WHERE}, "its where for sold was not given and is now amount >= 2"),
        ({"where": WHERE}, {"where": "amount > 2"}, "its where for sold was amount >= 2 and is now amount > 2"),
    ],
)
def test_another_key_or_condition_is_refused_by_what_is_stored(
    old: dict[str, Any], new: dict[str, Any], reason: str
) -> None:
    before, after = tills(**old)[1], tills(**new)[1]
    verdict = handler_verdict(
        handler_print(before), handler_print(after), Verdict(VerdictKind.unchanged, "handler", "sales")
    )
    assert verdict.kind is VerdictKind.incompatible
    assert verdict.reasons[0].startswith(reason)
    assert misfit(shape_of(before.state), after.state) is not None


def test_the_same_declaration_is_unchanged() -> None:
    one, other = (handler_print(tills(where=WHERE)[1]) for _ in range(2))
    assert handler_verdict(one, other, Verdict(VerdictKind.unchanged, "handler", "sales")).kind is VerdictKind.unchanged
