"""Minimal clients of each transport, to see a delivery as it is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.serve.webhooks.receiver import OK, Receiver, receiving
from tests.serve.webhooks.receiver import Received as Message

SILENCE_S = 0.1
SILENCE = "silence"


@dataclass(frozen=True)
class Received:
    """One delivery as a client sees it."""

    kind: str
    cursor: str
    data: Any


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Yield lines as server-sent events define them: httpx would also break them at other characters of Unicode."""
    rest = b""
    async for piece in response.aiter_bytes():
        *whole, rest = (rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            yield line.decode()


async def read_events(response: httpx.Response) -> AsyncIterator[Received]:
    """Parse server-sent events, by the rules of the HTML standard that matter here."""
    fields: dict[str, str] = {}
    cursor = ""
    async for line in _lines(response):
        name, _, value = line.partition(":")
        if line:
            fields[name] = value.removeprefix(" ")
            continue
        cursor = fields.get("id", cursor)
        if "data" in fields:
            yield Received(fields.get("event", "message"), cursor, json.loads(fields["data"]))
        fields = {}


def _together(changes: list[Any]) -> Any:
    """Merge changes of a view with the key `k`: they have one cursor, so a client takes all of them or none."""
    rows: dict[str, Any] = {}
    for change in changes:
        rows |= {row["k"]: ("upserts", row) for row in change["upserts"]}
        rows |= {key["k"]: ("deletes", key) for key in change["deletes"]}
    return {kind: [row for row_kind, row in rows.values() if row_kind == kind] for kind in ("upserts", "deletes")}


@asynccontextmanager
async def polls(port: int, kind: str, since: str | None, **filter: str) -> AsyncIterator[AsyncIterator[Received]]:
    """Poll, returning each answer as a delivery."""

    async def deliveries(client: httpx.AsyncClient) -> AsyncIterator[Received]:
        cursor = since
        while True:
            given: dict[str, Any] = {"limit": 7, "since": cursor, "wait": 1} if cursor else {"limit": 1000}
            answer = (await client.get(f"/v1/{kind}s/x", params=given | filter)).raise_for_status().json()
            cursor = answer["cursor"]
            if answer.get("reset"):
                yield Received("reset", answer["cursor"], {})
            if "rows" in answer:
                yield Received("snapshot", answer["cursor"], answer)
            elif "events" in answer:
                yield Received("change" if answer["events"] else "progress", answer["cursor"], answer)
            elif answer["changes"]:
                yield Received("change", answer["cursor"], _together(answer["changes"]))
            else:
                yield Received("progress", answer["cursor"], {})

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=False) as client:
        yield deliveries(client)


@asynccontextmanager
async def events(port: int, kind: str, since: str | None, **filter: str) -> AsyncIterator[AsyncIterator[Received]]:
    """Follow server-sent events, resumed as a browser would."""
    headers = {"Last-Event-ID": since} if since else {}
    url = f"http://127.0.0.1:{port}/v1/{kind}s/x/live"
    async with httpx.AsyncClient(timeout=30, verify=False) as client:
        async with client.stream("GET", url, headers=headers, params=filter) as response:
            response.raise_for_status()
            yield read_events(response)


@asynccontextmanager
async def socket(port: int, kind: str, since: str | None, **filter: str) -> AsyncIterator[AsyncIterator[Received]]:
    """Follow with one subscription on a WebSocket."""

    async def deliveries(connection: ClientConnection) -> AsyncIterator[Received]:
        async for raw in connection:
            message = json.loads(raw)
            assert message["id"] == "1"
            if message["event"] != "subscribed":
                yield Received(message["event"], message["cursor"], message["data"])

    async with open_socket(port) as connection:
        await say(connection, op="subscribe", id="1", **{kind: "x"}, since=since, **filter)
        yield deliveries(connection)


@asynccontextmanager
async def open_socket(port: int, **options: Any) -> AsyncIterator[ClientConnection]:
    """Open a connection that always reads its messages, so that it can be closed at any time."""
    url = f"ws://127.0.0.1:{port}/v1/live"
    async with connect(url, compression=None, proxy=None, max_queue=None, **options) as connection:
        yield connection


async def closing_code(connection: ClientConnection) -> int:
    """Read until the server closes; returns the close code."""
    with suppress(ConnectionClosed):
        while True:
            await connection.recv()
    return connection.close_code or 0


async def say(connection: ClientConnection, **message: Any) -> None:
    await connection.send(json.dumps({name: value for name, value in message.items() if value is not None}))


async def hear(connection: ClientConnection) -> dict[str, Any]:
    """Return the next message that is not a progress mark."""
    while True:
        message: dict[str, Any] = json.loads(await connection.recv())
        if message["event"] != "progress":
            return message


@asynccontextmanager
async def webhook(port: int, kind: str, since: str | None, **filter: str) -> AsyncIterator[AsyncIterator[Received]]:
    """Follow by a webhook of whole deliveries, one after the other, each message as a delivery. Silence is reported
    too."""
    arrived: asyncio.Queue[Received] = asyncio.Queue()

    async def take(receiver: Receiver, message: Message, writer: asyncio.StreamWriter) -> bytes | None:
        if message.id not in receiver.taken:
            content = message.json
            arrived.put_nowait(Received(content["type"].partition(".")[2], content["cursor"], content["data"]))
        return OK

    async def deliveries() -> AsyncIterator[Received]:
        cursor = since or ""
        while True:
            try:
                received = await asyncio.wait_for(arrived.get(), SILENCE_S)
            except TimeoutError:
                received = Received(SILENCE, cursor, {})
            cursor = received.cursor
            yield received

    async with receiving(take) as receiver, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        wanted = {"url": receiver.url, kind: "x", "since": since or "earliest", "batch": 1000} | filter
        id = (await client.post("/v1/webhooks", json=wanted)).raise_for_status().json()["id"]
        yield deliveries()
        (await client.delete(f"/v1/webhooks/{id}")).raise_for_status()


async def said(deliveries: AsyncIterator[Received]) -> Received:
    """Return the next delivery, however long it takes."""
    while (received := await anext(deliveries)).kind == SILENCE:
        pass
    return received


TRANSPORTS = {"poll": polls, "sse": events, "websocket": socket, "webhook": webhook}
