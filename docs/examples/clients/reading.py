import asyncio
import sys

from penstock.client import Client, Events, Reset, ServerError


async def main(url: str, key: str | None = None) -> None:
    async with Client(url, key=key) as client:
        sales = await client.rows("sales", where="pieces > 1", order="pieces DESC", limit=10)
        for row in sales.rows:
            print(row["product"], row["pieces"])

        async for page in client.events("orders", since="earliest", limit=1000):
            print(len(page.events), "orders up to", page.cursor)

        try:
            await client.rows("sale")
        except ServerError as error:
            print(error.code, error.detail)

        async with client.follow(stream="orders", since="earliest", where="product = 'tea'") as messages:
            async for message in messages:
                match message:
                    case Events(events=events):
                        print("tea was ordered", len(events), "times")
                        return
                    case Reset(reason=reason):
                        print("orders were missed:", reason)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
