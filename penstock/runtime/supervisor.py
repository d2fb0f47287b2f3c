"""The supervisor: owns the data directory and the listening socket, and starts and restarts the gateway and the engine.

The socket outlives the gateway: while a gateway is being replaced, clients wait in the socket's queue instead of being
refused. Each child leads a separate process group, so its own children (the JVM and Spark's Python workers) can be
killed with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from penstock.app.app import App
from penstock.control import (
    ControlChannel,
    Death,
    Editions,
    EngineStatus,
    HealthProblem,
    HealthStatus,
    ProcessStatus,
    Successor,
    SupervisorStatus,
)
from penstock.core.backoff import doubled_s
from penstock.core.errors import EXIT_IO, EXIT_JAVA, DeclarationError
from penstock.core.settings import Settings
from penstock.core.tasks import first_of
from penstock.runtime.child import VARIABLE, ChildCall
from penstock.runtime.storage import Ownership, Storage

LOOK_S = 1.0
"""Longest time between two checks of the children, their logs and the messages. A signal, the end of a child or a new
message ends the wait early; if one is missed, it is noticed after at most this time."""
LAST_WORDS_CHARS = 200
LAST_WORDS_BYTES = 2_000
FIRST_WAIT_S = 0.1
BACKLOG = 1024
LOG_BYTES_MAX = 10 * 1024 * 1024
IN_ORDER = (0, -signal.SIGTERM)
"""Exit statuses of a child that stopped when asked to. A child that has begun its work handles the signal, finishes and
exits with 0. A child that the signal killed had not begun its work."""
Say = Callable[[str], None]


@dataclass
class Process:
    """A child process and its history."""

    name: str
    module: str
    healthy_s: float
    popen: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    failures: int = 0
    started_at: float = 0.0
    start_at: float = 0.0
    last_death: Death | None = None

    def wait_before_restart(self, now: float, longest_s: float) -> float:
        """Return the wait before a restart, which doubles with each consecutive failure, starting at a tenth of a
        second. If a child has run for longer than `healthy_s`, earlier failures no longer count."""
        if now - self.started_at > self.healthy_s:
            self.failures = 0
        wait = doubled_s(FIRST_WAIT_S, longest_s, self.failures)
        self.failures += 1
        return wait

    def status(self) -> ProcessStatus:
        pid = self.popen.pid if self.popen is not None else None
        return ProcessStatus(pid=pid, restarts=self.restarts, last_death=self.last_death)


class News:
    """Prints messages for the person who runs the app: the startup progress, that the app is ready, and each problem
    when it appears, gets worse or is resolved. The supervisor itself reports when a process has died."""

    def __init__(self, channel: ControlChannel, address: str, say: Say) -> None:
        self.channel, self.address, self.say = channel, address, say
        self._began = time.monotonic()
        self._up = self._was_ready = False
        self._doing = ""
        self._problems: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """For each process, view, handler or source with problems, the causes and levels reported since it was last
        healthy."""

    def look(self) -> None:
        """Print new messages. Called after each message from another process, and about once a second."""
        now = time.monotonic()
        health = self.channel.latest(HealthStatus) or HealthStatus(state="starting")
        ready = health.state == "ready"
        up = ready or health.state == "degraded"
        if not up:
            self._say_doing()
        self._say_problems(health.problems)
        if up and not self._up:
            self._say_up(now - self._began, len(self._problems))
        elif ready and not self._was_ready:
            self.say(f"ready: {self.address}")
        if self._up and not up:
            self._began, self._doing = now, ""
        self._up, self._was_ready = up, ready

    def _say_doing(self) -> None:
        """Print what the engine is doing while it starts, which takes a few seconds."""
        engine = self.channel.latest(EngineStatus)
        doing = engine.doing if engine is not None else ""
        if doing and doing != self._doing:
            self.say(doing)
        self._doing = doing

    def _say_problems(self, health_problems: Iterable[HealthProblem]) -> None:
        problems = {(problem.kind, problem.name): problem for problem in health_problems}
        for subject, problem in problems.items():
            said = self._problems.setdefault(subject, set())
            if problem.kind != "process" and _is_news(problem.cause, problem.level, said):
                self.say(f"{problem.message}; see {self.address}/{problem.page}")
            said.add((problem.cause, problem.level))
        for kind, name in self._problems.keys() - problems.keys():
            del self._problems[kind, name]
            self.say(f"{'the' if kind == 'process' else kind} {name} has recovered".replace("  ", " "))

    def _say_up(self, took_s: float, problems: int) -> None:
        if problems:
            counted = "a problem" if problems == 1 else f"{problems} problems"
            self.say(f"running after {took_s:.0f} s, with {counted}: {self.address}")
        else:
            self.say(f"ready after {took_s:.0f} s: {self.address}")


def _is_news(cause: str, level: str, said: Collection[tuple[str, str]]) -> bool:
    """Return whether to print a problem. A problem is printed once for each cause, and again if it turns red."""
    if cause == "recovering":
        return not said
    return (cause, level) not in said and (cause, "red") not in said


def listen(host: str, port: int, *, guarded: bool = False) -> socket.socket:
    """Return the listening socket. Rejects any address other than loopback unless access requires keys, tokens or
    certificates."""
    if not guarded and not _listens_on_loopback(host):
        raise DeclarationError(
            f"{host} can be reached from other machines, but requests need no key yet; create a key first with "
            "`penstock keys add NAME admin`, or use 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise DeclarationError(f"cannot listen on {host}:{port}: {error.strerror}; use a different --port") from None
    listener.listen(BACKLOG)
    return listener


def _listens_on_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Supervisor:
    """Runs one app until SIGTERM or SIGINT. `say` prints one line to the terminal."""

    def __init__(
        self,
        app: App,
        target: str,
        storage: Storage,
        listener: socket.socket,
        settings: Settings,
        say: Say,
        *,
        access: Path | None = None,
        tls: bool = False,
    ) -> None:
        """`access` is the access file for the gateway; `tls` says whether the gateway has a certificate."""
        self.app = app
        self.target = target
        self.storage = storage
        self.channel = storage.control()
        self.listener = listener
        self.settings = settings
        self.say = say
        self.access = access
        self.scheme = "https" if tls else "http"
        self.stopping = False
        self.processes = [
            Process("gateway", "penstock.runtime.gateway", healthy_s=2.0),
            Process("engine", "penstock.runtime.engine", healthy_s=20.0),
        ]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signalled = asyncio.Event()
        self._alive_read, self._alive_write = os.pipe()
        self._published: SupervisorStatus | None = None

    def run(self) -> int:
        """Take ownership of the directory, run the app, and drain. Returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._request_stop())
        ownership = self.storage.own(self.app.name)
        self.say(f"{self.app.name} is starting at {self.address}, data in {self.storage.location}")
        for kind in (EngineStatus, HealthStatus, Successor):
            self.channel.withdraw(kind)
        asyncio.run(self._look_after(ownership))
        return self._stop()

    async def _look_after(self, ownership: Ownership) -> None:
        """Start, watch and restart the children until a stop is requested. Nothing else runs in this event loop, so the
        steps may block."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGCHLD, self._signalled.set)
        news = News(self.channel, self.address, self.say)
        seen: Editions = dict.fromkeys((EngineStatus, HealthStatus, Successor))
        while not self.stopping:
            self._step(ownership)
            self._publish()
            self._give_way()
            news.look()
            seen = await self._wait(seen)

    async def _wait(self, seen: Editions) -> Editions:
        """Wait for a message that is not in `seen`, a signal, or the time of a restart. Returns the editions of the
        current messages."""
        now = time.monotonic()
        due = [process.start_at - now for process in self.processes if process.popen is None]
        message = asyncio.create_task(self.channel.wait(seen, max(0.0, min([LOOK_S, *due]))))
        await first_of(message, asyncio.create_task(self._signalled.wait()))
        self._signalled.clear()
        return seen if message.cancelled() else message.result()

    @property
    def address(self) -> str:
        host, port = self.listener.getsockname()[:2]
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def _request_stop(self) -> None:
        """Request a stop. Called by a signal handler, possibly before the event loop runs or after it has ended."""
        self.stopping = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._signalled.set)

    def _step(self, ownership: Ownership) -> None:
        now = time.monotonic()
        for process in self.processes:
            if process.popen is None:
                if now >= process.start_at:
                    self._start(process, ownership)
                continue
            status = process.popen.poll()
            if status is not None:
                self._bury(process, status, now)
            turn_over(self._log(process))

    def _give_way(self) -> None:
        """If the app was asked to switch to a different file, stop both children cleanly and start them with that file.
        Clients reconnect to the same socket, and resume their streams from their cursors."""
        successor = self.channel.latest(Successor)
        if successor is None:
            return
        self.channel.withdraw(Successor)
        self.say(f"switching to {successor.target}: finishing the work in progress")
        self._drain()
        self.target = successor.target
        self.channel.withdraw(EngineStatus)
        self.channel.withdraw(HealthStatus)
        for process in self.processes:
            process.popen, process.start_at, process.failures = None, 0.0, 0

    def _bury(self, process: Process, status: int, now: float) -> None:
        """Handle the death of a child: kill its process group, and print when the child will be restarted."""
        assert process.popen is not None
        end_group(process.popen.pid)
        process.popen = None
        wait = process.wait_before_restart(now, self.settings.restart_backoff_max_s)
        process.start_at = now + wait
        process.restarts += 1
        process.last_death = Death(monotonic_s=now, how=_how_child_ended(status))
        reason = last_words(self._log(process), status)
        self.say(f"the {process.name} {process.last_death.how}; restarting it after {wait:.1f} s ({reason})")

    def _start(self, process: Process, ownership: Ownership) -> None:
        listener = self.listener.fileno() if process.name == "gateway" else None
        call = ChildCall(
            self.target,
            self.storage.location,
            ownership.epoch,
            self._alive_read,
            ownership.inherit,
            listener,
            None if self.access is None else str(self.access),
        )
        passed = [self._alive_read, *ownership.inherit, *([listener] if listener is not None else [])]
        with self._open_log(process) as output:
            process.popen = subprocess.Popen(
                [sys.executable, "-m", process.module],
                env=os.environ | {VARIABLE: call.to_environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=passed,
                start_new_session=True,
            )
        process.started_at = time.monotonic()

    def _log(self, process: Process) -> Path:
        return self.storage.local.logs / f"{process.name}.log"

    def _open_log(self, process: Process) -> IO[bytes]:
        """Open the log file that the child appends to."""
        path = self._log(process)
        turn_over(path)
        return open(path, "ab")

    def _publish(self) -> None:
        """Publish the supervisor's information about both processes, if it has changed."""
        gateway, engine = self.processes
        status = SupervisorStatus(gateway=gateway.status(), engine=engine.status())
        if status != self._published and self.channel.publish(status):
            self._published = status

    def _stop(self) -> int:
        self.say("stopping: finishing the work in progress")
        in_order = self._drain()
        self.say("stopped" if in_order else "stopped, but not cleanly: the next start repairs the data")
        return 0 if in_order else 1

    def _drain(self) -> bool:
        """Stop the children: ask them to stop, wait up to the time limit, then kill them. Returns True if all of them
        ended cleanly."""
        running = [process for process in self.processes if process.popen is not None]
        for process in running:
            assert process.popen is not None
            with contextlib.suppress(ProcessLookupError):
                process.popen.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.settings.drain_s
        statuses = []
        for process in running:
            assert process.popen is not None
            try:
                statuses.append(process.popen.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                self.say(f"the {process.name} did not finish within {self.settings.drain_s:.0f} s; ending it")
                statuses.append(-signal.SIGKILL)
            end_group(process.popen.pid)
            process.popen.wait()
        return all(status in IN_ORDER for status in statuses)


def turn_over(log: Path) -> None:
    """Limit a log to two files of bounded size: copy a log that is too long, and truncate it. The process that writes
    to the log has it open for appending, and continues at the beginning; anything that it writes between the two steps
    is lost. If there is no disk space for a copy, the log is truncated without one."""
    with contextlib.suppress(OSError):
        if log.stat().st_size <= LOG_BYTES_MAX:
            return
        try:
            shutil.copyfile(log, log.with_suffix(".old.log"))
        finally:
            os.truncate(log, 0)


def end_group(leader: int) -> None:
    """Kill the remaining processes of a child's process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def last_words(log: Path, status: int) -> str:
    """Return the path of a dead child's log, with the log's last line if that line says why the child died. It does not
    if the child was killed or lost its Java process: the last line is then a complaint of Spark's workers that nobody
    reads their output."""
    if status < 0 or status == EXIT_JAVA:
        return f"see {log}"
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError as error:
        return f"{log} cannot be read: {error.strerror}"
    return f"{lines[-1][:LAST_WORDS_CHARS]}; see {log}" if lines else f"see {log}"


def _how_child_ended(status: int) -> str:
    if status == EXIT_IO:
        return "stopped because a write to disk failed"
    if status == EXIT_JAVA:
        return "stopped because Spark's Java process has ended"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"stopped with status {status}"
