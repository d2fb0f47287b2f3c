"""A receiver of webhooks on loopback, with the faults that a test chooses."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.core.signing import ID, verify
from tests.network import close

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True)
class Received:
    """One request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers[ID]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> Any:
        return self.json["data"]


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {code} X", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


Behaviour = Callable[["Receiver", Received, asyncio.StreamWriter], Awaitable[bytes | None]]


async def good(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
    return OK


@dataclass
class Receiver:
    """Records every request. `behave` returns the answer to a message, or None if it has answered itself. A challenge
    is answered while `willing`. `taken` are the messages that were answered with 200, each id once."""

    behave: Behaviour = good
    willing: bool = True
    secrets: list[str] = field(default_factory=list)
    port: int = 0
    connections: int = 0
    open: int = 0
    most_open: int = 0
    requests: list[Received] = field(default_factory=list)
    challenges: list[Received] = field(default_factory=list)
    taken: dict[str, Received] = field(default_factory=dict)
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    def events(self) -> list[Any]:
        return [event for message in self.taken.values() for event in message.data.get("events", ())]

    def kinds(self) -> list[str]:
        return [message.json["type"] for message in self.taken.values()]

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                received = await _read(reader)
                answer = await self._answer(received, writer)
                if answer is not None:
                    writer.write(answer)
                    await writer.drain()
        finally:
            self.open -= 1
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _answer(self, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        if self.secrets:
            verify(self.secrets, received.headers, received.body)
        if received.json["type"] == "webhook.challenge":
            self.challenges.append(received)
            said = received.data["challenge"] if self.willing else "no"
            return status(200, body=json.dumps({"challenge": said}).encode())
        self.requests.append(received)
        answer = await self.behave(self, received, writer)
        if answer is not None and answer.startswith(b"HTTP/1.1 200"):
            self.taken.setdefault(received.id, received)
        return answer


async def _read(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (header.partition(":") for header in rest if header)}
    return Received(line, headers, await reader.readexactly(int(headers["content-length"])))


@asynccontextmanager
async def receiving(
    behave: Behaviour = good, *, willing: bool = True, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    receiver = Receiver(behave, willing, scheme="http" if tls is None else "https")
    server = await asyncio.start_server(receiver.accept, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        await close(server)
