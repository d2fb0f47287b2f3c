"""The supervisor: owns the data directory and the listening socket, starts gateway and engine, restarts what dies.

The socket outlives the gateway: while one gateway is replaced by the next, clients wait in the queue of the socket
instead of being refused. Each child leads a process group of its own, so that what it started (the JVM, Spark's
Python workers) can be ended with it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from penstock.app import App
from penstock.errors import EXIT_IO, EXIT_JAVA, DeclarationError
from penstock.files import read_status, write_status
from penstock.runtime.child import VARIABLE, Call, Successor
from penstock.runtime.directory import DataDirectory, Ownership, take
from penstock.settings import Settings

STEP_S = 0.05
LOOK_S = 0.5
LAST_WORDS_CHARS = 200
LAST_WORDS_BYTES = 2_000
FIRST_WAIT_S = 0.1
BACKLOG = 1024
LOG_BYTES_MAX = 10 * 1024 * 1024
IN_ORDER = (0, -signal.SIGTERM)
"""How children end that were asked to. One that has begun its work heeds the signal, finishes and ends with 0; one that
is ended by the signal itself had not begun."""
Say = Callable[[str], None]


@dataclass
class Process:
    """One child and its history."""

    name: str
    module: str
    healthy_s: float
    popen: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    failures: int = 0
    started_at: float = 0.0
    start_at: float = 0.0
    died_at: float | None = None
    ended: str = ""

    def wait_before_restart(self, now: float, longest_s: float) -> float:
        """Double the wait for each failure in a row, from a tenth of a second on. One that had run for `healthy_s`
        is past its start: it did not fail by itself, and is back at once."""
        if now - self.started_at > self.healthy_s:
            self.failures = 0
        wait: float = min(longest_s, FIRST_WAIT_S * 2**self.failures)
        self.failures += 1
        return wait


class News:
    """Passes on what a person should know of the app: what its start is at, that it is ready, each problem when it
    appears and when it gets worse, and that it is over. Of a process that died the supervisor has told already."""

    def __init__(self, directory: DataDirectory, address: str, say: Say) -> None:
        self.directory, self.address, self.say = directory, address, say
        self._began = self._looked_at = time.monotonic()
        self._up = self._was_ready = False
        self._doing = ""
        self._problems: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """By what has a problem: of which causes and levels it was since it was last well."""

    def look(self) -> None:
        """Called many times a second; reads what the others say about twice."""
        now = time.monotonic()
        if now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        health = read_status(self.directory.health_status)
        up = health.get("state") in ("ready", "degraded")
        if not up:
            self._say_doing()
        self._say_problems(health.get("problems", []))
        if up and not self._up:
            self._say_up(now - self._began, len(self._problems))
        elif up and health["state"] == "ready" and not self._was_ready:
            self.say(f"ready: {self.address}")
        if self._up and not up:
            self._began, self._doing = now, ""
        self._up, self._was_ready = up, health.get("state") == "ready"

    def _say_doing(self) -> None:
        """What the engine is at while it starts, which takes some seconds."""
        doing = read_status(self.directory.engine_status).get("doing") or ""
        if doing and doing != self._doing:
            self.say(doing)
        self._doing = doing

    def _say_problems(self, found: Sequence[Mapping[str, str]]) -> None:
        problems = {(each["kind"], each["name"]): each for each in found}
        for subject, each in problems.items():
            said = self._problems.setdefault(subject, set())
            if each["kind"] != "process" and _is_news(each["cause"], each["level"], said):
                self.say(f"{each['message']}; see {self.address}/{each['page']}")
            said.add((each["cause"], each["level"]))
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
    """Whether a person is to hear of a problem: of each cause once, and again if it turns red."""
    if cause == "recovering":
        return not said
    return (cause, level) not in said and (cause, "red") not in said


def listen(host: str, port: int, *, guarded: bool = False) -> socket.socket:
    """The listening socket. Anything but loopback is refused, unless keys, tokens or certificates guard it."""
    if not guarded and not _is_loopback(host):
        raise DeclarationError(
            f"{host} can be reached from other machines, and nobody would be asked who they are; make a key first with "
            "`penstock keys add NAME admin`, or use 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise DeclarationError(f"cannot listen on {host}:{port}: {error.strerror}; give another --port") from None
    listener.listen(BACKLOG)
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Supervisor:
    """Runs one app until SIGTERM or SIGINT. `say` prints one line for a person."""

    def __init__(
        self,
        app: App,
        target: str,
        root: Path,
        listener: socket.socket,
        settings: Settings,
        say: Say,
        *,
        access: Path | None = None,
        tls: bool = False,
    ) -> None:
        """`access` is the access file, for the gateway; `tls` says whether it has a certificate."""
        self.app = app
        self.target = target
        self.directory = DataDirectory(root)
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
        self._alive_read, self._alive_write = os.pipe()
        self._told = b""

    def run(self) -> int:
        """Take the directory, run, drain. Returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._request_stop())
        ownership = take(self.directory, self.app.name)
        self.say(f"{self.app.name} is starting at {self.address}, data in {self.directory.root}")
        for status in (self.directory.engine_status, self.directory.health_status, self.directory.successor):
            status.unlink(missing_ok=True)
        news = News(self.directory, self.address, self.say)
        while not self.stopping:
            self._step(ownership)
            self._publish()
            self._give_way()
            news.look()
            time.sleep(STEP_S)
        return self._stop()

    @property
    def address(self) -> str:
        host, port = self.listener.getsockname()[:2]
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def _request_stop(self) -> None:
        self.stopping = True

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
        """If another file is to go on, end both children in good order and start them with that one. Clients find the
        socket as it was, and take up their streams by their cursors."""
        try:
            target = msgspec.json.decode(self.directory.successor.read_bytes(), type=Successor).target
        except FileNotFoundError:
            return
        except msgspec.MsgspecError as error:
            self.directory.successor.unlink()
            self.say(f"{self.directory.successor} was not understood, and is left aside: {error}")
            return
        self.directory.successor.unlink()
        self.say(f"going on with {target}: finishing the work under way")
        self._drain()
        self.target = target
        self.directory.engine_status.unlink(missing_ok=True)
        self.directory.health_status.unlink(missing_ok=True)
        for process in self.processes:
            process.popen, process.start_at, process.failures = None, 0.0, 0

    def _bury(self, process: Process, status: int, now: float) -> None:
        """A child has died: end what it left behind, and say when it will be started again."""
        assert process.popen is not None
        end_group(process.popen.pid)
        process.popen = None
        wait = process.wait_before_restart(now, self.settings.restart_backoff_max_s)
        process.start_at = now + wait
        process.restarts += 1
        process.died_at, process.ended = now, _how(status)
        told = last_words(self._log(process), status)
        self.say(f"the {process.name} {process.ended}; starting it again after {wait:.1f} s ({told})")

    def _start(self, process: Process, ownership: Ownership) -> None:
        listener = self.listener.fileno() if process.name == "gateway" else None
        call = Call(
            self.target,
            str(self.directory.root),
            ownership.epoch,
            self._alive_read,
            ownership.descriptor,
            listener,
            None if self.access is None else str(self.access),
        )
        passed = [self._alive_read, ownership.descriptor, *([listener] if listener is not None else [])]
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
        return self.directory.logs / f"{process.name}.log"

    def _open_log(self, process: Process) -> IO[bytes]:
        """The child's log, to which it appends."""
        path = self._log(process)
        turn_over(path)
        return open(path, "ab")

    def _publish(self) -> None:
        """Tell the gateway, for `/v1/app`, what the supervisor knows, if it is something new."""
        status = {
            each.name: {
                "pid": each.popen.pid if each.popen else None,
                "restarts": each.restarts,
                "died_at": each.died_at,
                "ended": each.ended,
            }
            for each in self.processes
        }
        told = msgspec.json.encode(status)
        if told != self._told and write_status(self.directory.supervisor_status, told):
            self._told = told

    def _stop(self) -> int:
        self.say("stopping: finishing the work under way")
        in_order = self._drain()
        self.say("stopped" if in_order else "stopped, not in good order: the next start repairs it")
        return 0 if in_order else 1

    def _drain(self) -> bool:
        """End the children: ask, wait up to the limit, then insist. True if all ended in good order."""
        running = [each for each in self.processes if each.popen is not None]
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
                self.say(f"the {process.name} did not finish in {self.settings.drain_s:.0f} s; ending it")
                statuses.append(-signal.SIGKILL)
            end_group(process.popen.pid)
            process.popen.wait()
        return all(status in IN_ORDER for status in statuses)


def turn_over(log: Path) -> None:
    """Keep a log to two files of bounded size: copy one that is long, and empty it. The process that writes it has it
    open and appends, so it goes on at the beginning; what it writes between the two steps is lost. A disk without room
    for the copy gets none."""
    with contextlib.suppress(OSError):
        if log.stat().st_size <= LOG_BYTES_MAX:
            return
        try:
            shutil.copyfile(log, log.with_suffix(".old.log"))
        finally:
            os.truncate(log, 0)


def end_group(leader: int) -> None:
    """Kill what is left of a child's process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def last_words(log: Path, status: int) -> str:
    """The log of a child that has died, with its last line if that says why it died. Of one that was killed, or that
    has lost its Java process, it does not: then Spark's workers write last, that nobody reads what they send."""
    if status < 0 or status == EXIT_JAVA:
        return f"see {log}"
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError as error:
        return f"{log} cannot be read: {error.strerror}"
    return f"{lines[-1][:LAST_WORDS_CHARS]}; see {log}" if lines else f"see {log}"


def _how(status: int) -> str:
    if status == EXIT_IO:
        return "stopped, for the disk failed to take a write"
    if status == EXIT_JAVA:
        return "stopped, for Spark's Java process has ended"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"stopped with status {status}"
