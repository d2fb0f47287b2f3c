"""The gateway of `anything.py` in a process of its own, started as the supervisor starts one."""

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

from penstock.runtime.child import VARIABLE, Call
from penstock.runtime.clock import WallClock
from penstock.runtime.directory import DataDirectory, take
from penstock.store import ViewSpec, ViewTable
from tests.fuzz import anything
from tests.harness import ROOT, wait_for
from tests.network import unlikely_port

HEALTH = "/v1/health"
MIB = 1024 * 1024


@dataclass
class RunningGateway:
    """One process. It is the same one until the end: nobody restarts it."""

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
        """The most memory that was resident since `forget_peak`, or since the start."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) / 1024  # type: ignore[index]

    def forget_peak(self) -> float:
        """Set the peak to what is resident now, and return that."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.peak_mib

    def descriptors(self, kind: str = "") -> int:
        """How many are open, of those that are named so: `socket:`, say."""
        found = 0
        for each in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found += str(each.readlink()).startswith(kind)
        return found

    def require_sound(self) -> None:
        """It is still there, and was never surprised."""
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
        """All events of a stream from a cursor on, and the next cursor."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.client.get(f"/v1/streams/{stream}", params={"since": since, "limit": 10_000}).json()
            found += page["events"]
            if page["cursor"] == since:
                return found, since
            since = page["cursor"]

    @staticmethod
    def raw(event: dict[str, Any], field: str = "raw") -> bytes:
        """The bytes of a dead letter, or of another event that has some."""
        return base64.b64decode(event[field])

    def figures(self, stream: str) -> dict[str, Any]:
        described = self.client.get("/v1/app").json()
        return dict(next(each for each in described["streams"] if each["name"] == stream))


def _describe_views(directory: DataDirectory) -> None:
    """What the engine does when it has built a query: without it, the columns are not known, and cannot be filtered."""
    for view in anything.app.views:
        spec = ViewSpec(view.name, view.key, view.keep, view.top, view.by, changes_kept=100, changes_bytes=2**20)
        table = ViewTable(directory.view_file(view.name), spec, clock=WallClock())
        table.describe(pa.schema([("buyer", pa.string()), ("pieces", pa.int64())]))
        table.close()


@contextlib.contextmanager
def gateway(root: Path, **environ: str) -> Iterator[RunningGateway]:
    """A gateway that is up, for the length of a block. It must end in good order."""
    directory = DataDirectory(root)
    ownership = take(directory, "anything")
    _describe_views(directory)
    alive_read, alive_write = os.pipe()
    ports = [unlikely_port(socket.SOCK_DGRAM) for _ in range(3)]
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        call = Call(
            str(Path(anything.__file__)),
            str(root),
            ownership.epoch,
            alive_read,
            ownership.descriptor,
            listener.fileno(),
        )
        with open(directory.logs / "gateway.log", "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock.runtime.gateway"],
                env=os.environ | {VARIABLE: call.to_environment(), "FUZZ_PORTS": ",".join(map(str, ports))} | environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(alive_read, ownership.descriptor, listener.fileno()),
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
        for each in (alive_read, alive_write, ownership.descriptor):
            os.close(each)


def _await(running: RunningGateway) -> None:
    """Until it answers, and its sources listen. It is never ready: there is no engine."""

    def is_up() -> bool:
        assert running.process.poll() is None, running.log
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.get(f"{running.url}/v1/app", timeout=5)
            if answer.status_code in (401, 403):
                return True
            return all(each["state"] == "connected" for each in answer.json()["sources"])
        return False

    wait_for(is_up, 60, "the gateway to be up")
