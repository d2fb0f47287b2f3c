"""The processes that run queries. They are started when the first query arrives, and stopped when no query has arrived
for some time."""

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

from penstock.core.clock import loop_time
from penstock.core.errors import PenstockError, QueryTooLarge, QueryTooSlow
from penstock.core.fair_queue import FairQueue
from penstock.core.settings import Settings
from penstock.serve.query import worker
from penstock.serve.query.answers import Format

RESULT_BYTES_MAX = 32 * 1024 * 1024
START_S = 60.0
"""Time limit for starting a process, which takes about half a second on an idle machine."""
IDLE_S = 60.0
SUDDEN_S = 0.1
"""If an idle process ends within this time of receiving a query, the query is assumed not to be the cause, and runs
again."""
WAITING_MAX = 32
"""Maximum number of queries that wait for their turn. Further queries are refused."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "HOME", "LANG")
"""The environment variables passed on to the process: only those that Python needs to find its libraries.

Other variables can contain keys.
"""
_QUIET = {"TZ": "UTC", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Environment variables that reduce the number of threads, because their stacks count as memory, and select an
allocator that returns freed memory."""
_log = logging.getLogger("penstock.serve")


class Reply(msgspec.Struct):
    ready: bool = False
    rows: int = 0
    truncated: bool = False
    error: str | None = None
    message: str = ""


_decode = msgspec.json.Decoder(Reply).decode


@dataclass(frozen=True)
class QueryRequest:
    """A checked query: its SQL, the maximum number of rows, the result's format, and the cursors of its inputs.

    An Arrow stream contains the cursors in its schema metadata.
    """

    sql: str
    rows: int
    format: Format = "json"
    cursors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryResult:
    """The encoded result of a query, and the query's running time without the wait for a turn or a process."""

    data: bytes
    seconds: float


class QueryRejected(Exception):
    """DuckDB rejected the query. The message is the reason."""


class _WorkerGone(Exception):
    """The query process has ended, or does not respond."""


class QueryWorker:
    """One query process. Not thread-safe."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._process, self._channel = process, channel

    @classmethod
    async def start(cls, settings: Settings) -> QueryWorker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        for end in (ours, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, 2 * worker.MESSAGE_BYTES_MAX)
        spawning = asyncio.get_running_loop().run_in_executor(None, _spawn, theirs, settings)
        try:
            query_worker = cls(await asyncio.shield(spawning), ours)
        except BaseException:
            spawning.add_done_callback(partial(_abandon, ours))
            raise
        try:
            reply, _ = await query_worker._hear(START_S)
        except BaseException as error:
            query_worker.kill()
            if isinstance(error, (_WorkerGone, OSError)):
                raise PenstockError("queries cannot be run: the query process did not start") from error
            raise
        assert reply.ready
        return query_worker

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def run(self, asked: QueryRequest, files: Sequence[int], seconds: float) -> Reply | QueryResult:
        """Run one query. Kills the process if the call is cancelled or the process exceeds its time limit."""
        request = msgspec.json.encode({**asdict(asked), "seconds": seconds})
        began = loop_time()
        try:
            socket.send_fds(self._channel, [request], list(files))
            reply, results = await self._hear(seconds + 2 * worker.GRACE_S)
        except BaseException as error:
            self.kill()
            if isinstance(error, OSError):
                raise _WorkerGone from error
            raise
        try:
            took_s = loop_time() - began
            return reply if reply.error else QueryResult(_read_result(results[0]), took_s)
        finally:
            for file in results:
                os.close(file)

    async def _hear(self, seconds: float) -> tuple[Reply, list[int]]:
        """Return the query process's next message and the open files that came with it."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._channel, readable.set)
        try:
            async with asyncio.timeout(seconds):
                await readable.wait()
        except TimeoutError:
            raise _WorkerGone from None
        finally:
            loop.remove_reader(self._channel)
        message, files, _, _ = socket.recv_fds(self._channel, worker.MESSAGE_BYTES_MAX, 1)
        if not message:
            raise _WorkerGone
        return _decode(message), files

    def kill(self) -> None:
        self._channel.close()
        self._process.kill()
        asyncio.get_running_loop().run_in_executor(None, self._process.wait)


