"""What became of an event: from its acknowledgement to the views and handlers that have taken it, and what it caused.

Nothing is kept for this but the key that signs acknowledgements. An acknowledgement says where its events stand in the
log; the history of a view or handler says which batch came past them, and what that batch appended; and the id of an
event that a handler emitted says what it came of.
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

from penstock.access import Caller
from penstock.app import App
from penstock.columns import event_rows, json_rows
from penstock.contracts import LogReader
from penstock.cursor import Ack, AckSigner, Span
from penstock.declared import Handler, Keeper, View
from penstock.errors import BadCursor, BadParameter, NotFound, Overloaded, PenstockError
from penstock.graph import read_streams
from penstock.rows import from_micros, micros_of
from penstock.runtime.directory import DataDirectory
from penstock.runtime.progress import Batches, Places, Progress, Run, last_of, output_ranges
from penstock.schema import fields
from penstock.settings import Settings
from penstock.store import History, LiveTable

CAUSED_MAX = 1_000
"""Events that one answer gives of each stream. More were caused, if there are so many."""

THREADS = 2
"""They read the log for those who ask, however much that is; other work has threads of its own."""
WAIT_S = 5.0
"""How often to look again for a view's version, in case it was made anew."""
Node = View | Handler
P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Caused:
    """Events of one stream that others caused: as JSON, and where they stand."""

    events: list[bytes] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


