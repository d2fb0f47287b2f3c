"""The royalties: due and paid amounts of the handler; and the whole demo, with its payer killed meanwhile."""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.client import Client
from examples.paying.books import cents, differences, earned, money, reconciliation, settled
from examples.paying.sales import Message, sell
from examples.royalties import PAID_AFTER, Attempt, Balance, Payment, Sale, app, royalties
from penstock.app.check import check
from penstock.testing import CRASH, LATE, TICK, Result, run, tick
from tests.examples.stage import demo

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
PAYDAY = tick(PAID_AFTER)


def sale(number: int, cents: int = 1_000) -> Sale:
    return Sale(sale_id=str(number), author="dorn", book="Tide", cents=cents)


def attempt(phase: Any, number: int = 1, payment: str = "dorn/1") -> Attempt:
    return Attempt(
        attempt_id=f"{payment}/{number}/{phase}", payment_id=payment, author="dorn", number=number, phase=phase
    )


def played(sold: list[Any], tried: list[Any] | None = None) -> Result:
    """Run sales, then the payer's reports about due payments: all of them come after the sales."""
    return run(app, {"sales": sold, "attempts": [tick(timedelta(minutes=1)), *(tried or [])]})


def due(result: Result) -> list[tuple[str, int]]:
    return [(payment.payment_id, payment.cents) for payment in result.emitted(f"royalties.{Payment.__name__}")]


def last(result: Result) -> tuple[int, int, int, int, int]:
    balance = result.emitted(f"royalties.{Balance.__name__}")[-1]
    return balance.earned, balance.waiting, balance.due, balance.sending, balance.paid


def test_the_app_is_sound() -> None:
    assert check(app) == []


def test_what_is_sold_within_some_seconds_is_one_payment() -> None:
    result = played([sale(1), sale(2, cents=555), PAYDAY, sale(3), PAYDAY])
    assert due(result) == [("dorn/1", 120 + 66), ("dorn/2", 120)]
    assert last(result) == (306, 0, 306, 0, 0)


def test_nothing_is_due_before_its_time() -> None:
    before = run(app, {"sales": [sale(1), TICK], "attempts": [TICK]})
    assert due(before) == []
    assert last(before) == (120, 120, 0, 0, 0)


def test_a_crash_makes_no_second_payment_and_loses_none() -> None:
    calm = played([sale(1), sale(2), PAYDAY, sale(3), PAYDAY], [attempt("sending"), attempt("paid")])
    rough = played(
        [sale(1), CRASH, sale(2), CRASH, PAYDAY, CRASH, sale(3), LATE, PAYDAY, CRASH],
        [attempt("sending"), CRASH, attempt("paid"), CRASH],
    )
    assert due(rough) == due(calm) == [("dorn/1", 240), ("dorn/2", 120)]
    assert last(rough) == last(calm) == (360, 0, 120, 0, 240)


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ([], (120, 0, 120, 0, 0)),
        (["sending"], (120, 0, 0, 120, 0)),
        (["sending", "not paid"], (120, 0, 120, 0, 0)),
        (["sending", "paid"], (120, 0, 0, 0, 120)),
    ],
)
def test_a_payment_is_due_then_sending_then_paid_or_due_again(phases: list[str], expected: tuple[int, ...]) -> None:
    assert last(played([sale(1), PAYDAY], [attempt(phase) for phase in phases])) == expected


@pytest.mark.parametrize("phases", [["paid"], ["sending", "sending"], ["sending", "paid", "paid"], ["not paid"]])
def test_a_payer_that_says_what_cannot_be_changes_nothing(phases: list[str]) -> None:
    tried = [attempt(phase, number) for number, phase in enumerate(phases)]
    result = played([sale(1), PAYDAY], tried)
    assert [failure.error for failure in result.failed(royalties)] == [
        f"ValueError: payment dorn/1 cannot be {phases[-1]!r} now"
    ]
    assert last(result) == last(played([sale(1), PAYDAY], tried[:-1]))


def messages(seed: int, start: datetime = NOON) -> list[Message]:
    return list(itertools.islice(sell(seed, start, 20.0), 1_000))


def test_the_same_seed_gives_the_same_sales_and_later_ones_have_other_ids() -> None:
    assert messages(3) == messages(3) != messages(4)
    later = {message.sale["sale_id"] for message in messages(3, NOON + timedelta(hours=1))}
    assert later.isdisjoint(message.sale["sale_id"] for message in messages(3))


AUTHORS = [{"author": "dorn", "earned": "1.20", "paid": "1.20"}, {"author": "hale", "earned": "0.05", "paid": "0.05"}]
TRANSFERS = [{"to": "dorn", "cents": 120, "memo": "dorn/1"}, {"to": "hale", "cents": 5, "memo": "hale/1"}]


@pytest.mark.parametrize(
    ("transfers", "expected"),
    [
        (TRANSFERS, []),
        (TRANSFERS[:1], ["hale earned 0.05, but was paid 0.00"]),
        ([*TRANSFERS, TRANSFERS[1]], ["hale earned 0.05, but was paid 0.10", "payment hale/1 was made 2 times"]),
        ([*TRANSFERS, {"to": "x", "cents": 7, "memo": "x/1"}], ["x earned nothing, but was paid 0.07"]),
    ],
)
def test_books_that_differ_are_told_apart(transfers: list[dict[str, Any]], expected: list[str]) -> None:
    assert differences(AUTHORS, transfers) == expected
    assert reconciliation(AUTHORS, transfers).endswith(expected[-1] if expected else "no payment was made twice")


def test_books_are_settled_when_all_sales_are_counted_and_paid() -> None:
    sold = [{"author": "dorn", "cents": 1_000}, {"author": "hale", "cents": 49}]
    assert earned(sold) == {"dorn": 120, "hale": 5}
    assert settled(AUTHORS, sold)
    assert not settled(AUTHORS, [*sold, sold[0]])
    assert not settled([{"author": "dorn", "earned": "1.20", "paid": "0.00"}, AUTHORS[1]], sold)
    assert (money(123_405), cents("1234.05")) == ("1234.05", 123_405)


@pytest.mark.soak
@pytest.mark.spark
def test_the_demo_pays_every_author_what_was_earned_and_nothing_twice(tmp_path: Path) -> None:
    """The service fails and the payer is killed each second; the result is checked in both books, and in the log."""
    with demo("royalties", tmp_path, "--sales", "120", "--rate", "40", "--kill-every", "1.5") as (process, address):
        assert process.stdout is not None
        said = list(itertools.takewhile(lambda line: "Ctrl-C ends" not in line, process.stdout))
        agreed = "every author was paid exactly what they earned, and no payment was made twice\n"
        assert said[-1] == agreed, "".join(said)
        client = Client(address, threading.Event())
        rows = client.view("authors")
        assert {row["author"]: cents(row["paid"]) for row in rows} == earned(client.read("sales")[0])
        assert {(row["outstanding"], row["due"], row["sending"]) for row in rows} == {("0.00", "0.00", "0.00")}
        assert client.read("royalties.failed")[0] == []
        paid = [attempt["payment_id"] for attempt in client.read("attempts")[0] if attempt["phase"] == "paid"]
        assert sorted(paid) == sorted(payment["payment_id"] for payment in client.read("royalties.Payment")[0])
    assert process.returncode == 0
