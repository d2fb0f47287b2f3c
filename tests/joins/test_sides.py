"""An event belongs to the side whose stream it came by, even if its class does not distinguish the two."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from penstock import App, Event
from penstock.app.check import check
from penstock.testing import CRASH, run, tick
from tests.joins.ads import Both, S, second, texts


class Seen(Event, time="at"):
    at: datetime
    key: str = "k"


class Bought(Seen, time="at"):
    price: int = 0


CLASSES = [(Seen, Bought), (Bought, Seen), (Seen, Seen)]


def both(one: Any, other: Any) -> Both:
    return Both(text=" ".join("-" if side is None else f"{side.at.second}" for side in (one, other)))


def ran(app: App, given: dict[str, list[Any]], *, crashes: bool) -> list[str]:
    """Return the results, run as a whole or with a crash after each item."""
    assert check(app) == []
    if crashes:
        given = {name: [step for item in items for step in (item, CRASH)] for name, items in given.items()}
    result = run(app, given, batch_events=1 if crashes else 1_000)
    assert result.emitted("both.missed") == []
    assert result.failed("both") == []
    return texts(result)


@pytest.mark.parametrize("crashes", [False, True], ids=["whole", "restarted"])
@pytest.mark.parametrize(("left", "right"), CLASSES)
def test_events_of_classes_that_inherit_are_joined_as_left_and_right(
    left: type[Any], right: type[Any], crashes: bool
) -> None:
    app = App("sides")
    app.stream("lefts", left, key="key", late_after=S)
    app.stream("rights", right, key="key", late_after=S)
    app.join("both", left="lefts", right="rights", key="key", within=10 * S, how="full", emits=Both)(both)
    given = {
        "lefts": [left(at=second(1)), left(at=second(30))],
        "rights": [right(at=second(2)), right(at=second(50)), tick(60 * S)],
    }
    assert ran(app, given, crashes=crashes) == ["1 2", "30 -", "- 50"]


@pytest.mark.parametrize("crashes", [False, True], ids=["whole", "restarted"])
@pytest.mark.parametrize(("event", "row"), CLASSES)
def test_an_event_whose_class_inherits_from_that_of_the_table_is_no_row(
    event: type[Any], row: type[Any], crashes: bool
) -> None:
    app = App("sides")
    app.stream("events", event, key="key", late_after=S)
    app.stream("table", row, key="key", late_after=S)
    app.enrich("both", reads="events", table="table", key="key", emits=Both)(both)
    given = {
        "events": [event(at=second(5)), event(at=second(25))],
        "table": [row(at=second(1)), row(at=second(20)), tick(60 * S)],
    }
    assert ran(app, given, crashes=crashes) == ["5 1", "25 20"]


class Card(Event):
    key: str


class Payment(Card):
    amount: int


class Limit(Payment):
    limit: int


@pytest.mark.parametrize("crashes", [False, True], ids=["whole", "restarted"])
@pytest.mark.parametrize(("event", "row"), [(Payment, Limit), (Payment, Card)])
def test_an_event_whose_class_inherits_from_that_of_a_views_rows_is_none(
    event: type[Any], row: type[Any], crashes: bool
) -> None:
    app = App("sides")
    app.stream("events", event, key="key")
    app.sql("view", "SELECT key, 1 AS amount, count(*) AS limit FROM events GROUP BY key", key="key")

    @app.enrich("both", reads="events", table="view", row=row, key="key", emits=Both)
    def both(event: Any, row: Any) -> Both:
        return Both(text=f"{event.amount} {'-' if row is None else type(row).__name__}")

    rows = [tick(S), {"key": "k", "amount": 1, "limit": 2}]
    given = {"events": [event(key="k", amount=7), tick(5 * S), event(key="k", amount=8)], "view": rows}
    assert ran(app, given, crashes=crashes) == ["7 -", f"8 {row.__name__}"]