class Acks:
    """Answers for one app. Belongs to the gateway's event loop; the log is read in threads."""

    def __init__(
        self,
        app: App,
        directory: DataDirectory,
        log: LogReader,
        tables: Mapping[str, LiveTable],
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
        paths = {view.name: directory.view_file(view.name) for view in app.queries}
        paths |= {handler.name: directory.handler_ledger(handler.name) for handler in app.handlers}
        self._progress = {name: Progress(History(path)) for name, path in paths.items()}
        self._batches = {name: Batches(path) for name, path in paths.items()}
        self._classes = {stream.name: stream.event for stream in (*app.streams, *app.outputs)}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for each in self._progress.values():
            each.history.close()
        for batches in self._batches.values():
            batches.close()

    async def describe(self, text: str, caller: Caller) -> dict[str, Any]:
        """The body of `GET /v1/acks/{ack}`, for who may send to its stream or read all of it. Views and handlers are
        named, and what was caused is shown, as far as the caller may read them. `NotFound` if that is no
        acknowledgement of this app, `Overloaded` if too many ask at once."""
        ack = self._signer.read(text)
        if not caller.may("produce", ack.stream):
            caller.require_all(ack.stream)
        self._require_ours(ack)
        if self._asking >= self._replies_max:
            raise Overloaded(f"{self._asking} requests ask about acknowledgements already", retry_after_s=1)
        self._asking += 1
        try:
            return await self._described(ack, caller)
        finally:
            self._asking -= 1

    async def _described(self, ack: Ack, caller: Caller) -> dict[str, Any]:
        logged, processed = await self._in_thread(self._logged, ack), list[dict[str, Any]]()
        pending = [Places(ack.stream, ack.spans)]
        while pending:
            places = pending.pop(0)
            for node in self._readers(places.stream):
                entry, caused = await self._node(node, places)
                if _is_known(node, caller):
                    processed.append(_seen_by(caller, entry, ack.stream))
                pending += [Places(name, each.spans) for name, each in caused.items() if each.spans]
        count = sum(span.count for span in ack.spans)
        return {"stream": ack.stream, "events": count, "logged": logged, "processed": processed}

    async def _in_thread(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *given, **named))

    def require_target(self, stream: str, target: str) -> None:
        """As the contract has it, before anything is taken."""
        self._way(stream, target)
        if self._replies >= self._replies_max:
            raise Overloaded(f"{self._replies} requests wait for a reply already", retry_after_s=1)

    async def reply(
        self, text: str, target: str, timeout_s: float, may_read: Callable[[str], bool]
    ) -> dict[str, Any] | None:
        """What the acknowledged events caused in a stream or view, as soon as it is there; None if that takes longer,
        or if too many wait by now: the events are taken, and it can be asked for later."""
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
            raise NotFound("this acknowledgement is not of a stream of this app, or the stream was made anew")

    def _is_ours(self, ack: Ack) -> bool:
        """Whether it names events of the log, and no more than a request has: a signed one does, unless the stream was
        recreated or the setting lowered since. So nobody has all of the log read, whoever has the key."""
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
        """The views and handlers that take events of a stream, derived views by way of others."""
        every: list[Node] = [*self._app.handlers, *self._app.queries]
        return [node for node in every if stream in read_streams(self._app, node)]

    def _logged(self, ack: Ack) -> datetime | None:
        """When the events were taken; None if they are no longer kept."""
        last = ack.spans[-1]
        offset = last.first + last.count - 1
        try:
            *_, batch = self._log.read(ack.stream, last.partition, offset, offset + 1)
        except BadCursor:
            return None
        return from_micros(micros_of(batch.column("_ingest_time"))[0])

    async def _node(self, node: Node, places: Places) -> tuple[dict[str, Any], dict[str, Caused]]:
        """What one view or handler did with events, and what they caused. How far the history goes is how long that
        is known."""
        kind, done = "handler" if isinstance(node, Handler) else "view", self._progress[node.name].reached(places)
        runs = await self._in_thread(self._batches[node.name].of, places) if done else None
        at = from_micros(last_of(runs).at_us) if runs is not None else None
        entry: dict[str, Any] = {kind: node.name, "of": places.stream, "done": done, "at": at}
        if isinstance(node, View) or runs is None:
            return entry, {}
        caused = await self._in_thread(self._caused, node, places, runs)
        entry["output"] = {name: _shown(each) for name, each in caused.items() if each.events}
        return entry, caused

    def _caused(self, handler: Handler, places: Places, runs: Sequence[Run]) -> dict[str, Caused]:
        """What a handler emitted because of events, and those that it failed on, by stream. Reads what the batches
        emitted that had these events, and nothing of those between."""
        found: dict[str, Caused] = {}
        for output in handler.outputs:
            caused = found[output.name] = Caused()
            for partition, start, end in output_ranges(runs, output.name):
                for offset, batch in self._rows(output.name, partition, start, end):
                    _pick(batch, handler.name, places, Span(partition, offset, batch.num_rows), caused)
        return found

    def _rows(self, stream: str, partition: int, start: int, end: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of a range with their offsets, as far as they are kept."""
        start = max(start, self._log.starts(stream)[partition])
        if start < end:
            for batch in self._log.read(stream, partition, start, end):
                yield start, batch
                start += batch.num_rows

    def _way(self, stream: str, target: str) -> list[tuple[str, Node]]:
        """The views and handlers between a stream and what is asked for, in order, each with the stream that it reads
        of those between: the shortest way."""
        ways: list[tuple[str, list[tuple[str, Node]]]] = [(stream, [])]
        while ways:
            name, way = ways.pop(0)
            for node in self._readers(name):
                so_far = [*way, (name, node)]
                view = _view_of(node)
                if view is not None and view.name == target:
                    self._require_key(view, name)
                    return so_far
                if isinstance(node, View):
                    continue
                names = [output.name for output in node.outputs]
                if target in names:
                    return so_far
                ways += [(each, so_far) for each in names]
        raise BadParameter(
            f"no event of {stream} causes one of {target[:80]!r}: name a view that reads {stream}, or what a handler "
            "makes of it",
            parameter="reply",
        )

    def _require_key(self, view: View, stream: str) -> None:
        known = {each.name for each in fields(self._classes[stream])}
        missing = [name for name in view.key if name not in known]
        if missing:
            raise BadParameter(
                f"view {view.name} is kept by {missing[0]}, which is no field of {stream}: so none of its rows belongs "
                "to an event",
                parameter="reply",
            )

    async def _followed(self, ack: Ack, target: str, may_read: Callable[[str], bool]) -> dict[str, Any]:
        """From node to node, until the target, or until one makes nothing of the events, or fails on them."""
        way, spans = self._way(ack.stream, target), list(ack.spans)
        for (stream, node), following in zip(way, [*(stream for stream, _ in way[1:]), target], strict=True):
            places, progress = Places(stream, spans), self._progress[node.name]
            await progress.wait(places)
            runs = await self._in_thread(self._batches[node.name].of, places)
            if runs is None:
                return {"events": None}
            view = _view_of(node)
            if view is not None and view.name == target:
                return {"rows": await self._view_rows(view, places, last_of(runs).version)}
            assert isinstance(node, Handler)
            caused = await self._in_thread(self._caused, node, places, runs)
            made, failures = caused[following], f"{node.name}.failed"
            failed = caused[failures]
            if failed.events or following == target or not made.spans:
                shown = _shown(made) if following == target else []
                told = _shown(failed) if may_read(failures) else []
                return {"events": shown} | ({"failed": told} if failed.events else {})
            spans = made.spans
        raise AssertionError("a way ends with the target")

    async def _view_rows(self, view: View, places: Places, version: int) -> list[msgspec.Raw]:
        """The view's rows for the keys of events, in a version that has these events in it."""
        table = self._tables[view.name]
        while not await table.wait(version - 1, WAIT_S):
            pass
        keys = await self._in_thread(self._keys, view, places)
        rows = (table.row(key) for key in dict.fromkeys(keys))
        return [msgspec.Raw(row) for row in rows if row is not None]

    def _keys(self, view: View, places: Places) -> list[str]:
        return [
            key.decode()
            for partition, spans in places.spans.items()
            for span in spans
            for batch in self._log.read(places.stream, partition, span.first, span.first + span.count)
            for key in json_rows(batch, view.key)
        ]


def _is_known(node: Node, caller: Caller) -> bool:
    """Whether the caller is told that there is such a view or handler: if it may read that, or a stream of it."""
    names = [node.name, *(output.name for output in node.outputs)] if isinstance(node, Handler) else [node.name]
    return any(caller.may("consume", name) for name in names)


def _seen_by(caller: Caller, entry: dict[str, Any], sent_to: str) -> dict[str, Any]:
    """An entry without the streams that the caller may not read: in `output`, and in `of`, if the events were not sent
    there by the caller."""
    if not (entry["of"] == sent_to or caller.may("consume", entry["of"]) or caller.may("produce", entry["of"])):
        entry = entry | {"of": None}
    if "output" in entry:
        entry = entry | {"output": {name: each for name, each in entry["output"].items() if caller.may_read_all(name)}}
    return entry


def _view_of(node: Node) -> View | None:
    """The view that it makes, if that is what it makes."""
    return node.view if isinstance(node, Keeper) else node if isinstance(node, View) else None


def _shown(caused: Caused) -> list[msgspec.Raw]:
    return [msgspec.Raw(row) for row in caused.events]


def _pick(batch: pa.RecordBatch, handler: str, places: Places, span: Span, caused: Caused) -> None:
    """Add those of a batch's events, which stand at `span`, that came of the events at `places`. Their ids say so:
    HANDLER/STREAM/PARTITION/OFFSET/NUMBER. One that a timer made has a longer one."""
    prefix = f"{handler}/{places.stream}/"
    ids = batch.column("_id")
    for row in pc.indices_nonzero(pc.fill_null(pc.starts_with(ids, pattern=prefix), False)).to_pylist():
        way = ids[row].as_py().removeprefix(prefix).split("/")
        if len(way) == 3 and (int(way[0]), int(way[1])) in places and len(caused.events) < CAUSED_MAX:
            caused.events += event_rows(batch.slice(row, 1))
            caused.spans.append(Span(span.partition, span.first + row, 1))
