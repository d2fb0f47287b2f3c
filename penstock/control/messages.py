"""Messages between processes: their fields and their JSON encoding.

Readers ignore unknown fields, and fields added later have defaults, so processes from different releases can read each
other's messages. `FORMAT` is increased for a change that an older reader would misinterpret. Messages in a newer format
are rejected.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal, TypeVar

import msgspec

from penstock.core.cursor import Positions
from penstock.core.errors import Damaged, NewerFormat

FORMAT = 1
NodeState = Literal["starting", "running", "failed"]
EngineState = Literal["starting", "ready", "stopped"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of all control messages. `name` is the name of the message kind. The channel sets `published_at`."""

    name: ClassVar[str]
    format: int = FORMAT
    published_at: datetime | None = None


class StatusColumn(msgspec.Struct, frozen=True):
    """A column of a view's rows; `type` is Spark's name for its type."""

    name: str
    type: str


class WindowTiming(msgspec.Struct, frozen=True):
    """The delay with which a view's operator emits results. The operator holds each result back until the watermark has
    passed it.

    Windows of length `length_us` begin at `origin_us` and every `step_us` after that. If `step_us` is 0, a result is
    held until `length_us` after its event.
    """

    length_us: int
    step_us: int = 0
    origin_us: int = 0


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State and progress of a view or handler. `positions` contains the next offset to read from each partition. If the
    state is `failed`, `error` contains a human-readable reason."""

    state: NodeState
    error: str | None = None
    columns: tuple[StatusColumn, ...] = ()
    batch_id: int | None = None
    batch_ms: float | None = None
    positions: Positions = {}


class ViewStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a view that reads streams. `watermark` is None before the first event."""

    node: NodeStatus
    watermark: datetime | None = None
    window_timings: tuple[WindowTiming, ...] = ()


class DerivedViewStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a derived view. Each batch is one computation, and `positions` are the log positions of the input
    rows."""

    node: NodeStatus


class HandlerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures about a handler's state and work. `time_us` is the log time that the handler has reached, and
    `next_timer_us` is the log time of its next timer. `rebuilt` contains one sentence for each shard whose state was
    damaged and then rebuilt from the log."""

    shards: int
    keys: int
    state_bytes: int
    digest: str
    next_timer_us: int | None
    emitted: int
    failed: int
    events: int
    time_us: int
    run_s: float
    read_s: float
    write_s: float
    delta_bytes: int
    snapshot_bytes: int
    replica_hits: int
    replica_catch_ups: int
    replica_loads: int
    rebuilt: tuple[str, ...] = ()


class HandlerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a handler. `figures` is None until the handler's files are open."""

    node: NodeStatus
    figures: HandlerFigures | None = None


class EngineStatus(Message, frozen=True, kw_only=True):
    """Status of the engine and of all views and handlers, by name. A handler that writes a view is listed in
    `handlers`; its view is not listed.

    `doing` describes the current startup step. `view_changed_at_us` contains the log time of the latest change to each
    view whose changes are read as a stream.
    """

    name: ClassVar[str] = "engine"
    epoch: int
    state: EngineState
    doing: str = ""
    views: dict[str, ViewStatus] = {}
    derived_views: dict[str, DerivedViewStatus] = {}
    handlers: dict[str, HandlerStatus] = {}
    view_changed_at_us: dict[str, int] = {}

    def node(self, name: str) -> NodeStatus | None:
        """Return the status of a view or handler, or None if the engine has not reported it yet."""
        status: ViewStatus | DerivedViewStatus | HandlerStatus | None
        status = self.views.get(name) or self.derived_views.get(name) or self.handlers.get(name)
        return status.node if status is not None else None

    def view_nodes(self) -> dict[str, NodeStatus]:
        """Return the status of each view, including derived views."""
        streaming = {name: status.node for name, status in self.views.items()}
        return streaming | {name: status.node for name, status in self.derived_views.items()}


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """The last unexpected exit of a process. `monotonic_s` is the time of the exit on the monotonic clock, which all
    processes on a machine share. `how` is a phrase such as `was ended by SIGKILL`."""

    monotonic_s: float
    how: str


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a process that the supervisor runs. `pid` is None while it is down. `restarts` is the number of
    restarts since the app started."""

    pid: int | None
    restarts: int = 0
    last_death: Death | None = None


class SupervisorStatus(Message, frozen=True, kw_only=True):
    """Status of the two processes that the supervisor runs."""

    name: ClassVar[str] = "supervisor"
    gateway: ProcessStatus
    engine: ProcessStatus


class HealthProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with the app, as reported by `/v1/health`. `page` is the dashboard page to look at."""

    kind: str
    name: str
    cause: str
    level: str
    message: str
    page: str


class HealthStatus(Message, frozen=True, kw_only=True):
    """The app's state and problems, for the supervisor's console."""

    name: ClassVar[str] = "health"
    state: str
    problems: tuple[HealthProblem, ...] = ()


class Successor(Message, frozen=True, kw_only=True):
    """A request to continue with a different app file. The supervisor withdraws the message before acting on it."""

    name: ClassVar[str] = "successor"
    target: str


class RebuildFloor(Message, frozen=True, kw_only=True):
    """The lowest offsets that a rebuild still has to read. Retention keeps everything at or above them. Valid while the
    rebuild holds its lock."""

    name: ClassVar[str] = "rebuild"
    positions: Positions


M = TypeVar("M", bound=Message)


class _Head(msgspec.Struct):
    format: int


def encode(message: Message) -> bytes:
    """Encode a control message as JSON."""
    return msgspec.json.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """Decode the output of `encode` to a control message of this kind. Raises `NewerFormat` if a later release wrote
    the message in a format that this release cannot read. Raises `Damaged` if the bytes are not a valid message of this
    kind."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format > FORMAT:
            raise NewerFormat(f"it has format {head.format}, but this version of Penstock reads up to {FORMAT}")
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Damaged(f"it is not a valid {kind.name!r} message: {error}") from None