def _abandon(ours: socket.socket, spawning: asyncio.Future[subprocess.Popen[bytes]]) -> None:
    """Kill a query process if its query was abandoned while the process was starting."""
    if spawning.cancelled() or spawning.exception() is not None:
        ours.close()
    else:
        QueryWorker(spawning.result(), ours).kill()


def _spawn(theirs: socket.socket, settings: Settings) -> subprocess.Popen[bytes]:
    """Start a query process, and close the parent's copy of the process's socket. Blocks."""
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


def _read_result(file: int) -> bytes:
    """Return a query's result: a copy of an in-memory file. The file is read exactly once, because another process
    might change it."""
    with open(file, "rb", closefd=False) as opened:
        opened.seek(0)
        return opened.read(RESULT_BYTES_MAX)


class QueryPool:
    """Runs up to `queries_max` queries at once. Further queries wait for their turn."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turns = FairQueue(settings.queries_max, WAITING_MAX)
        self._rested: list[QueryWorker] = []
        self._reaper: asyncio.TimerHandle | None = None

    def turn(self, who: str) -> AbstractAsyncContextManager[None]:
        """Wait for a caller's turn to query, and hold it for the duration of the block.

        Raises `Overloaded` if too many queries are waiting. A query holds its inputs and its result only during its
        turn, so their memory is bounded.
        """
        return self._turns.one(who)

    async def run(self, asked: QueryRequest, files: Sequence[int]) -> QueryResult:
        """Run a checked query during a turn. `files` are open files that contain its tables as Arrow streams.

        Raises `QueryRejected` if the engine rejects the query, and `QueryTooSlow` or `QueryTooLarge` if it exceeds its
        limits.
        """
        rested = self._idle_worker()
        chosen = rested or await QueryWorker.start(self._settings)
        seconds, began = self._settings.query_s_max, loop_time()
        try:
            reply = await chosen.run(asked, files, seconds)
        except _WorkerGone:
            took_s = loop_time() - began
            if rested is not None and took_s < SUDDEN_S:
                return await self.run(asked, files)  # the process may have been killed before it saw the query
            # a process that ends early has run out of memory
            raise (self._too_slow() if took_s >= seconds else self._too_large()) from None
        if isinstance(reply, QueryResult) or reply.error in ("wrong", "slow", "long"):
            self._rest(chosen)
        else:
            chosen.kill()
        if isinstance(reply, QueryResult):
            return reply
        raise self._error(reply)

    def _idle_worker(self) -> QueryWorker | None:
        """Return an idle query process, or None. Processes that were killed in the meantime are dropped."""
        while self._rested:
            query_worker = self._rested.pop()
            if query_worker.alive:
                return query_worker
            query_worker.kill()
        return None

    def _error(self, reply: Reply) -> Exception:
        if reply.error == "wrong":
            return QueryRejected(reply.message)
        if reply.error == "slow":
            return self._too_slow()
        if reply.error == "long":
            return QueryTooLarge(f"the result is larger than the limit of {RESULT_BYTES_MAX // 2**20} MiB")
        if reply.error == "large":
            return self._too_large()
        _log.error("a query failed: %s", reply.message)
        return PenstockError("the query failed unexpectedly; see the gateway's log")

    def _too_slow(self) -> QueryTooSlow:
        return QueryTooSlow(f"the query took more than {self._settings.query_s_max:g} s and was stopped")

    def _too_large(self) -> QueryTooLarge:
        mib = self._settings.query_memory_bytes // 2**20
        return QueryTooLarge(f"the query used more memory than the limit of {mib} MiB and was stopped")

    def _rest(self, chosen: QueryWorker) -> None:
        self._rested.append(chosen)
        if self._reaper is not None:
            self._reaper.cancel()
        self._reaper = asyncio.get_running_loop().call_later(IDLE_S, self.close)

    def close(self) -> None:
        """End the idle query processes. A later query starts a new one."""
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        while self._rested:
            self._rested.pop().kill()
