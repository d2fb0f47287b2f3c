"""The processes that run queries: started for the first query, ended when there was none for a while."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from penstock.errors import PenstockError, QueryTooLarge, QueryTooSlow
from penstock.serve.channels.turns import Turns
from penstock.serve.query import worker
from penstock.serve.query.answers import Format
from penstock.settings import Settings

RESULT_BYTES_MAX = 32 * 1024 * 1024
START_S = 60.0
"""How long a process may take to be there; about half a second on a machine that has nothing else to do."""
IDLE_S = 60.0
SUDDEN_S = 0.1
"""A process that had nothing to do and is gone so soon after it was asked is not held against the query."""
WAITING_MAX = 32
"""Queries that wait for their turn; a further one is refused."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "HOME", "LANG")
"""Of the environment, where keys may stand, what a Python needs to find its libraries."""
_QUIET = {"TZ": "UTC", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Fewer threads, whose stacks count as memory, and memory that goes back when it is freed."""
_log = logging.getLogger("penstock.serve")


class Reply(msgspec.Struct):
    ready: bool = False
    rows: int = 0
    truncated: bool = False
    error: str | None = None
    message: str = ""


_decode = msgspec.json.Decoder(Reply).decode


@dataclass(frozen=True)
class Request:
    """A query that was checked: its text, the most rows, the format of its result, and the cursors of what it reads,
    which an Arrow stream has in its schema."""

    sql: str
    rows: int
    format: Format = "json"
    cursors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The encoded result of a query, and how long it ran: without the wait for its turn, or for a process."""

    data: bytes
    seconds: float


class Wrong(Exception):
    """The engine does not take the query, and says why."""


class _Gone(Exception):
    """The process has ended, or does not answer."""


class Worker:
    """One process. Belongs to one event loop."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._process, self._channel = process, channel

    @classmethod
    async def start(cls, settings: Settings) -> Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        for end in (ours, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, 2 * worker.MESSAGE_BYTES_MAX)
        spawning = asyncio.get_running_loop().run_in_executor(None, _spawn, theirs, settings)
        try:
            found = cls(await asyncio.shield(spawning), ours)
        except BaseException:
            spawning.add_done_callback(partial(_abandon, ours))
            raise
        try:
            reply, _ = await found._hear(START_S)
        except BaseException as error:
            found.kill()
            if isinstance(error, (_Gone, OSError)):
                raise PenstockError("queries cannot be run: their process does not start") from error
            raise
        assert reply.ready
        return found

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def run(self, asked: Request, files: Sequence[int], seconds: float) -> Reply | Result:
        """Run one query. If this is cancelled, or the process does not heed its time, it is killed."""
        request = msgspec.json.encode({**asdict(asked), "seconds": seconds})
        began = asyncio.get_running_loop().time()
        try:
            socket.send_fds(self._channel, [request], list(files))
            reply, results = await self._hear(seconds + 2 * worker.GRACE_S)
        except BaseException as error:
            self.kill()
            if isinstance(error, OSError):
                raise _Gone from error
            raise
        try:
            took_s = asyncio.get_running_loop().time() - began
            return reply if reply.error else Result(_read(results[0]), took_s)
        finally:
            for each in results:
                os.close(each)

    async def _hear(self, seconds: float) -> tuple[Reply, list[int]]:
        """The next message and the open files that came with it."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._channel, readable.set)
        try:
            async with asyncio.timeout(seconds):
                await readable.wait()
        except TimeoutError:
            raise _Gone from None
        finally:
            loop.remove_reader(self._channel)
        message, files, _, _ = socket.recv_fds(self._channel, worker.MESSAGE_BYTES_MAX, 1)
        if not message:
            raise _Gone
        return _decode(message), files

    def kill(self) -> None:
        self._channel.close()
        self._process.kill()
        asyncio.get_running_loop().run_in_executor(None, self._process.wait)


def _abandon(ours: socket.socket, spawning: asyncio.Future[subprocess.Popen[bytes]]) -> None:
    """End a process whose query was given up before it was there."""
    if spawning.cancelled() or spawning.exception() is not None:
        ours.close()
    else:
        Worker(spawning.result(), ours).kill()


def _spawn(theirs: socket.socket, settings: Settings) -> subprocess.Popen[bytes]:
    """Start a process, and close its end of the channel here."""
    with theirs:
        limits = [theirs.fileno(), settings.query_memory_bytes, RESULT_BYTES_MAX]
        return subprocess.Popen(
            [sys.executable, "-P", str(Path(worker.__file__).resolve()), *map(str, limits)],
            pass_fds=[theirs.fileno()],
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _QUIET,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _read(file: int) -> bytes:
    """All of a file in memory, as a copy: what is another process's to change is not looked at twice."""
    with open(file, "rb", closefd=False) as opened:
        opened.seek(0)
        return opened.read(RESULT_BYTES_MAX)


class Pool:
    """Runs queries, `queries_max` at once; the others wait for their turn."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turns = Turns(settings.queries_max, WAITING_MAX)
        self._rested: list[Worker] = []
        self._reaper: asyncio.TimerHandle | None = None

    def turn(self, who: str) -> AbstractAsyncContextManager[None]:
        """Wait for a caller's turn, and hold it while in the block; `Overloaded` if too many wait. What a query reads
        and what it gives are held in its turn only, so that their memory is bounded."""
        return self._turns.one(who)

    async def run(self, asked: Request, files: Sequence[int]) -> Result:
        """Run a query that was checked, in a turn. `files` are open files with its tables, as Arrow streams.

        `Wrong` if the engine does not take it; `QueryTooSlow` or `QueryTooLarge` if it is over its limits.
        """
        rested, clock = self._rested_one(), asyncio.get_running_loop().time
        chosen = rested or await Worker.start(self._settings)
        seconds, began = self._settings.query_s_max, clock()
        try:
            reply = await chosen.run(asked, files, seconds)
        except _Gone:
            took_s = clock() - began
            if rested is not None and took_s < SUDDEN_S:
                return await self.run(asked, files)  # it may have been killed before it saw the query
            # out of memory is what ends a process before its time
            raise (self._too_slow() if took_s >= seconds else self._too_large()) from None
        if isinstance(reply, Result) or reply.error in ("wrong", "slow", "long"):
            self._rest(chosen)
        else:
            chosen.kill()
        if isinstance(reply, Result):
            return reply
        raise self._error(reply)

    def _rested_one(self) -> Worker | None:
        """A process that has nothing to do, if there is one; those that were killed meanwhile are let go."""
        while self._rested:
            found = self._rested.pop()
            if found.alive:
                return found
            found.kill()
        return None

    def _error(self, reply: Reply) -> Exception:
        if reply.error == "wrong":
            return Wrong(reply.message)
        if reply.error == "slow":
            return self._too_slow()
        if reply.error == "long":
            return QueryTooLarge(f"the answer is longer than the {RESULT_BYTES_MAX // 2**20} MiB that it may have")
        if reply.error == "large":
            return self._too_large()
        _log.error("a query failed: %s", reply.message)
        return PenstockError("the query failed in a way that nobody foresaw")

    def _too_slow(self) -> QueryTooSlow:
        return QueryTooSlow(f"the query took more than {self._settings.query_s_max:g} s and was ended")

    def _too_large(self) -> QueryTooLarge:
        mib = self._settings.query_memory_bytes // 2**20
        return QueryTooLarge(f"the query took more than the {mib} MiB of memory that it may have, and was ended")

    def _rest(self, chosen: Worker) -> None:
        self._rested.append(chosen)
        if self._reaper is not None:
            self._reaper.cancel()
        self._reaper = asyncio.get_running_loop().call_later(IDLE_S, self.close)

    def close(self) -> None:
        """End the processes that are not at work; a later query starts one again."""
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        while self._rested:
            self._rested.pop().kill()
