import asyncio
import sys

import msgspec

from penstock.client import Client


class Sale(msgspec.Struct):
    product: str
    orders: int
    pieces: int


async def main(url: str, until: str) -> None:
    """Print the sales whenever they change, until `until` pieces have been sold."""
    async with Client(url) as client, client.table("sales", of=Sale) as sales:
        while sum(sale.pieces for sale in sales.rows) < int(until):
            await anext(sales)
            print(sorted((sale.pieces, sale.product) for sale in sales.rows))
        tea = sales.get("tea")
        print("pieces of tea:", tea.pieces if tea else 0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
