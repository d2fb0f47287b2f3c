"""Problems in a running app. A problem exists from its first sign until the app has really recovered.

Between two attempts to run a failing view, or between two events that a handler fails on, everything briefly looks
fine. Therefore a problem remains until there has been no sign of it for some time (`recovered_s`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from penstock.control import EngineStatus, HandlerStatus, HealthProblem, NodeStatus, SupervisorStatus
from penstock.core.contracts import SourceStatus
from penstock.core.settings import Settings

Level = Literal["amber", "red"]
"""Amber: the app runs, but a person should look at the problem. Red: a part of the app does not run."""
CONNECTED = "connected"
Cause = Literal["failed", "events", "disconnected", "died", "recovering"]
"""`events`: a handler is running, but fails on some events. `recovering`: a view or handler is running again, but
failed recently."""
Sign = tuple[str, str, Cause, Level, str, str]
"""The kind, the name, the cause, the level, the headline and the detail of a problem."""
_coded = re.compile(
    r"(?:[^:\n]*:\d+: (?:view|handler) [^:\s]+: )?(?:\[([A-Z0-9_.]+)\] |(\w+(?:\.\w+)*(?:Error|Exception)): )"
).match


def error_code(text: str) -> str:
    """Return the kind of error named at the beginning of a message (Spark's error class or an exception class), or ""
    if there is none."""
    match = _coded(text)
    return "" if match is None else match[1] or match[2]


def without_detail(text: str | None) -> str | None:
    """Return an error without its text, for people who are not allowed to see all rows. The text may quote values from
    any row."""
    return None if text is None else error_code(text) or "failed"


@dataclass(frozen=True)
class RuntimeProblem:
    """One problem in a running app, with a kind and a name such as `handler totals`. `headline` describes the problem
    without values from rows. `detail` explains the cause, and can contain such values."""

    kind: str
    name: str
    cause: Cause
    level: Level
    headline: str
    detail: str
    since: datetime

    @property
    def message(self) -> str:
        return f"{self.headline}: {self.detail}" if self.detail else self.headline

    def text(self, *, details: bool) -> str:
        """Return the problem's message. Without `details`, return only the headline and the class of the error."""
        if details or not self.detail:
            return self.message
        return f"{self.headline} ({error_code(self.detail) or 'the log says why'})"

    def to_dict(self, *, details: bool = True) -> dict[str, Any]:
        """Return the problem in the format of `/v1/health` and `/v1/app`."""
        return {
            "kind": self.kind,
            "name": self.name,
            "cause": self.cause,
            "level": self.level,
            "message": self.text(details=details),
            "since": self.since,
            "page": self.page,
        }

    @property
    def page(self) -> str:
        """Return the page of the dashboard that shows the problem."""
        return f"#/{self.kind}s/{self.name}" if self.kind in ("view", "handler", "stream") else "#/"

    def to_message(self) -> HealthProblem:
        return HealthProblem(
            kind=self.kind, name=self.name, cause=self.cause, level=self.level, message=self.message, page=self.page
        )


@dataclass
class _Fault:
    """A failed view or handler: how often it has failed, and when and why it was last down."""

    times: int = 0
    seen_at: float = 0.0
    error: str = ""
    down: bool = False


@dataclass
class _Failures:
    """Events that a handler has failed on: the total number, and the times of recent failures."""

    total: int
    lately: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, total: int, window_s: float) -> None:
        if total > self.total:
            self.lately.append((now, total - self.total))
        self.total = total
        while self.lately and now - self.lately[0][0] > window_s:
            self.lately.popleft()

    @property
    def count(self) -> int:
        return sum(count for _, count in self.lately)


@dataclass
class _Line:
    """A source's connection: how long it has been disconnected since it was last healthy, and for how long it has now
    been connected again."""

    down_s: float = 0.0
    up_s: float = 0.0

    def note(self, passed_s: float, *, connected: bool, recovered_s: float) -> None:
        if not connected:
            self.down_s, self.up_s = self.down_s + passed_s, 0.0
            return
        self.up_s += passed_s
        if self.up_s >= recovered_s:
            self.down_s = 0.0


def _process_signs(
    now: float, supervisor: SupervisorStatus, recovered_s: float, *, engine_starts: bool
) -> Iterator[Sign]:
    """Yield a sign for each process that has died recently, according to the supervisor. An engine that is still
    starting does not count as recovered."""
    for name, process in (("gateway", supervisor.gateway), ("engine", supervisor.engine)):
        death = process.last_death
        starts = name == "engine" and engine_starts
        if death is not None and (starts or now - death.monotonic_s <= recovered_s):
            times = "once" if process.restarts == 1 else f"{process.restarts} times"
            headline = f"the {name} {death.how}; restarted {times} since the app started"
            yield "process", name, "died", "amber", headline, ""


