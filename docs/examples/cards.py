from datetime import datetime, timedelta

from penstock import App, Event, cep


class Payment(Event, id="payment_id", time="at"):
    payment_id: str
    at: datetime
    card: str
    amount: float
    country: str


class CardTest(Event):
    card: str
    probes: int
    amount: float


class Probed(Event):
    card: str
    at: datetime


probe = cep.on("probe", Payment, lambda payment, m: payment.amount < 1)
spend = cep.on("spend", Payment, lambda payment, m: payment.amount > 500 and payment.country != m["probe"].country)

app = App("cards")
payments = app.stream("payments", Payment, key="card", late_after=timedelta(minutes=1))


@app.match(
    "card-testing",
    reads=payments,
    key="card",
    pattern=probe.times(2).then(spend),
    within=timedelta(minutes=10),
    skip=cep.skip.past_last,
    emits=CardTest,
    timeouts=Probed,
)
def card_testing(m: cep.Match) -> CardTest:
    """Two small payments, then a large one in another country."""
    return CardTest(card=m.key, probes=len(m.all("probe")), amount=m["spend"].amount)


@card_testing.timeout
def probed(m: cep.Match) -> Probed | None:
    """Two small payments and nothing more."""
    return Probed(card=m.key, at=m["probe"].at) if len(m.all("probe")) == 2 else None
