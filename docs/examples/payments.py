"""Payments that are decided while the shop waits: `POST /v1/streams/payments?reply=decisions`."""

from collections.abc import Iterator

from penstock import App, Context, Event, State

LIMIT = 500


class Payment(Event, id="payment_id"):
    payment_id: str
    card: str
    amount: int


class Decision(Event, id="payment_id"):
    payment_id: str
    approved: bool
    left: int


class Card(State):
    spent: int = 0


app = App("payments")
payments = app.stream("payments", Payment, key="card")


@app.handler("decisions", reads=payments, key="card", state=Card, emits=Decision)
def decide(card: Card, payment: Payment, ctx: Context) -> Iterator[Decision]:
    approved = card.spent + payment.amount <= LIMIT
    if approved:
        card.spent += payment.amount
    yield Decision(payment_id=payment.payment_id, approved=approved, left=LIMIT - card.spent)
