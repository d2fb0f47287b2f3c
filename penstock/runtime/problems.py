"""What is wrong with a running app: from when it is first seen until it has really recovered.

Between two tries of a view that fails, or two events that a handler fails on, there is a moment in which nothing is
wrong. So a problem is there until there was no sign of it for some time (`recovered_s`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

from penstock.contracts import SourceStatus
from penstock.settings import Settings

Level = Literal["amber", "red"]
"""Amber: it runs, and needs someone to look at it. Red: some of it does not run."""
CONNECTED = "connected"
Cause = Literal["failed", "events", "disconnected", "died", "recovering"]
"""`events`: a handler runs, and fails on some of them. `recovering`: it is well again, but was not a while ago."""
Sign = tuple[str, str, Cause, Level, str, str]
"""The kind, the name, the cause, the level, the headline and the detail of a problem."""
_coded = re.compile(
    r"(?:[^:\n]*:\d+: (?:view|handler) [^:\s]+: )?(?:\[([A-Z0-9_.]+)\] |(\w+(?:\.\w+)*(?:Error|Exception)): )"
).match


def error_code(text: str) -> str:
    """Return what kind of error a text begins with: Spark's error class or the class of an exception; else ""."""
    found = _coded(text)
    return "" if found is None else found[1] or found[2]


def without_detail(text: str | None) -> str | None:
    """Return an error for those who may not see all rows: the text may quote a value of any row."""
    return None if text is None else error_code(text) or "failed"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, named as in `handler tell`. `headline` says what, for people, and holds no value of a
    row; `detail` says why, and may hold one."""

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
        """Return the message, or, without details, the headline with the class of the error."""
        if details or not self.detail:
            return self.message
        return f"{self.headline} ({error_code(self.detail) or 'the log says why'})"

    def told(self, *, details: bool = True) -> dict[str, Any]:
        """As `/v1/health` and `/v1/app` have it. `page` is where to look, in the dashboard."""
        page = f"#/{self.kind}s/{self.name}" if self.kind in ("view", "handler", "stream") else "#/"
        return {
            "kind": self.kind,
            "name": self.name,
            "cause": self.cause,
            "level": self.level,
            "message": self.text(details=details),
            "since": self.since,
            "page": page,
        }


@dataclass
class _Fault:
    """A view or handler that has failed: how often, when it was last seen to be down, and why."""

    times: int = 0
    seen_at: float = 0.0
    error: str = ""
    down: bool = False


@dataclass
class _Failures:
    """The events that a handler has failed on: how many there are in all, and how many came when."""

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
    """A source: for how long it was cut off since it was last well, and for how long it has been connected since."""

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
    now: float, processes: Mapping[str, Mapping[str, Any]], recovered_s: float, *, engine_starts: bool
) -> Iterator[Sign]:
    """A process that died lately, by what the supervisor says: how often it was restarted, how it last ended, and when,
    in monotonic time, which all processes of a machine share. An engine has not recovered while it still starts."""
    for name, told in processes.items():
        died_at = told.get("died_at")
        starts = name == "engine" and engine_starts
        if died_at is not None and (starts or now - died_at <= recovered_s):
            times = "once" if told["restarts"] == 1 else f"{told['restarts']} times"
            yield (
                "process",
                name,
                "died",
                "amber",
                f"the {name} {told['ended']}; restarted {times} since the app started",
                "",
            )


class Problems:
    """Noted about once a second, in one thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._faults: dict[tuple[str, str], _Fault] = {}
        self._failures: dict[str, _Failures] = {}
        self._lines: dict[str, _Line] = {}
        self._sources: Mapping[str, SourceStatus] = {}
        self._since: dict[tuple[str, str], datetime] = {}
        self._noted_at: float | None = None
        self.found: list[Problem] = []

    def note(
        self,
        now: float,
        engine: Mapping[str, Any],
        sources: Mapping[str, SourceStatus],
        processes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """Take what the engine and the sources say of themselves, and what the supervisor says of both processes. `now`
        is monotonic time in seconds."""
        passed_s = now - (self._noted_at if self._noted_at is not None else now)
        self._noted_at, self._sources = now, sources
        for kind in ("view", "handler"):
            for name, node in engine.get(f"{kind}s", {}).items():
                self._note_node(now, kind, name, node)
        for name, source in sources.items():
            connected, recovered_s = source.state == CONNECTED, self._settings.recovered_s
            self._lines.setdefault(name, _Line()).note(passed_s, connected=connected, recovered_s=recovered_s)
        engine_starts = engine.get("state", "starting") == "starting"
        deaths = _process_signs(now, processes, self._settings.recovered_s, engine_starts=engine_starts)
        signs = [*deaths, *self._node_signs(), *self._source_signs()]
        self._since = {(kind, name): self._begin(kind, name) for kind, name, *_ in signs}
        self.found = [Problem(*sign, since=self._since[sign[0], sign[1]]) for sign in signs]

    def _begin(self, kind: str, name: str) -> datetime:
        return self._since.get((kind, name)) or datetime.now(UTC)

    def _note_node(self, now: float, kind: str, name: str, node: Mapping[str, Any]) -> None:
        fault = self._faults.setdefault((kind, name), _Fault())
        if node["state"] == "failed":
            fault.times += not fault.down
            fault.down, fault.error = True, node["error"] or "it failed"
        elif node["state"] == "running":  # starting again is not yet running
            fault.down = False
        if fault.down:
            fault.seen_at = now
        elif now - fault.seen_at > self._settings.recovered_s:
            fault.times = 0
        if kind == "handler" and node.get("failed") is not None:
            failures = self._failures.setdefault(name, _Failures(node["failed"]))
            failures.note(now, node["failed"], self._settings.recovered_s)

    def _node_signs(self) -> Iterator[Sign]:
        """The worst that is known of each view and handler."""
        for (kind, name), fault in self._faults.items():
            if fault.down:
                yield kind, name, "failed", "red", f"{kind} {name} failed", fault.error
            elif kind == "handler" and (sign := self._event_sign(name)) is not None:
                yield sign
            elif fault.times:
                times = "once" if fault.times == 1 else f"{fault.times} times"
                headline = f"{kind} {name} runs again, after it failed {times}"
                yield kind, name, "recovering", "amber", headline, fault.error

    def _event_sign(self, name: str) -> Sign | None:
        """That a handler has lately failed on more than a few events."""
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
                state = "is connected again, after it was cut off" if line.up_s else "is not connected"
                yield "source", name, cause, "amber", f"source {name} {state}", source.error or ""
