"""`penstock rebuild`: a handler's state made anew from the log, beside the app that runs, which then goes on with it.

The log is run through the new code in plain Python, up to where the running handler stands, without its output: that
was emitted already. What has come in meanwhile is made up by the engine when it starts with the new code, before its
first batch. So the new code takes over at an exact offset: everything before it was emitted by the old code, everything
from there on is emitted by the new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.app import App
from penstock.contracts import LogReader
from penstock.cursor import source_positions
from penstock.declared import Handler
from penstock.errors import DeclarationError, HandlerError
from penstock.files import write_atomic
from penstock.queue import EmbeddedLog
from penstock.runtime.child import Successor
from penstock.runtime.directory import DataDirectory, owner
from penstock.runtime.handlers import origin
from penstock.runtime.loading import absolute, code_of
from penstock.runtime.renewal import Next, Prepared, problems
from penstock.runtime.rerows import Rerows
from penstock.runtime.rerun import Rerun
from penstock.settings import Settings
from penstock.shard import Shard
from penstock.store import Handled, read_handled

CLOSE_EVENTS = 10_000
"""A rebuild has caught up when its last pass had no more events than these: the engine makes up for them at once."""
PASSES_MAX = 10
TAKE_OVER_S = 180.0
POLL_S = 0.1
Say = Callable[[str], None]


class Rebuild:
    """One handler of an app, which `target` names, to be made anew in a data directory."""

    def __init__(self, app: App, handler: Handler, target: str, root: Path, settings: Settings) -> None:
        self.app, self.handler, self.target = app, handler, target
        self.directory = DataDirectory(root)
        self.log: LogReader = EmbeddedLog(self.directory.streams, read_only=True)
        self.before = self._handled()
        self.run = Rerun(app, handler, self.log, settings)
        reads = set(source_positions(self.before.end))
        if reads != set(handler.inputs) or self.run.count != self.before.count:
            raise DeclarationError(
                f"{handler.where}: handler {handler.name} has run on {', '.join(sorted(reads))} in {self.before.count} "
                f"shards; to rebuild it, it must read the same streams, in as many (PENSTOCK_PARTITIONS)"
            )
        self.origin = origin(self.log, self.run.placed)

    def _handled(self) -> Handled:
        found = read_handled(self.directory.handler_ledger(self.handler.name))
        if found is None or found.entry is None:
            raise DeclarationError(f"{self.directory.root} has nothing of the handler {self.handler.name!r} to rebuild")
        return found

    def require_whole_log(self) -> None:
        """Refuse to begin with a log whose beginning is no longer kept."""
        starts = source_positions(self.origin)
        trimmed = any(at > 0 for each in starts.values() for at in each.values())
        if trimmed and starts != source_positions(self.before.origin):
            raise DeclarationError(
                f"the log of {', '.join(self.handler.inputs)} is no longer kept from where {self.handler.name} began; "
                "--kept rebuilds it from what is kept"
            )

    def prepare(self) -> None:
        """Run the log through the handler until it has caught up with the one that runs, and make that durable."""
        prepared, rows = Prepared(code_of(self.target), self.origin), Rerows(self.handler)
        for number in range(self.run.count):
            self.run.begin(number, Shard(), source_positions(self.origin))
        for _ in range(PASSES_MAX):
            before = self.run.events
            self.run.advance(source_positions(self._handled().end), rows.see)
            if self.run.events - before <= CLOSE_EVENTS:
                break
        Next(self.directory, self.handler.name).write(prepared, self.run, rows)

    def take_over(self, say: Say) -> None:
        """Have the running app go on with the new code, and wait until it does. If none runs, the next start will."""
        for problem in problems(self.app, self.directory, code_of(self.target)):
            raise DeclarationError(problem)
        running = owner(self.directory)
        if running is None:
            say(f"prepared; the next `penstock run {self.target}` takes it over")
            return
        if running.app != self.app.name:
            raise DeclarationError(f"{self.directory.root} belongs to the app {running.app!r}, not {self.app.name!r}")
        say("caught up; the running app now goes on with the new code")
        succeed(self.directory, self.target)
        self._wait()
        say(f"took over. From now on it is `penstock run {self.target}`")

    def _wait(self) -> None:
        engine, deadline = _engine(self.directory), time.monotonic() + TAKE_OVER_S
        while self._handled().generation == self.before.generation:
            if _engine(self.directory) != engine:
                self._require_no_failure()
            if time.monotonic() > deadline:
                raise HandlerError(f"it was not taken over within {TAKE_OVER_S:.0f} s; see the log of the engine")
            time.sleep(POLL_S)

    def _require_no_failure(self) -> None:
        status = _read(self.directory.engine_status).get("handlers", {}).get(self.handler.name, {})
        if status.get("state") == "failed":
            raise HandlerError(f"the new code was not taken over: {status['error']}")


def succeed(directory: DataDirectory, target: str) -> None:
    """Ask the supervisor of a running app to go on with another file."""
    write_atomic(directory.successor, msgspec.json.encode(Successor(absolute(target))), durable=False)


def _engine(directory: DataDirectory) -> Any:
    return _read(directory.supervisor_status).get("engine", {}).get("pid")


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        return found
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}