class Problems:
    """Current problems of an app. Updated about once a second, in one thread."""

    def __init__(self, settings: Settings, failed_lately: Callable[[str], Sequence[float]] = lambda name: ()) -> None:
        """`failed_lately` is called once for each handler, and returns how many seconds ago its latest failures were
        stored, so that they still count after a restart."""
        self._settings, self._failed_lately = settings, failed_lately
        self._faults: dict[tuple[str, str], _Fault] = {}
        self._failures: dict[str, _Failures] = {}
        self._lines: dict[str, _Line] = {}
        self._sources: Mapping[str, SourceStatus] = {}
        self._since: dict[tuple[str, str], datetime] = {}
        self._noted_at: float | None = None
        self.current: list[RuntimeProblem] = []

    def note(
        self,
        now: float,
        engine: EngineStatus | None,
        sources: Mapping[str, SourceStatus],
        supervisor: SupervisorStatus | None = None,
    ) -> None:
        """Update the problems from the reports of the engine and the sources, and from the supervisor's report on the
        engine and the gateway. A missing report is None. `now` is monotonic time in seconds."""
        passed_s = now - (self._noted_at if self._noted_at is not None else now)
        self._noted_at, self._sources = now, sources
        if engine is not None:
            for name, node in engine.view_nodes().items():
                self._note_node(now, "view", name, node)
            for name, handler in engine.handlers.items():
                self._note_node(now, "handler", name, handler.node)
                self._note_failures(now, name, handler)
        for name, source in sources.items():
            connected, recovered_s = source.state == CONNECTED, self._settings.recovered_s
            self._lines.setdefault(name, _Line()).note(passed_s, connected=connected, recovered_s=recovered_s)
        signs = [*self._node_signs(), *self._source_signs()]
        if supervisor is not None:
            starts = engine is None or engine.state == "starting"
            deaths = _process_signs(now, supervisor, self._settings.recovered_s, engine_starts=starts)
            signs = [*deaths, *signs]
        self._since = {(kind, name): self._problem_began(kind, name) for kind, name, *_ in signs}
        self.current = [RuntimeProblem(*sign, since=self._since[sign[0], sign[1]]) for sign in signs]

    def _problem_began(self, kind: str, name: str) -> datetime:
        return self._since.get((kind, name)) or datetime.now(UTC)

    def _note_node(self, now: float, kind: str, name: str, node: NodeStatus) -> None:
        fault = self._faults.setdefault((kind, name), _Fault())
        if node.state == "failed":
            fault.times += not fault.down
            fault.down, fault.error = True, node.error or "it failed"
        elif node.state == "running":  # a restarted node is not yet running
            fault.down = False
        if fault.down:
            fault.seen_at = now
        elif now - fault.seen_at > self._settings.recovered_s:
            fault.times = 0

    def _note_failures(self, now: float, name: str, handler: HandlerStatus) -> None:
        if handler.figures is not None:
            if name not in self._failures:
                ages = sorted(self._failed_lately(name), reverse=True)
                self._failures[name] = _Failures(handler.figures.failed, deque((now - age, 1) for age in ages))
            failures = self._failures[name]
            failures.note(now, handler.figures.failed, self._settings.recovered_s)

    def _node_signs(self) -> Iterator[Sign]:
        """Yield a sign of the worst problem with each view and handler."""
        for (kind, name), fault in self._faults.items():
            if fault.down:
                yield kind, name, "failed", "red", f"{kind} {name} failed", fault.error
            elif kind == "handler" and (sign := self._event_sign(name)) is not None:
                yield sign
            elif fault.times:
                times = "once" if fault.times == 1 else f"{fault.times} times"
                headline = f"{kind} {name} is running again, after it failed {times}"
                yield kind, name, "recovering", "amber", headline, fault.error

    def _event_sign(self, name: str) -> Sign | None:
        """Return a sign if a handler has recently failed on more than a few events, or None otherwise."""
        count = self._failures[name].count if name in self._failures else 0
        if not count or count < self._settings.failed_amber:
            return None
        level: Level = "red" if count >= self._settings.failed_red else "amber"
        events = "an event, which is" if count == 1 else f"{count:,} events, which are"
        return "handler", name, "events", level, f"handler {name} failed on {events} in {name}.failed", ""

    def _source_signs(self) -> Iterator[Sign]:
        for name, source in self._sources.items():
            line = self._lines[name]
            if source.state == "failed":
                yield "source", name, "failed", "red", f"source {name} failed", source.error or ""
            elif line.down_s and line.down_s >= self._settings.source_down_s:
                cause: Cause = "recovering" if line.up_s else "disconnected"
                state = "is connected again, after its connection was lost" if line.up_s else "is not connected"
                yield "source", name, cause, "amber", f"source {name} {state}", source.error or ""
