"""`penstock rebuild`: views and handlers made again from the log beside the running app, which then goes on with them.

Everything is prepared in files of its own, in which nothing counts until all of it is durable. Then the running app
is asked to go on with the new code: its engine takes over what was prepared when it starts (`renewal.py` for handlers,
`swap.py` for views). If no app runs, the next start does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from penstock.app import App
from penstock.cursor import Positions
from penstock.declared import Handler, View
from penstock.errors import DeclarationError, HandlerError
from penstock.files import read_status, write_atomic
from penstock.fingerprints.verdicts import Kind
from penstock.graph import Node, is_derived
from penstock.runtime.child import Successor
from penstock.runtime.comparison import Comparison, command_line
from penstock.runtime.derivation import merged
from penstock.runtime.directory import DataDirectory, last_owner, owner
from penstock.runtime.events import event_problems, open_log
from penstock.runtime.hold import hold, rebuild_lock
from penstock.runtime.loading import Loaded, absolute, code_of, the_handler
from penstock.runtime.plans import decided
from penstock.runtime.rebuild_handler import HandlerRebuild
from penstock.settings import Settings

TAKE_OVER_S = 180.0
POLL_S = 0.1
NICE = 5
"""The app that runs comes first."""
Say = Callable[[str], None]
Tell = Callable[[int], None]


class Rebuildable(Protocol):
    """One view or handler on its way to be rebuilt."""

    name: str

    @property
    def origin(self) -> Positions:
        """Where it begins: with the first kept events of the streams that it reads."""

    def missing(self) -> list[str]:
        """What the log no longer has of what it began with, a line for each stream."""

    def prepare(self, tell: Tell) -> str:
        """Make it from the log, in files that do not count yet; returns a sentence on it. Called once; blocks."""

    def mark(self) -> None:
        """Make what was prepared durable, and have it count."""

    def is_taken_over(self) -> bool:
        """Whether the engine has taken it over."""


def choose(
    app: App, views: Sequence[str], handlers: Sequence[str], changed: Callable[[], Sequence[Node]] = tuple
) -> list[Node]:
    """The views and handlers to rebuild: those that are named, or else those that have `changed`. A view that a handler
    keeps is rebuilt as that handler. Raises `DeclarationError` with what there is, if a name is unknown or none is
    given and nothing has changed."""
    if not views and not handlers:
        return [*changed()] or _only(app)
    known: dict[str, Node] = {view.name: view for view in app.queries}
    known |= {keeper.name: keeper for keeper in app.keepers}
    for name in views:
        if name not in known:
            raise DeclarationError(f"there is no view {name!r}; there are {', '.join(known) or 'none'}")
        node = known[name]
        if isinstance(node, View) and is_derived(app, node):
            raise DeclarationError(
                f"{node.where}: view {name}: it reads only views, and is always what its query gives on their rows: "
                f"there is nothing to rebuild. It reads {', '.join(node.reads)}"
            )
    chosen: list[Node] = [known[name] for name in views]
    chosen += [the_handler(app, name) for name in handlers]
    return list({each.name: each for each in chosen}.values())


def changed(app: App, target: str, root: Path, settings: Settings, say: Say) -> list[Node]:
    """The views and handlers whose data the code as it is now would not have made. Raises `DeclarationError` if a
    stream is refused: that comes first."""
    verdicts = decided(Comparison(app, target, DataDirectory(root), settings), say)
    streams = [str(each) for each in verdicts if each.sort == "stream" and each.kind is Kind.incompatible]
    if streams:
        raise DeclarationError("\n".join(streams))
    names = {(each.sort, each.name) for each in verdicts if each.command is not None and " rebuild " in each.command}
    found: list[Node] = [view for view in app.queries if ("view", view.name) in names]
    return [*found, *(each for each in app.handlers if ("handler", each.name) in names)]


def _only(app: App) -> list[Node]:
    """What to rebuild if nothing is named and nothing has changed: the only handler of an app without Spark views."""
    if len(app.handlers) == 1 and not app.queries:
        return list(app.handlers)
    views = [f"--view {each.name}" for each in app.views if not is_derived(app, each)]
    names = [*views, *(f"--handler {each.name}" for each in app.handlers if each not in app.keepers)]
    listed = ", ".join(names) or "there are no views and no handlers"
    raise DeclarationError(f"nothing has changed that a rebuild would make otherwise; say what to rebuild: {listed}")


class Rebuild:
    """Some views and handlers of an app, which `target` names, to be rebuilt in a data directory."""

    def __init__(self, loaded: Loaded, target: str, root: Path, settings: Settings, nodes: Sequence[Node]) -> None:
        self.loaded, self.app, self.target, self.settings = loaded, loaded.app, target, settings
        self.directory = DataDirectory(root)
        self._require_own()
        self.log = open_log(self.app, self.directory)
        self._spark: Any = None
        self.parts = [self._part(node) for node in nodes]

    def _require_own(self) -> None:
        if not self.directory.streams.is_dir():
            raise DeclarationError(f"{self.directory.root} is no data directory: there is nothing to rebuild")
        known = last_owner(self.directory)
        if known is not None and known.app != self.app.name:
            raise DeclarationError(f"{self.directory.root} belongs to the app {known.app!r}, not {self.app.name!r}")
        unreadable = list(event_problems(self.app, self.directory))
        if unreadable:
            raise DeclarationError("\n".join(unreadable))

    def _part(self, node: View | Handler) -> Rebuildable:
        if isinstance(node, Handler):
            return HandlerRebuild(self.app, node, self.directory, self.log, self.settings, code_of(self.target))
        from penstock.runtime.rebuild_view import ViewRebuild  # which loads Spark's Python

        return ViewRebuild(self.app, node, self.directory, self.log, self.settings, self.target, self._session)

    def _session(self) -> Any:
        """The Spark session of the rebuild, started when it is first needed."""
        if self._spark is None:
            from penstock.analyze.check import silenced
            from penstock.analyze.session import carry, start_session

            os.nice(NICE)
            carry(self.loaded.module, self.loaded.file)
            logs, warehouse = self.directory.logs / "rebuild", self.directory.run / "rebuild"
            with silenced():
                self._spark = start_session(f"{self.app.name} rebuild", self.settings, logs=logs, warehouse=warehouse)
        return self._spark

    def prepare(self, say: Say, tell: Tell, *, kept: bool) -> None:
        """Make everything from the log; it counts when all of it is done. Raises `AlreadyRunning` beside another
        rebuild, and `DeclarationError` if the log no longer reaches back, unless that is said to be fine by `kept`."""
        with rebuild_lock(self.directory):
            hold(self.directory, merged(part.origin for part in self.parts))
            for part in self.parts:
                self._report_missing(part, say, kept=kept)
            for part in self.parts:
                say(part.prepare(tell))
            for part in self.parts:
                part.mark()

    def _report_missing(self, part: Rebuildable, say: Say, *, kept: bool) -> None:
        lines = part.missing()
        if lines and not kept:
            raise DeclarationError(
                f"the log is no longer kept from where {part.name} began; --kept rebuilds it from what is kept:\n  "
                + "\n  ".join(lines)
            )
        for line in lines:
            say(f"{part.name} is rebuilt without what is no longer kept: {line}")

    def take_over(self, say: Say) -> None:
        """Have the running app go on with the new code, and wait until it does. If none runs, the next start will."""
        comparison = Comparison(self.app, self.target, self.directory, self.settings)
        refused = [str(each) for each in decided(comparison, say) if each.kind in (Kind.incompatible, Kind.undecided)]
        if refused:
            why = "it is prepared, and not taken over, because of what else has changed:"
            raise DeclarationError("\n".join((why, *refused)))
        if owner(self.directory) is None:
            say(f"prepared; the next `{command_line(self.target, self.directory, 'run')}` takes it over")
            return
        say("caught up; the running app now goes on with the new code")
        before = _engine(self.directory)
        succeed(self.directory, self.target)
        self._wait(before)
        say(f"took over; from now on it is `{command_line(self.target, self.directory, 'run')}`")

    def _wait(self, engine: Any) -> None:
        deadline = time.monotonic() + TAKE_OVER_S
        while not all(part.is_taken_over() for part in self.parts):
            if _engine(self.directory) != engine:
                self._require_no_failure()
            if time.monotonic() > deadline:
                raise HandlerError(f"it was not taken over within {TAKE_OVER_S:.0f} s; see the log of the engine")
            time.sleep(POLL_S)

    def _require_no_failure(self) -> None:
        told = read_status(self.directory.engine_status)
        nodes = told.get("views", {}) | told.get("handlers", {})
        for part in self.parts:
            status = nodes.get(part.name, {})
            if status.get("state") == "failed":
                raise HandlerError(f"the new code was not taken over: {status['error']}")

    def close(self) -> None:
        """Stop Spark, if it was started, and let go of the log."""
        if self._spark is not None:
            self._spark.stop()
        self.log.close()


def succeed(directory: DataDirectory, target: str) -> None:
    """Ask the supervisor of a running app to go on with another file."""
    write_atomic(directory.successor, msgspec.json.encode(Successor(absolute(target))), durable=False)


def _engine(directory: DataDirectory) -> Any:
    return read_status(directory.supervisor_status).get("engine", {}).get("pid")
