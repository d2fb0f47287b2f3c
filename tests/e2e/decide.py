"""Payments with decisions: results that a request may wait for."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Context, Event, State

LIMIT = 100


class Payment(Event, id="payment"):
    payment: str
    card: str
    amount: int


class Decision(Event, id="payment"):
    payment: str
    card: str
    approved: bool


class Alarm(Event):
    card: str
    refused: int


class Tip(Event):
    """An event without an id: only the request that brings it can be identified."""

    card: str
    cents: int


class Thanks(Event):
    card: str
    cents: int


class Card(State):
    spent: int = 0


class Refusals(State):
    count: int = 0


class Tips(State):
    cents: int = 0


app = App("decide")
payments = app.stream("payments", Payment, key="card")
tips = app.stream("tips", Tip, key="card")


@app.handler("decisions", reads=payments, key="card", state=Card, emits=Decision)
def decisions(card: Card, payment: Payment, ctx: Context) -> Iterator[Decision]:
    if payment.amount < 0:
        raise ValueError("a payment of less than nothing")
    approved = card.spent + payment.amount <= LIMIT
    if approved:
        card.spent += payment.amount
    yield Decision(payment=payment.payment, card=payment.card, approved=approved)


@app.handler("alarms", reads=decisions, key="card", state=Refusals, emits=Alarm)
def alarms(refusals: Refusals, decision: Decision, ctx: Context) -> Iterator[Alarm]:
    if not decision.approved:
        refusals.count += 1
        yield Alarm(card=decision.card, refused=refusals.count)


@app.handler("thanks", reads=tips, key="card", state=Tips, emits=Thanks)
def thanks(tips: Tips, tip: Tip, ctx: Context) -> Iterator[Thanks]:
    tips.cents += tip.cents
    yield Thanks(card=tip.card, cents=tips.cents)


@app.view("offered", reads=payments, key="card")
def offered(payments: DataFrame) -> DataFrame:
    return payments.groupBy("card").agg(F.sum("amount").alias("amount"))


@app.view("sizes", reads=payments, key="size")
def sizes(payments: DataFrame) -> DataFrame:
    return payments.groupBy(F.length("payment").alias("size")).count()
