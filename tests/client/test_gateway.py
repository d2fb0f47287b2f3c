"""The client and a whole gateway, as a process: filters on every transport, and keys that are revoked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.client import Client, Events, Producer, ServerError, Snapshot, Timing
from penstock.core.access import KeyFile
from penstock.runtime.embedded.directory import DataDirectory
from tests.client.shop import running_shop
from tests.client.suite import TRANSPORTS
from tests.client.test_examples import ORDERS
from tests.client.test_following import to_the_end
from tests.clocks import until
from tests.collect.support import in_loop

QUICK = Timing(base_s=0.01, cap_s=0.2)


@in_loop
async def test_a_filter_is_the_same_on_every_transport(tmp_path: Path) -> None:
    with running_shop(tmp_path) as shop:
        shop.sell(tea=4, milk=2, salt=1)
        async with asyncio.timeout(60), Client(shop.url) as client:
            await client.publish("orders", ORDERS)
            for transport in TRANSPORTS:
                wish = {"since": "earliest", "where": "product = 'tea'", "select": "order_id AS id"}
                async with client.follow(stream="orders", transport=transport, **wish) as messages:
                    while not isinstance(message := await anext(messages), Events):
                        pass
                    assert sorted(event["id"] for event in message.events) == ["o0", "o2"]
                    assert all(event.keys() == {"id"} for event in message.events)
                async with client.follow(
                    view="sales", where="pieces > 1", select="pieces", transport=transport
                ) as rows:
                    first = await anext(rows)
                    assert isinstance(first, Snapshot)
                    assert sorted(row["product"] for row in first.rows) == ["milk", "tea"]
                with pytest.raises(ServerError) as raised:
                    await anext(client.follow(stream="orders", where="price > 1", transport=transport))
                assert (raised.value.code, raised.value.fields["part"]) == ("bad_expression", "where")
                assert raised.value.fields["position"] == 0


@in_loop
async def test_a_key_that_is_revoked_ends_what_it_opened_and_is_told(tmp_path: Path) -> None:
    keys = KeyFile(DataDirectory(tmp_path / "shop").keys)
    with running_shop(tmp_path / "shop") as shop:
        _, key = keys.add("reader", ["consume:orders", "produce:orders"])
        async with asyncio.timeout(60), Client(shop.url, key=key, timing=QUICK) as client:
            await client.publish("orders", ORDERS)
            followed = [
                client.follow(stream="orders", since="earliest", transport=transport) for transport in TRANSPORTS
            ]
            for messages in followed:
                await anext(messages)
            with pytest.raises(ServerError) as raised:
                await anext(client.follow(view="sales"))
            assert raised.value.code == "forbidden"
            async with Producer(client, "orders", tmp_path / "outbox.db") as producer:
                await producer.send(ORDERS[0])
                await producer.flush()
                keys.revoke("reader")
                for messages in followed:
                    with pytest.raises(ServerError) as raised:
                        await to_the_end(messages)
                    assert raised.value.code == "unauthorized"
                await producer.send(ORDERS[1])
                with pytest.raises(ServerError) as raised:
                    await producer.flush()
                assert raised.value.code == "unauthorized"
                assert producer.pending == 1
        _, key = keys.add("another", ["produce:orders"])
        async with asyncio.timeout(60), Client(shop.url, key=key, timing=QUICK) as client:
            async with Producer(client, "orders", tmp_path / "outbox.db") as producer:
                await until(lambda: not producer.pending)  # as soon as the gateway knows the new key


@in_loop
async def test_a_query_is_answered_and_kept_live(tmp_path: Path) -> None:
    text = "SELECT product, pieces FROM sales WHERE pieces > 1 ORDER BY product"
    with running_shop(tmp_path) as shop:
        shop.sell(tea=4, milk=2, salt=1)
        async with asyncio.timeout(100), Client(shop.url) as client:
            answer = await client.query(text)
            assert answer.rows == [{"product": "milk", "pieces": 2}, {"product": "tea", "pieces": 4}]
            assert [column.name for column in answer.columns] == ["product", "pieces"]
            assert answer.cursors.keys() == {"sales"}
            with pytest.raises(ServerError) as raised:
                await client.query("SELECT nothing FROM sales")
            assert raised.value.status == 400
            for number, transport in enumerate(TRANSPORTS[:2]):
                async with client.follow(query=text, transport=transport) as results:
                    assert isinstance(await anext(results), Snapshot)
                    await asyncio.to_thread(shop.sell, salt=7 + number)
                    async for result in results:
                        if isinstance(result, Snapshot):
                            assert result.rows[1] == {"product": "salt", "pieces": 7 + number}
                            break
