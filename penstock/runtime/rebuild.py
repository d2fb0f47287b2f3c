"""`penstock rebuild`: recompute views and handlers from the log while the app runs, and then let the app switch to the
results.

Everything is prepared in separate files, which are not used until all of them are durable. Then the running app is
asked to switch to the new code, and its engine adopts the prepared data when it restarts (`state_replacement.py` for
handlers, `swap.py` for views). If the app is not running, this happens at the next start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.analyze.workers import digest_of
from penstock.app.app import App
from penstock.app.declared import Handler, View
from penstock.app.fingerprints.verdicts import VerdictKind
from penstock.app.graph import Node, is_derived
from penstock.app.loading import LoadedApp, absolute, local_modules, the_handler
from penstock.control import EngineStatus, Successor, SupervisorStatus
from penstock.core.cursor import Positions
from penstock.core.errors import DeclarationError, DiskFull, HandlerError
from penstock.core.settings import Settings
from penstock.runtime.comparison import Comparison, command_line
from penstock.runtime.derivation import merged
from penstock.runtime.events import event_problems, open_log
from penstock.runtime.plans import decided
from penstock.runtime.rebuild_handler import HandlerRebuild
from penstock.runtime.storage import Storage, require_app

TAKE_OVER_S = 180.0
POLL_S = 0.1
NICE = 5
"""Niceness of the rebuild's processes, which gives the running app precedence."""
Say = Callable[[str], None]
Tell = Callable[[int], None]


class Rebuildable(Protocol):
    """A view or handler that is being rebuilt."""

    name: str

    @property
    def origin(self) -> Positions:
        """Return the position where the rebuild begins: the first kept events of the streams that the view or handler
        reads."""

    def missing(self) -> list[str]:
        """Return a line for each stream that no longer contains the first events of the view or handler."""

    def prepare(self, tell: Tell) -> str:
        """Compute the view or handler from the log, in files that are not used yet, and return a sentence that
        describes the result. Called once; blocks."""

    def mark(self) -> None:
        """Make the rebuilt data durable, then make it take effect."""

    def is_taken_over(self) -> bool:
        """Return whether the engine has adopted the rebuilt data."""


def choose(
    app: App, views: Sequence[str], handlers: Sequence[str], changed: Callable[[], Sequence[Node]] = tuple
) -> list[Node]:
    """Return the views and handlers to rebuild: the ones named, or by default the ones that have `changed`. To rebuild
    a view that a handler maintains, the handler is rebuilt. Raises `DeclarationError`, which lists the existing names,
    if a name is unknown, or if no name is passed and nothing has changed."""
    if not views and not handlers:
        return [*changed()] or _only_handler(app)
    known: dict[str, Node] = {view.name: view for view in app.queries}
    known |= {view_handler.name: view_handler for view_handler in app.view_handlers}
    for name in views:
        if name not in known:
            raise DeclarationError(f"there is no view {name!r}; there are {', '.join(known) or 'none'}")
        node = known[name]
        if isinstance(node, View) and is_derived(app, node):
            raise DeclarationError(
                f"{node.where}: view {name}: there is nothing to rebuild, because it reads only views "
                f"({', '.join(node.reads)}) and is always recomputed from their rows"
            )
    chosen: list[Node] = [known[name] for name in views]
    chosen += [the_handler(app, name) for name in handlers]
    return list({node.name: node for node in chosen}.values())


def changed(app: App, target: str, storage: Storage, settings: Settings, say: Say) -> list[Node]:
    """Return the views and handlers whose data differs from what the current code would compute. Raises
    `DeclarationError` if a stream is refused, because that must be fixed first."""
    verdicts = decided(Comparison(app, target, storage, settings), say)
    streams = [
        str(verdict) for verdict in verdicts if verdict.sort == "stream" and verdict.kind is VerdictKind.incompatible
    ]
    if streams:
        raise DeclarationError("\n".join(streams))
    names = {
        (verdict.sort, verdict.name)
        for verdict in verdicts
        if verdict.command is not None and " rebuild " in verdict.command
    }
    nodes: list[Node] = [view for view in app.queries if ("view", view.name) in names]
    return [*nodes, *(handler for handler in app.handlers if ("handler", handler.name) in names)]


def _only_handler(app: App) -> list[Node]:
    """Return the handler to rebuild if no name is passed and nothing has changed: the only handler of an app without
    Spark views."""
    if len(app.handlers) == 1 and not app.queries:
        return list(app.handlers)
    views = [f"--view {view.name}" for view in app.views if not is_derived(app, view)]
    names = [*views, *(f"--handler {handler.name}" for handler in app.handlers if handler not in app.view_handlers)]
    listed = ", ".join(names) or "none (there are no views and no handlers)"
    raise DeclarationError(f"no change needs a rebuild; to rebuild anyway, pass one or more of: {listed}")


