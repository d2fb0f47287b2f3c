import asyncio
import sys
from datetime import UTC, datetime
from uuid import uuid4

from penstock import Event
from penstock.client import Client, Producer


class Order(Event, id="order_id", time="at"):
    order_id: str
    at: datetime
    product: str
    pieces: int


async def main(url: str, outbox: str) -> None:
    async with Client(url) as client, Producer(client, "orders", outbox) as producer:
        for product in ("tea", "milk", "tea"):
            order = Order(order_id=uuid4().hex, at=datetime.now(UTC), product=product, pieces=2)
            await producer.send(order)  # from here on, the order is safe
        await producer.flush()
        for rejection in await producer.rejected():
            print(rejection.events, rejection.errors)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
