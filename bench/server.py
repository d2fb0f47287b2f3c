"""The two servers for the ingest benchmark, each in its own process: `python -m bench.server echo|gateway FOLDER`.

Each prints its port and serves until standard input is closed. Both use the same uvicorn with the same settings.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from bench.readings import app
from penstock.core.settings import Settings
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.gateway import SWITCH_INTERVAL_S, Gateway, server_config

Message = MutableMapping[str, Any]


async def echo(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Read a body and send it back, which is the least that a server has to do."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve(kind: str, folder: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    if kind == "gateway":
        directory = DataDirectory(folder)
        directory.make()
        gateway = Gateway(app, EmbeddedStorage(directory), Settings())
        serving = asyncio.create_task(gateway.run(listener))
        await ended
        gateway.stop()
        await serving
    else:
        server = uvicorn.Server(server_config(echo, Settings()))
        serving_echo = asyncio.create_task(server._serve([listener]))
        await ended
        server.should_exit = True
        await serving_echo


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2])))
