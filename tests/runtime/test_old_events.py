"""Events of an earlier version of their class, as the gateway's readers get them: always as the new class."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock import App, Event
from penstock.client import Client, Events
from penstock.core.schema import Event as AnyEvent
from tests.client.suite import TRANSPORTS
from tests.collect.support import in_loop
from tests.harness import wait_for
from tests.runtime.guarded import Running, running
from tests.runtime.hooked import QUICK, Receiver, asking, receiver, registered

__all__ = ["receiver"]
DEADLINE_S = 60


class First(Event, id="oid"):
    oid: str
    text: str
    cents: int
    note: str | None = None


class Order(Event, id="oid", version=2, renamed={"text": "body"}, dropped=["note"]):
    oid: str
    body: str
    amount: Decimal
    currency: str = "EUR"

    @staticmethod
    def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
        cents = fields.pop("cents")
        return {**fields, "amount": Decimal(cents) / 100}


OLD = [{"oid": f"o{n}", "text": f"t{n}", "cents": n * 10, "note": "x"} for n in range(4)]
READ = [Order(oid=f"o{n}", body=f"t{n}", amount=Decimal(n) / 10) for n in range(4)]
DEAR = [order for order in READ if order.amount > Decimal("0.1")]


def orders(event: type[AnyEvent]) -> App:
    app = App("orders")
    stream = app.stream("a", event, key="oid", partitions=1)
    if event is Order:
        app.feed("dear", of=stream, where="amount > 0.1")
    return app


def stored(root: Path) -> None:
    """Have the gateway of the first version store events."""
    with running(root, settings=QUICK, app=orders(First)) as gateway:
        assert gateway.post("a", events=OLD).json()["accepted"] == len(OLD)


async def followed(client: Client, transport: Any, **wish: Any) -> list[Order]:
    async with client.follow(**wish, of=Order, since="earliest", transport=transport) as messages:
        while not isinstance(message := await anext(messages), Events):
            pass
        return list(message.events)


async def of_client(gateway: Running, **wish: Any) -> list[list[Order]]:
    """Return the events that a typed client gets of a stream or feed, by each transport."""
    async with asyncio.timeout(DEADLINE_S), Client(f"http://127.0.0.1:{gateway.port}") as client:
        return [await followed(client, transport, **wish) for transport in TRANSPORTS]


@in_loop
async def test_a_typed_client_has_old_events_as_the_new_class_on_every_transport(tmp_path: Path) -> None:
    await asyncio.to_thread(stored, tmp_path)
    with running(tmp_path, settings=QUICK, app=orders(Order)) as gateway:
        assert "sse" in TRANSPORTS
        assert await of_client(gateway, stream="a") == [READ] * len(TRANSPORTS)
        assert await of_client(gateway, stream="dear") == [DEAR] * len(TRANSPORTS)


def test_a_webhook_and_one_of_a_feed_send_old_events_as_the_new_class(tmp_path: Path, receiver: Receiver) -> None:
    stored(tmp_path)
    with running(tmp_path, settings=QUICK, app=orders(Order)) as gateway, asking(gateway) as ask:
        for name, expected in (("a", READ), ("dear", DEAR)):
            receiver.bodies.clear()
            registered(ask, receiver, stream=name, since="earliest")
            wait_for(lambda: len(receiver.events()) >= len(expected), what="the messages")  # noqa: B023
            events = sorted(receiver.events(), key=lambda event: str(event["oid"]))
            assert events == [
                {"oid": order.oid, "body": order.body, "amount": str(order.amount), "currency": "EUR"}
                for order in expected
            ]
