"""The two servers for the fan-out benchmark, each in its own process: `python -m bench.broadcast gateway|bare FOLDER`.

The gateway serves a view that another process writes. The bare server uses the same HTTP server and protocol, but only
sends the same bytes to the same number of connections. Each prints its port and serves until its standard input is
closed. A line with two numbers on standard input asks the bare server for that many changes per second for that many
seconds.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import uvicorn
import uvloop

from bench.changes import app, city, row
from penstock.core.cursor import view_cursor
from penstock.core.settings import from_environment
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.gateway import SWITCH_INTERVAL_S, Gateway, server_config

BACKLOG = 1024


async def gateway(listener: socket.socket, folder: Path) -> None:
    directory = DataDirectory(folder)
    directory.make()
    gateway = Gateway(app, EmbeddedStorage(directory), from_environment())
    serving = asyncio.create_task(gateway.run(listener))
    while await asyncio.to_thread(sys.stdin.readline):
        print("done", flush=True)
    gateway.stop()
    await serving


class Bare:
    """Sends each change in a loop to the connections that asked for its city. This is the least that a broadcast has to
    do."""

    def __init__(self) -> None:
        self._senders: dict[str, list[Any]] = defaultdict(list)
        self._count = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            asked, make = (await receive())["text"], _message
        else:
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            asked, make = scope["path"] + unquote(scope["query_string"].decode()), _event
        chosen = self._senders[asked.split("'")[1]]
        chosen.append((send, make))
        while "disconnect" not in (await receive())["type"]:
            pass
        chosen.remove((send, make))

    async def broadcast(self, per_second: float, seconds: float) -> float:
        """Broadcast for `seconds` seconds at the given rate, or as fast as possible if that is slower. Return the
        number of changes per second."""
        began, first = time.monotonic(), self._count
        while time.monotonic() - began < seconds:
            await asyncio.sleep(max(0.0, began + (self._count - first) / per_second - time.monotonic()))
            self._count += 1
            cursor, data = view_cursor(1 << 60, self._count), {"upserts": [row(self._count)], "deletes": []}
            encoded = msgspec.json.encode(data)
            hearers = tuple(self._senders[city(self._count)])
            frames = {make: make(cursor, encoded) for _, make in hearers}
            for send, make in hearers:
                await send(frames[make])
        return (self._count - first) / (time.monotonic() - began)


def _message(cursor: str, data: bytes) -> dict[str, Any]:
    text = f'{{"id":"1","event":"change","cursor":"{cursor}","data":{data.decode()}}}'
    return {"type": "websocket.send", "text": text}


def _event(cursor: str, data: bytes) -> dict[str, Any]:
    body = b"event: change\nid: %b\ndata: %b\n\n" % (cursor.encode(), data)
    return {"type": "http.response.body", "body": body, "more_body": True}


async def bare(listener: socket.socket) -> None:
    broadcaster = Bare()
    server = uvicorn.Server(server_config(broadcaster, from_environment()))
    serving = asyncio.create_task(server._serve([listener]))
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(await broadcaster.broadcast(*map(float, line.split())), flush=True)
    server.should_exit = True
    await serving


async def main(kind: str, folder: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    print(listener.getsockname()[1], flush=True)
    await (gateway(listener, folder) if kind == "gateway" else bare(listener))


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(main(sys.argv[1], Path(sys.argv[2])))
