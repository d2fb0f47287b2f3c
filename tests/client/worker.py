"""A program that produces or consumes, to be killed: `python -m tests.client.worker WHAT URL FOLDER TRANSPORT`.

It ends by itself, in good order, when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import uuid
from pathlib import Path
from typing import Any

from penstock.client import Client, Consumer, Events, Intent, Producer, Timing, Tx

QUICK = Timing(base_s=0.01, cap_s=0.2, wait_s=5)
TAKEN, SEEN, SERVICE = "taken.log", "consumer.db", "service.db"


async def produce(client: Client, folder: Path, transport: Any, end: asyncio.Event) -> None:
    """Send notes, each with a unique name, and record those that were accepted."""
    async with Producer(client, "notes", folder / "outbox.db", transport=transport) as producer:
        with open(folder / TAKEN, "ab", buffering=0) as taken:
            while not end.is_set():
                names = [uuid.uuid4().hex for _ in range(3)]
                await producer.send({"name": names[0]})
                await producer.send([{"name": name} for name in names[1:]])
                taken.write("".join(f"{name}\n" for name in names).encode())
                await asyncio.sleep(0.05)
        await producer.flush()


async def consume(client: Client, folder: Path, transport: Any, end: asyncio.Event) -> None:
    """Record each name once, and deliver it to a service that identifies a delivery by its id."""

    async def handle(message: object, tx: Tx) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS seen (name TEXT PRIMARY KEY)")
        assert isinstance(message, Events), message
        for event in message.events:
            tx.execute("INSERT INTO seen VALUES (?)", (event["name"],))
            tx.intend("deliver", event["name"])

    async def deliver(intent: Intent) -> None:
        with sqlite3.connect(folder / SERVICE) as service:
            service.execute("INSERT OR IGNORE INTO delivered VALUES (?, ?)", (intent.id, intent.payload))
            service.execute("INSERT INTO calls VALUES (?)", (intent.id,))
        service.close()

    notes = client.follow(stream="notes", since="earliest", transport=transport)
    async with Consumer(notes, folder / SEEN, handle, effects={"deliver": deliver}, intents_max=50) as consumer:
        running = asyncio.create_task(consumer.run())
        ending = asyncio.create_task(end.wait())
        await asyncio.wait([running, ending], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()


async def main(what: str, url: str, folder: str, transport: str) -> None:
    end = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), end.set)
    async with Client(url, timing=QUICK) as client:
        await {"produce": produce, "consume": consume}[what](client, Path(folder), transport, end)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
