"""The gateway of `anything.py` in a separate process, started as the supervisor starts one."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from penstock.core.clock import WallClock
from penstock.runtime.child import VARIABLE, ChildCall
from penstock.runtime.embedded.directory import DataDirectory, take
from penstock.store import ViewSpec, ViewTable
from tests.fuzz import anything
from tests.harness import ROOT, wait_for
from tests.network import unlikely_port

HEALTH = "/v1/health"
MIB = 1024 * 1024


@dataclass
class RunningGateway:
    """One process. It must stay the same to the end: nobody restarts it."""

    process: subprocess.Popen[bytes]
    directory: DataDirectory
    port: int
    udp: int
    statsd: int
    graphite: int
    client: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=30)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.directory.logs / "gateway.log").read_text(errors="replace")

    @property
    def peak_mib(self) -> float:
        """The peak of resident memory since `forget_peak`, or since the start."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) / 1024  # type: ignore[index]

    def forget_peak(self) -> float:
        """Reset the peak to the memory that is resident now, and return that."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.peak_mib

    def descriptors(self, kind: str = "") -> int:
        """Return the number of open descriptors with such a name, for example `socket:`."""
        count = 0
        for path in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                count += str(path.readlink()).startswith(kind)
        return count

    def require_sound(self) -> None:
        """Check that the process still runs, and never had an unexpected error."""
        assert self.process.poll() is None, f"the gateway ended with {self.process.returncode}: {self.log[-2000:]}"
        assert "Traceback" not in self.log, self.log[:4000]

    def connect(self, timeout_s: float = 20.0) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout_s)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def post(self, stream: str, content: bytes, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in headers.items()}
        return self.client.post(f"/v1/streams/{stream}", content=content, headers=named)

    def read(self, stream: str, since: str = "earliest") -> tuple[list[dict[str, Any]], str]:
        """Return all events of a stream from a cursor on, and the next cursor."""
        events: list[dict[str, Any]] = []
        while True:
            page = self.client.get(f"/v1/streams/{stream}", params={"since": since, "limit": 10_000}).json()
            events += page["events"]
            if page["cursor"] == since:
                return events, since
            since = page["cursor"]

    @staticmethod
    def raw(event: dict[str, Any], field: str = "raw") -> bytes:
        """Return the bytes of a dead letter, or of another event that has some."""
        return base64.b64decode(event[field])

    def figures(self, stream: str) -> dict[str, Any]:
        described = self.client.get("/v1/app").json()
        return dict(next(entry for entry in described["streams"] if entry["name"] == stream))


def _describe_views(directory: DataDirectory) -> None:
    """Do what the engine does when it has built a query: without it, the columns are unknown and cannot be filtered."""
    for view in anything.app.views:
        spec = ViewSpec(view.name, view.key, view.keep, view.top, view.by, changes_kept=100, changes_bytes=2**20)
        table = ViewTable(directory.view_file(view.name), spec, clock=WallClock())
        table.describe(pa.schema([("buyer", pa.string()), ("pieces", pa.int64())]))
        table.close()


@contextlib.contextmanager
def gateway(root: Path, **environ: str) -> Iterator[RunningGateway]:
    """Run a gateway while in the block. It must shut down cleanly."""
    directory = DataDirectory(root)
    ownership = take(directory, "anything")
    _describe_views(directory)
    alive_read, alive_write = os.pipe()
    ports = [unlikely_port(socket.SOCK_DGRAM) for _ in range(3)]
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        call = ChildCall(
            str(Path(anything.__file__)),
            str(root),
            ownership.epoch,
            alive_read,
            ownership.inherit,
            listener.fileno(),
        )
        with open(directory.logs / "gateway.log", "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock.runtime.gateway"],
                env=os.environ | {VARIABLE: call.to_environment(), "FUZZ_PORTS": ",".join(map(str, ports))} | environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(alive_read, *ownership.inherit, listener.fileno()),
                cwd=ROOT,
            )
        port = listener.getsockname()[1]
    running = RunningGateway(process, directory, port, *ports)
    try:
        _await(running)
        yield running
        process.terminate()
        assert process.wait(30) == 0, running.log[-2000:]
        assert "Traceback" not in running.log, running.log[:4000]
    finally:
        running.client.close()
        process.kill()
        process.wait(10)
        for descriptor in (alive_read, alive_write, *ownership.inherit):
            os.close(descriptor)


def _await(running: RunningGateway) -> None:
    """Wait until it answers, and its sources listen. It is never ready: there is no engine."""

    def is_up() -> bool:
        assert running.process.poll() is None, running.log
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.get(f"{running.url}/v1/app", timeout=5)
            if answer.status_code in (401, 403):
                return True
            return all(source["state"] == "connected" for source in answer.json()["sources"])
        return False

    wait_for(is_up, 60, "the gateway to be up")
