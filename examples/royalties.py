"""Royalties: pays authors what they have earned, exactly once, through an unreliable payment service.

A handler must not do I/O, so it cannot pay anyone itself. It only emits the payments that are due. A separate program,
`examples/paying/payer.py`, makes the payments and reports the results. When run as a script, this file generates its
own sales, runs a payment service that fails in all the usual ways, and kills the payer every few seconds:

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
    """A report from the payer: `sending` before it sends a payment, then `paid` or `not paid` once the outcome is
    certain."""

    attempt_id: str
    payment_id: str
    author: str
    number: int
    phase: Literal["sending", "paid", "not paid"]


class Payment(Event):
    """An order to make a payment. Each payment is ordered only once."""

    payment_id: str
    author: str
    cents: int


class Balance(Event):
    """An author's account after its nth change. The earnings are either waiting for payday, due, being sent, or
    paid."""

    author: str
    number: int
    earned: int
    waiting: int
    due: int
    sending: int
    paid: int


class Account(State):
    """An author's account in cents. `due` and `sending` contain the amount of each payment."""

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
    """Keep an author's account. A sale is paid a few seconds later, together with the sales that follow it."""
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
    """Emit a payment for everything earned since the last payment. Payment names are never reused."""
    account.payments += 1
    payment = Payment(payment_id=f"{ctx.key}/{account.payments}", author=ctx.key, cents=account.waiting)
    account.due[payment.payment_id] = account.waiting
    account.waiting = 0
    yield payment
    yield _balance(account, ctx.key)


def _follow(account: Account, attempt: Attempt) -> None:
    """Move a payment from due to sending, and from there to paid or back to due. Any other transition is a bug in the
    payer: the event goes to `royalties.failed`, and the account stays as it is."""
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
