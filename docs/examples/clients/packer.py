import asyncio
import sys
from datetime import datetime

import httpx

from penstock import Event
from penstock.client import Client, Consumer, Events, GaveUp, Intent, Progress, Reset, Stall, Tx


class Order(Event, id="order_id", time="at"):
    order_id: str
    at: datetime
    product: str
    pieces: int


async def handle(message: Events[Order] | Reset | Progress | Stall, tx: Tx) -> None:
    """Count the items to pack, and have each order shipped."""
    if isinstance(message, Reset):
        raise RuntimeError("orders were missed: somebody must look")
    tx.execute("CREATE TABLE IF NOT EXISTS packed (product TEXT PRIMARY KEY, pieces INTEGER)")
    for order in message.events if isinstance(message, Events) else ():
        tx.execute(
            "INSERT INTO packed VALUES (?, ?) ON CONFLICT DO UPDATE SET pieces = pieces + excluded.pieces",
            (order.product, order.pieces),
        )
        tx.intend("ship", {"order": order.order_id, "pieces": order.pieces})


async def main(url: str, file: str, carrier: str) -> None:
    async with httpx.AsyncClient() as http:

        async def ship(intent: Intent) -> None:
            """Order the shipment. The carrier accepts each key once, so this may be called again."""
            answer = await http.post(carrier, json=intent.payload, headers={"Idempotency-Key": intent.id})
            if answer.status_code == 422:
                raise GaveUp(answer.text)
            answer.raise_for_status()  # for any other error, the effect is retried later

        async with Client(url) as client:
            orders = client.follow(stream="orders", of=Order, since="earliest")
            async with Consumer(orders, file, handle, effects={"ship": ship}) as consumer:
                await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