class Rebuild:
    """Rebuilds views and handlers of the app that `target` names, in a data directory."""

    def __init__(
        self, loaded: LoadedApp, target: str, storage: Storage, settings: Settings, nodes: Sequence[Node]
    ) -> None:
        self.loaded, self.app, self.target, self.settings = loaded, loaded.app, target, settings
        self.storage = storage
        self._require_own()
        self.comparison = Comparison(self.app, target, storage, settings)
        self._files = {file: digest_of(file) for file in local_modules().values()}
        self.log = open_log(self.app, self.storage)
        self._spark: Any = None
        self.parts = [self._part(node) for node in nodes]

    def _require_own(self) -> None:
        if not self.storage.exists():
            raise DeclarationError(f"{self.storage.location} is not a data directory: there is nothing to rebuild")
        require_app(self.storage, self.app.name)
        unreadable = list(event_problems(self.app, self.storage))
        if unreadable:
            raise DeclarationError("\n".join(unreadable))

    def _part(self, node: View | Handler) -> Rebuildable:
        if isinstance(node, Handler):
            return HandlerRebuild(self.app, node, self.storage, self.log, self.settings, self.comparison)
        from penstock.runtime.rebuild_view import ViewRebuild  # it loads PySpark

        return ViewRebuild(self.app, node, self.storage, self.log, self.settings, self.target, self._session)

    def _session(self) -> Any:
        """Return the rebuild's Spark session, which is started when it is first needed."""
        if self._spark is None:
            from penstock.analyze.check import silenced
            from penstock.analyze.session import carry, start_session

            os.nice(NICE)
            carry(self.loaded.module, self.loaded.file)
            logs, warehouse = self.storage.local.logs / "rebuild", self.storage.local.temporary / "rebuild"
            with silenced():
                self._spark = start_session(f"{self.app.name} rebuild", self.settings, logs=logs, warehouse=warehouse)
        return self._spark

    def prepare(self, say: Say, tell: Tell, *, kept: bool) -> None:
        """Rebuild everything from the log. The results take effect when all of them are done. Raises `AlreadyRunning`
        if another rebuild is running, and `DeclarationError` if the log no longer contains the first events, unless
        `kept` allows that."""
        with self.storage.rebuild_lock():
            self.storage.hold_back_retention(merged(part.origin for part in self.parts))
            for part in self.parts:
                self._report_missing(part, say, kept=kept)
            for part in self.parts:
                say(f"{part.name}: reading the log")
                say(part.prepare(tell))
            for part in self.parts:
                part.mark()

    def _report_missing(self, part: Rebuildable, say: Say, *, kept: bool) -> None:
        lines = part.missing()
        if lines and not kept:
            raise DeclarationError(
                f"the log no longer contains the first events of {part.name}; "
                "to rebuild it from the kept events, pass --kept:\n  " + "\n  ".join(lines)
            )
        for line in lines:
            say(f"rebuilding {part.name} without the deleted events: {line}")

    def take_over(self, say: Say) -> None:
        """Ask the running app to switch to the new code, and wait until it has. If no app is running, the next start
        uses the new code. Raises `DeclarationError` if a file of the app has been edited since it was loaded, because
        the app would then switch to code that did not compute the results."""
        self._require_unedited()
        comparison = Comparison(self.app, self.target, self.storage, self.settings)
        refused = [
            str(verdict)
            for verdict in decided(comparison, say)
            if verdict.kind in (VerdictKind.incompatible, VerdictKind.undecided)
        ]
        if refused:
            why = "the rebuild is ready, but the app cannot switch to it because of other changes:"
            raise DeclarationError("\n".join((why, *refused)))
        if self.storage.owner() is None:
            say(f"the rebuild is ready; the next `{command_line(self.target, self.storage, 'run')}` switches to it")
            return
        say("caught up; the running app now switches to the new code")
        before = _engine_pid(self.storage)
        succeed(self.storage, self.target)
        self._wait_for_switch(before)
        say(f"the app has switched to the rebuild; from now on, run `{command_line(self.target, self.storage, 'run')}`")

    def _require_unedited(self) -> None:
        edited = [file for file, digest in self._files.items() if digest_of(file) != digest]
        if edited:
            views = [f"--view {part.name}" for part in self.parts if not isinstance(part, HandlerRebuild)]
            handlers = [f"--handler {part.name}" for part in self.parts if isinstance(part, HandlerRebuild)]
            command = command_line(self.target, self.storage, "rebuild", *views, *handlers)
            raise DeclarationError(
                f"the rebuild is ready but has not been put into use, because {', '.join(edited)} changed in the "
                f"meantime, and its results fit only the code that computed them. To rebuild with the edited code: "
                f"{command}"
            )

    def _wait_for_switch(self, engine: int | None) -> None:
        deadline = time.monotonic() + TAKE_OVER_S
        while not all(part.is_taken_over() for part in self.parts):
            if _engine_pid(self.storage) not in (engine, None):
                self._require_no_failure()
            if time.monotonic() > deadline:
                raise HandlerError(f"the app did not switch over within {TAKE_OVER_S:.0f} s; see the engine's log")
            time.sleep(POLL_S)  # no message announces the switch, and this waits only once, for a few seconds

    def _require_no_failure(self) -> None:
        engine = self.storage.control().latest(EngineStatus)
        for part in self.parts:
            node = engine.node(part.name) if engine is not None else None
            if node is not None and node.state == "failed":
                raise HandlerError(f"could not switch to the new code: {node.error}")
            if node is not None and node.state == "running" and not part.is_taken_over():
                why = f"`{command_line(self.target, self.storage, 'plan')}` says why"
                raise HandlerError(f"{part.name} runs the new code, but has not adopted the rebuild; {why}")

    def close(self) -> None:
        """Stop Spark, if it was started, and close the log."""
        if self._spark is not None:
            self._spark.stop()
        self.log.close()


def succeed(storage: Storage, target: str) -> None:
    """Ask the supervisor of a running app to switch to another file. Raises `DiskFull` if that cannot be
    written."""
    if not storage.control().publish(Successor(target=absolute(target))):
        raise DiskFull(f"cannot write to {storage.location}, so the running app was not asked to switch to {target}")


def _engine_pid(storage: Storage) -> int | None:
    """Return the process id of the engine, which changes when the app switches to a rebuild."""
    status = storage.control().latest(SupervisorStatus)
    return status.engine.pid if status is not None else None
