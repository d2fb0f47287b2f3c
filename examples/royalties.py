"""Sales in, royalties out: each author is paid what was earned, once, by a payment service that cannot be trusted.

A handler does no input or output, so it pays nobody. It says what is due, and `examples/paying/payer.py`, a program
beside the app, pays it and says what came of it. Run as a script, it plays invented sales into itself, with a payment
service that fails in every way that such services do, and kills the payer every few seconds:

    python examples/royalties.py --sales 400 --rate 20 --seed 1
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal

from penstock import App, Context, Event, State

ROYALTY_PERCENT = 12
PAID_AFTER = timedelta(seconds=3)


class Sale(Event, id="sale_id"):
    sale_id: str
    author: str
    book: str
    cents: int


class Attempt(Event, id="attempt_id"):
    """What the payer says: `sending` before it sends a payment, then `paid` or `not paid` when it is sure of that."""

    attempt_id: str
    payment_id: str
    author: str
    number: int
    phase: Literal["sending", "paid", "not paid"]


class Payment(Event):
    """An order to pay. There is one for each payment, ever."""

    payment_id: str
    author: str
    cents: int


class Balance(Event):
    """An author's account after its nth change. What is earned is waiting for payday, due, being sent, or paid."""

    author: str
    number: int
    earned: int
    waiting: int
    due: int
    sending: int
    paid: int


class Account(State):
    """An author's account in cents; `due` and `sending` by payment."""

    changes: int = 0
    earned: int = 0
    waiting: int = 0
    paid: int = 0
    payments: int = 0
    due: dict[str, int] = {}  # noqa: RUF012  # msgspec gives each instance its own
    sending: dict[str, int] = {}  # noqa: RUF012


app = App("royalties")
sales = app.stream("sales", Sale, key="author")
attempts = app.stream("attempts", Attempt, key="author")


@app.handler("royalties", reads=[sales, attempts], key="author", state=Account, emits=[Payment, Balance])
def royalties(account: Account, event: Sale | Attempt, ctx: Context) -> Iterator[Balance]:
    """Keep an author's account. A sale is paid some seconds later, together with those that follow it."""
    if isinstance(event, Sale):
        if not account.waiting:
            ctx.timer("payday", ctx.now + PAID_AFTER)
        royalty = event.cents * ROYALTY_PERCENT // 100
        account.earned += royalty
        account.waiting += royalty
    else:
        _follow(account, event)
    yield _balance(account, ctx.key)


@royalties.timer("payday")
def payday(account: Account, ctx: Context) -> Iterator[Payment | Balance]:
    """What has been earned since the last payment is due. The name of a payment is never used again."""
    account.payments += 1
    payment = Payment(payment_id=f"{ctx.key}/{account.payments}", author=ctx.key, cents=account.waiting)
    account.due[payment.payment_id] = account.waiting
    account.waiting = 0
    yield payment
    yield _balance(account, ctx.key)


def _follow(account: Account, attempt: Attempt) -> None:
    """Move a payment: from due to sending, and from there to paid or back. Any other way is an error of the payer,
    which goes to `royalties.failed` and changes nothing."""
    start, end = (account.due, account.sending) if attempt.phase == "sending" else (account.sending, account.due)
    if attempt.payment_id not in start:
        raise ValueError(f"payment {attempt.payment_id} cannot be {attempt.phase!r} now")
    cents = start.pop(attempt.payment_id)
    if attempt.phase == "paid":
        account.paid += cents
    else:
        end[attempt.payment_id] = cents


def _balance(account: Account, author: str) -> Balance:
    account.changes += 1
    return Balance(
        author=author,
        number=account.changes,
        earned=account.earned,
        waiting=account.waiting,
        due=sum(account.due.values()),
        sending=sum(account.sending.values()),
        paid=account.paid,
    )


authors = app.sql(
    "authors",
    """
    SELECT author,
           CAST(max(earned) / 100 AS DECIMAL(12, 2)) AS earned,
           CAST(max(paid) / 100 AS DECIMAL(12, 2)) AS paid,
           CAST(max_by(earned - paid, number) / 100 AS DECIMAL(12, 2)) AS outstanding,
           CAST(max_by(due, number) / 100 AS DECIMAL(12, 2)) AS due,
           CAST(max_by(sending, number) / 100 AS DECIMAL(12, 2)) AS sending
    FROM `royalties.Balance`
    GROUP BY author
    """,
    key="author",
)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from examples.paying.demo import main

    sys.exit(main(__file__))
