"""Trace an event from its acknowledgement to the views and handlers that have processed it, and to the events that it
caused.

Nothing is stored for this except the key that signs acknowledgements. An acknowledgement names the log positions of its
events. The history of a view or handler names the batch that included these events, and the batch's output. The id of
an event that a handler emitted names the event that caused it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.app.app import App
from penstock.app.declared import Handler, View, ViewHandler
from penstock.app.graph import read_streams
from penstock.core.access import Caller
from penstock.core.columns import event_rows, json_rows
from penstock.core.contracts import LogReader
from penstock.core.cursor import Ack, AckSigner, Span
from penstock.core.errors import BadCursor, BadParameter, NotFound, Overloaded, PenstockError
from penstock.core.schema import OFFSET_COLUMN, fields
from penstock.core.settings import Settings
from penstock.core.times import from_micros, micros_of
from penstock.runtime.progress import Batches, BatchRun, LogPositions, ProgressTracker, last_of, output_ranges
from penstock.runtime.storage import Storage
from penstock.store import StoredLiveView

CAUSED_MAX = 1_000
"""Maximum number of caused events in one response, for each stream. A response with this many may be incomplete."""

THREADS = 2
"""Number of threads that read the log for these requests, so long reads do not delay other work."""
WAIT_S = 5.0
"""Longest single wait for a view's next version, in seconds. The wait is repeated until the version is there."""
Node = View | Handler
P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Caused:
    """Events of one stream that acknowledged events caused, as JSON, with their log positions."""

    events: list[bytes] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


