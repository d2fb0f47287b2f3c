"""The two servers of the ingest benchmark, each a process: `python -m bench.server echo|gateway FOLDER`.

Prints its port, serves until its standard input ends. Both are the same uvicorn with the same settings.
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
from penstock.runtime.directory import DataDirectory
from penstock.runtime.gateway import SWITCH_INTERVAL_S, Gateway, server_config
from penstock.settings import Settings

Message = MutableMapping[str, Any]


async def echo(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Reads a body and gives it back: the least that any server does."""
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
        gateway = Gateway(app, directory, Settings())
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
