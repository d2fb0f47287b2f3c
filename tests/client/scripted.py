"""A scripted server, and a clock that advances when a client waits."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Response

from penstock.client import Timing
from tests.network import Asked, close

PROBLEM = "application/problem+json"


@dataclass
class Answer:
    """An answer of the script. `hold`: the connection stays open after it, silent."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    hold: bool = False
    whole: bool = True


def page(**content: Any) -> Answer:
    return Answer(body=json.dumps(content).encode())


def problem(status: int, code: str, **headers: str) -> Answer:
    body = {"status": status, "code": code, "detail": f"it is {code}", "title": "", "type": "about:blank"}
    return Answer(
        status, json.dumps(body).encode(), PROBLEM, {name.replace("_", "-"): value for name, value in headers.items()}
    )


def stream(*events: tuple[str, str, Any], hold: bool = False) -> Answer:
    body = "".join(f"event: {kind}\nid: {cursor}\ndata: {json.dumps(data)}\n\n" for kind, cursor, data in events)
    return Answer(200, body.encode(), "text/event-stream", hold=hold, whole=False)


class Scripted:
    """Answers requests in the order of the script, then repeats the last answer. `asked` has the requests received."""

    def __init__(self, *script: Answer) -> None:
        self._script = list(script)
        self._tasks: list[asyncio.Task[None]] = []
        self.asked: list[Asked] = []
        self.port = 0
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.append(asyncio.create_task(self._serve(reader, writer)))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        finally:
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                answer = self._answer(head)
                writer.write(_raw(answer))
                await writer.drain()
                if answer.hold:
                    await reader.read()
                if not answer.whole:
                    writer.close()
                    await writer.wait_closed()
                    return

    def _answer(self, head: str) -> Answer:
        first, *lines = head.strip().split("\r\n")
        parts = urlsplit(first.split()[1])
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        self.asked.append(Asked(parts.path, dict(parse_qsl(parts.query)), headers))
        return self._script.pop(0) if len(self._script) > 1 else self._script[0]


def _raw(answer: Answer) -> bytes:
    headers = {"Content-Type": answer.kind, **answer.headers}
    headers |= {"Content-Length": str(len(answer.body))} if answer.whole else {"Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {answer.status} X\r\n{lines}\r\n".encode() + answer.body


@asynccontextmanager
async def scripted(*script: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Scripted]:
    gateway = Scripted(*script)
    gateway.scheme = "http" if tls is None else "https"
    server = await asyncio.start_server(gateway.accept, "127.0.0.1", 0, ssl=tls)
    gateway.port = server.sockets[0].getsockname()[1]
    try:
        yield gateway
    finally:
        await close(server)
        await gateway.close()


@asynccontextmanager
async def websocket(
    talk: Callable[[ServerConnection, int], Awaitable[None]], refuse: Callable[[int], Answer | None] = lambda _: None
) -> AsyncIterator[str]:
    """Run a WebSocket server: `talk` is called with each connection and its number, `refuse` with the handshake's."""
    count = [0, 0]

    async def handler(connection: ServerConnection) -> None:
        count[0] += 1
        await talk(connection, count[0])

    def process(_: ServerConnection, __: object) -> Response | None:
        count[1] += 1
        answer = refuse(count[1])
        if answer is None:
            return None
        return Response(answer.status, "X", Headers({"Content-Type": answer.kind, **answer.headers}), answer.body)

    async with serve(handler, "127.0.0.1", 0, process_request=process) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


@dataclass
class Waits:
    """The waits of a client, which take no time."""

    seconds: list[float] = field(default_factory=list)

    def timing(self, **changed: Any) -> Timing:
        async def sleep(seconds: float) -> None:
            self.seconds.append(seconds)
            await asyncio.sleep(0)

        return replace(Timing(sleep=sleep, draw=lambda: 0.0), **changed)