class Acks:
    """Traces acknowledged events for one app. Used only in the gateway's event loop; the log is read in threads."""

    def __init__(
        self,
        app: App,
        storage: Storage,
        log: LogReader,
        tables: Mapping[str, StoredLiveView],
        settings: Settings,
        signer: AckSigner,
    ) -> None:
        self._app = app
        self._signer = signer
        self._log = log
        self._tables = tables
        self._events_max = settings.request_events_max
        self._replies_max = settings.replies_max
        self._replies = 0
        self._asking = 0
        self._threads = ThreadPoolExecutor(THREADS, "acks")
        histories = {view.name: partial(storage.view_history, view.name) for view in app.queries}
        histories |= {handler.name: partial(storage.handler_history, handler.name) for handler in app.handlers}
        self._progress = {name: ProgressTracker(history()) for name, history in histories.items()}
        self._batches = {name: Batches(history()) for name, history in histories.items()}
        self._classes = {stream.name: stream.event for stream in (*app.streams, *app.outputs)}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for tracker in self._progress.values():
            tracker.history.close()
        for batches in self._batches.values():
            batches.close()

    async def describe(self, text: str, caller: Caller) -> dict[str, Any]:
        """Return the body of `GET /v1/acks/{ack}`.

        The caller must be allowed to send to the stream or to read the whole stream. The body lists only the views,
        handlers and caused events that the caller is allowed to read. Raises `NotFound` if `text` is not an
        acknowledgement of this app, and `Overloaded` if too many such requests are in progress.
        """
        ack = self._signer.read(text)
        if not caller.may("produce", ack.stream):
            caller.require_all(ack.stream)
        self._require_ours(ack)
        if self._asking >= self._replies_max:
            raise Overloaded(f"{self._asking} requests about acknowledgements are already in progress", retry_after_s=1)
        self._asking += 1
        try:
            return await self._described(ack, caller)
        finally:
            self._asking -= 1

    async def _described(self, ack: Ack, caller: Caller) -> dict[str, Any]:
        logged, processed = await self._in_thread(self._logged, ack), list[dict[str, Any]]()
        pending = [LogPositions(ack.stream, ack.spans)]
        while pending:
            positions = pending.pop(0)
            for node in self._readers(positions.stream):
                entry, caused = await self._node(node, positions)
                if _may_know_result(node, caller):
                    processed.append(_ack_entry_for(caller, entry, ack.stream))
                pending += [LogPositions(name, effect.spans) for name, effect in caused.items() if effect.spans]
        count = sum(span.count for span in ack.spans)
        return {"stream": ack.stream, "events": count, "logged": logged, "processed": processed}

    async def _in_thread(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *given, **named))

    def require_target(self, stream: str, target: str) -> None:
        """Implement `Replies.require_target`: reject an invalid target before any event is stored."""
        self._way(stream, target)
        if self._replies >= self._replies_max:
            raise Overloaded(f"{self._replies} requests are already waiting for a reply", retry_after_s=1)

    async def reply(
        self, text: str, target: str, timeout_s: float, may_read: Callable[[str], bool]
    ) -> dict[str, Any] | None:
        """Return the events or rows that the acknowledged events caused in a stream or view, as soon as they are
        stored. Returns None if that takes longer than `timeout_s`, or if too many requests are waiting; the events are
        stored either way, and the client can ask later."""
        if self._replies >= self._replies_max:
            return None
        self._replies += 1
        try:
            async with asyncio.timeout(timeout_s):
                ack = self._signer.read(text)
                self._require_ours(ack)
                return await self._followed(ack, target, may_read)
        except TimeoutError:
            return None
        finally:
            self._replies -= 1

    def _require_ours(self, ack: Ack) -> None:
        if ack.stream not in self._classes or not self._is_ours(ack):
            raise NotFound("this acknowledgement does not belong to a stream of this app, or the stream was recreated")

    def _is_ours(self, ack: Ack) -> bool:
        """Return whether an acknowledgement names events in the log, and no more events than a request may contain. A
        signed acknowledgement always does, unless the stream has since been recreated or the limit has been lowered.
        The check prevents someone who has the key from making the gateway read the whole log."""
        if sum(span.count for span in ack.spans) > self._events_max:
            return False
        try:
            generation, ends = self._log.generation(ack.stream), self._log.ends(ack.stream)
        except PenstockError:
            return False
        return generation == ack.generation and all(
            span.first + span.count <= ends.get(span.partition, 0) for span in ack.spans
        )

    def _readers(self, stream: str) -> list[Node]:
        """Return the views and handlers that read a stream, including derived views that read it through other
        views."""
        every: list[Node] = [*self._app.handlers, *self._app.queries]
        return [node for node in every if stream in read_streams(self._app, node)]

    def _logged(self, ack: Ack) -> datetime | None:
        """Return the ingest time of the acknowledged events, or None if they are no longer kept."""
        last = ack.spans[-1]
        offset = last.first + last.count - 1
        try:
            *_, batch = self._log.read(ack.stream, last.partition, offset, offset + 1)
        except BadCursor:
            return None
        return from_micros(micros_of(batch.column("_ingest_time"))[0])

    async def _node(self, node: Node, positions: LogPositions) -> tuple[dict[str, Any], dict[str, Caused]]:
        """Describe how one view or handler processed events, and what the events caused, as far back as its history
        goes."""
        kind, done = "handler" if isinstance(node, Handler) else "view", self._progress[node.name].has_read(positions)
        runs = await self._in_thread(self._batches[node.name].of, positions) if done else None
        at = from_micros(last_of(runs).at_us) if runs is not None else None
        entry: dict[str, Any] = {kind: node.name, "of": positions.stream, "done": done, "at": at}
        if isinstance(node, View) or runs is None:
            return entry, {}
        caused = await self._in_thread(self._caused, node, positions, runs)
        entry["output"] = {name: _caused_events(effect) for name, effect in caused.items() if effect.events}
        return entry, caused

    def _caused(self, handler: Handler, positions: LogPositions, runs: Sequence[BatchRun]) -> dict[str, Caused]:
        """Return the events that a handler emitted because of these events, and the events that it failed on, by
        stream. Reads only the output of the batches that included these events."""
        effects: dict[str, Caused] = {}
        for output in handler.outputs:
            caused = effects[output.name] = Caused()
            for partition, start, end in output_ranges(runs, output.name):
                for batch in self._rows(output.name, partition, start, end):
                    _add_caused(batch, handler.name, positions, partition, caused)
        return effects

    def _rows(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a range of the stream, except those that are no longer kept."""
        start = max(start, self._log.starts(stream)[partition])
        if start < end:
            yield from self._log.read(stream, partition, start, end)

    def _way(self, stream: str, target: str) -> list[tuple[str, Node]]:
        """Return the shortest path from a stream to the target: the views and handlers on it, in order, each with the
        stream that it reads on this path."""
        ways: list[tuple[str, list[tuple[str, Node]]]] = [(stream, [])]
        while ways:
            name, way = ways.pop(0)
            for node in self._readers(name):
                so_far = [*way, (name, node)]
                view = _traced_view(node)
                if view is not None and view.name == target:
                    self._require_key(view, name)
                    return so_far
                if isinstance(node, View):
                    continue
                names = [output.name for output in node.outputs]
                if target in names:
                    return so_far
                ways += [(output, so_far) for output in names]
        raise BadParameter(
            f"{target[:80]!r} is not derived from {stream}: use a view that reads {stream}, or an output "
            f"stream of a handler that reads {stream}",
            parameter="reply",
        )

    def _require_key(self, view: View, stream: str) -> None:
        known = {field.name for field in fields(self._classes[stream])}
        missing = [name for name in view.key if name not in known]
        if missing:
            raise BadParameter(
                f"view {view.name} has the key {missing[0]}, but {stream} has no such field, so no row of the view "
                "can be matched to an event",
                parameter="reply",
            )

    async def _followed(self, ack: Ack, target: str, may_read: Callable[[str], bool]) -> dict[str, Any]:
        """Follow the path node by node to the target, or to a node that emits nothing for the events or fails on
        them."""
        way, spans = self._way(ack.stream, target), list(ack.spans)
        for (stream, node), following in zip(way, [*(stream for stream, _ in way[1:]), target], strict=True):
            positions, progress = LogPositions(stream, spans), self._progress[node.name]
            await progress.wait(positions)
            runs = await self._in_thread(self._batches[node.name].of, positions)
            if runs is None:
                return {"events": None}
            view = _traced_view(node)
            if view is not None and view.name == target:
                return {"rows": await self._view_rows(view, positions, last_of(runs).version)}
            assert isinstance(node, Handler)
            caused = await self._in_thread(self._caused, node, positions, runs)
            effect, failures = caused[following], f"{node.name}.failed"
            failed = caused[failures]
            if failed.events or following == target or not effect.spans:
                shown = _caused_events(effect) if following == target else []
                failed_events = _caused_events(failed) if may_read(failures) else []
                return {"events": shown} | ({"failed": failed_events} if failed.events else {})
            spans = effect.spans
        raise AssertionError("a path ends with its target")

    async def _view_rows(self, view: View, positions: LogPositions, version: int) -> list[msgspec.Raw]:
        """Return the view's rows for the events' keys, as of a version that includes these events."""
        table = self._tables[view.name]
        while not await table.wait(version - 1, WAIT_S):
            pass
        keys = await self._in_thread(self._keys, view, positions)
        rows = (table.row(key) for key in dict.fromkeys(keys))
        return [msgspec.Raw(row) for row in rows if row is not None]

    def _keys(self, view: View, positions: LogPositions) -> list[str]:
        return [
            key.decode()
            for partition, spans in positions.spans.items()
            for span in spans
            for batch in self._log.read(positions.stream, partition, span.first, span.first + span.count)
            for key in json_rows(batch, view.key)
        ]


def _may_know_result(node: Node, caller: Caller) -> bool:
    """Return whether the caller may know that a view or handler exists. The caller may if it is allowed to read the
    view or handler, or a stream that the handler fills."""
    names = [node.name, *(output.name for output in node.outputs)] if isinstance(node, Handler) else [node.name]
    return any(caller.may("consume", name) for name in names)


def _ack_entry_for(caller: Caller, entry: dict[str, Any], sent_to: str) -> dict[str, Any]:
    """Return a node's entry without the streams that the caller is not allowed to read. This applies to the streams in
    `output`, and to the stream in `of` unless it is the stream that the caller sent the events to."""
    if not (entry["of"] == sent_to or caller.may("consume", entry["of"]) or caller.may("produce", entry["of"])):
        entry = entry | {"of": None}
    if "output" in entry:
        entry = entry | {
            "output": {name: events for name, events in entry["output"].items() if caller.may_read_all(name)}
        }
    return entry


def _traced_view(node: Node) -> View | None:
    """Return the view that a node maintains, or None if it does not maintain a view."""
    return node.view if isinstance(node, ViewHandler) else node if isinstance(node, View) else None


def _caused_events(caused: Caused) -> list[msgspec.Raw]:
    return [msgspec.Raw(row) for row in caused.events]


def _add_caused(batch: pa.RecordBatch, handler: str, positions: LogPositions, partition: int, caused: Caused) -> None:
    """Add the events of a batch in `partition` that were caused by the events at `positions`. The id of an emitted
    event names its cause: HANDLER/STREAM/PARTITION/OFFSET/NUMBER. Events emitted by timers have longer ids."""
    prefix = f"{handler}/{positions.stream}/"
    ids, offsets = batch.column("_id"), batch.column(OFFSET_COLUMN)
    for row in pc.indices_nonzero(pc.fill_null(pc.starts_with(ids, pattern=prefix), False)).to_pylist():
        way = ids[row].as_py().removeprefix(prefix).split("/")
        if len(way) == 3 and (int(way[0]), int(way[1])) in positions and len(caused.events) < CAUSED_MAX:
            caused.events += event_rows(batch.slice(row, 1))
            caused.spans.append(Span(partition, offsets[row].as_py(), 1))
