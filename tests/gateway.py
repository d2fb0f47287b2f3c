"""The gateway as a separate process, without the engine: `python -m tests.gateway FOLDER DESCRIPTOR`.

As under its supervisor, it inherits its listening socket, which outlives it. Its settings are those of the
environment.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from penstock.app.app import App
from penstock.core.schema import Event
from penstock.core.settings import from_environment
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.gateway import Gateway
from penstock.store import ViewSpec
from tests.collect.support import Fix
from tests.harness import ROOT


class Note(Event):
    name: str


VIEW = ViewSpec("latest", ("name",), None, None, None, changes_kept=10_000, changes_bytes=2**30)


class RunningGateway:
    """A gateway with two streams: `notes`, whose events have no id, and `fixes`, whose events do; and a view, `latest`,
    that has the rows written to its file."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._process: subprocess.Popen[bytes] | None = None
        self.streams = DataDirectory(folder).streams
        self.view_file = DataDirectory(folder).view_file(VIEW.name)
        self.port: int = self._listener.getsockname()[1]

    def start(self) -> None:
        """Start it. Connections wait until it has started."""
        descriptor = self._listener.fileno()
        command = [sys.executable, "-m", "tests.gateway", str(self._folder), str(descriptor)]
        self._process = subprocess.Popen(command, cwd=ROOT, env=os.environ | self._environ, pass_fds=[descriptor])

    def kill(self) -> None:
        """Kill it with kill -9; it must have run until then."""
        assert self._process is not None
        assert self._process.poll() is None, "the gateway ended by itself"
        with self._process as process:
            process.kill()
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        self._listener.close()


@contextmanager
def running_gateway(folder: Path, **environ: str) -> Iterator[RunningGateway]:
    """Run a gateway while in the block, and delete its files afterwards."""
    gateway = RunningGateway(folder, environ)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.close()


async def serve(folder: str, descriptor: str) -> None:
    app = App("gateway")
    app.stream("notes", Note)
    app.stream("fixes", Fix, key="vehicle")
    app.sql(VIEW.name, "SELECT name, count(*) AS n FROM notes GROUP BY name", key=VIEW.key)
    directory = DataDirectory(Path(folder))
    directory.make()
    await Gateway(app, EmbeddedStorage(directory), from_environment()).run(socket.socket(fileno=int(descriptor)))


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
