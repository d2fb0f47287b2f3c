"""The log once more through a handler, in plain single-threaded Python: to check, to look, to try out a change."""

from __future__ import annotations

import ast
import pdb
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec

from penstock.analyze.batches import Positions, batch_end, inputs, shard_ranges, spread
from penstock.analyze.inputs import Reading, read_inputs
from penstock.app import App, Handler
from penstock.columns import place
from penstock.contracts import LogReader
from penstock.cursor import StreamCursor, decode, source_positions
from penstock.errors import BadCursor, DeclarationError
from penstock.machine import Machine
from penstock.queue import EmbeddedLog
from penstock.rows import Inputs
from penstock.runtime.directory import DataDirectory
from penstock.schema import event_schema
from penstock.settings import Settings
from penstock.shard import Shard, digest_text
from penstock.store import Handled, read_handled

ROWS_MAX = 100_000


@dataclass
class Replayed:
    """What a replay came to."""

    handler: Handler
    machine: Machine
    shards: dict[int, Shard]
    events: int = 0
    outputs: dict[str, bytes] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return digest_text(sum(shard.digest for shard in self.shards.values()))

    def take(self, shard: Shard, rows: Inputs) -> None:
        """Run rows on a shard, and remember what came of them."""
        effects = self.machine.run(shard, rows)
        shard.apply(effects.changes)
        self.events += effects.events
        self.outputs |= {each.id: msgspec.json.encode(each.event, enc_hook=str) for each in effects.emitted}
        self.outputs |= {each.id: each.event.error.encode() for each in effects.failures}

    def states(self) -> dict[str, Any]:
        decode = self.machine.codec.decode
        return {key: decode(record).state for shard in self.shards.values() for key, record in shard.records.items()}


class Replay:
    """A handler and the log of a data directory, which is only read and may be a copy of one that is in use."""

    def __init__(self, app: App, handler: Handler, root: Path, settings: Settings) -> None:
        self.app, self.handler = app, handler
        self.directory = DataDirectory(root)
        handled = read_handled(self.directory.handler_ledger(handler.name))
        if handled is None or handled.entry is None:
            raise DeclarationError(f"{root} has nothing of the handler {handler.name!r}: it has never run there")
        self.handled: Handled = handled
        self.log: LogReader = EmbeddedLog(self.directory.streams, read_only=True)
        self.count, self.placed = spread(app, handler, settings)
        if self.count != handled.count:
            raise DeclarationError(
                f"{root} has {handled.count} shards of {handler.name}, and here there would be {self.count}: give the "
                "same number of partitions as it ran with (PENSTOCK_PARTITIONS)"
            )

    @property
    def digest(self) -> str:
        """What the run on Spark came to."""
        return digest_text(sum(int.from_bytes(each.digest, "little") for each in self.handled.shards.values()))

    def end(self, cursor: str | None) -> Positions:
        """Where to stop: at the cursor, which is one of the handler's first stream, or where the handler stands."""
        end = source_positions(self.handled.end)
        if cursor is None:
            return end
        first, found = self.handler.reads[0], decode(cursor)
        if not isinstance(found, StreamCursor) or found.generation != self.log.generation(first):
            raise BadCursor(f"this is not a cursor of the stream {first}")
        return end | {first: end[first] | found.offsets}

    def run(self, handler: Handler, end: Positions, key: str | None = None, app: App | None = None) -> Replayed:
        """Run a handler, the app's own or a changed one of another app, from where it began to `end`; on one key only,
        if it is given.

        Such a key is handled with care from the start, so that the function is called once for each of its events.
        """
        made = Replayed(handler, Machine(handler, careful=() if key is None else (key,)), {})
        classes = {name: stream.event for name, stream in inputs(app or self.app, handler).items()}
        numbers = range(self.count) if key is None else [place(key, self.count)]
        made.shards = {number: Shard() for number in numbers}
        for start, stop in self._batches(end):
            for number, shard in made.shards.items():
                reading = Reading(classes, handler.key, self.placed, number, self.count)
                rows = read_inputs(self.log, reading, shard_ranges(self.placed, number, start, stop))
                made.take(shard, rows if key is None else _only(rows, key))
        return made

    def require_comparable(self, app: App, changed: Handler) -> None:
        """Refuse a changed handler whose inputs are others than those that the log has been cut for."""
        if (changed.reads, changed.key) != (self.handler.reads, self.handler.key):
            raise DeclarationError(
                f"{changed.where}: the changed handler {changed.name} reads other streams, or by another key"
            )
        for name, stream in inputs(self.app, self.handler).items():
            new = set(event_schema(inputs(app, changed)[name].event).names) - set(event_schema(stream.event).names)
            if new:
                raise DeclarationError(f"{changed.where}: {', '.join(sorted(new))} of {name} is not in the log")

    def _batches(self, end: Positions) -> Iterator[tuple[Positions, Positions]]:
        position = source_positions(self.handled.origin)
        while position != end:
            following = batch_end(self.log, self.placed, position, end, ROWS_MAX)
            if following == position:
                following = end  # the rest is not aligned, since it ends at a cursor
            yield position, following
            position = following


def _only(rows: Inputs, key: str) -> Inputs:
    """The rows of one key, and the ticks. Nothing else has to do with its state."""
    events = list(rows.events)
    pairs = enumerate(zip(rows.keys, events, strict=True))
    mine = [row for row, (each, event) in pairs if each == key or event is None]
    return Inputs(
        [rows.keys[row] for row in mine],
        [events[row] for row in mine],
        [rows.times[row] for row in mine],
        lambda row: rows.id(mine[row]),
        lambda row: rows.place(mine[row]),
    )


def debugged(handler: Handler) -> Handler:
    """The handler, with the debugger at the first line of its function for each event."""
    code = handler.function.__code__
    first = min(line for _, _, line in code.co_lines() if line is not None and line >= _body(code))

    def function(state: Any, event: Any, ctx: Any) -> Any:
        debugger = pdb.Pdb(nosigint=True, readrc=False)
        debugger.rcLines = [f"tbreak {code.co_filename}:{first}", "continue"]
        return debugger.runcall(lambda: list(handler.function(state, event, ctx) or ()))

    return replace(handler, function=function)


def _body(code: CodeType) -> int:
    """The line of the first statement of a function: decorators and signature come before it."""
    tree = ast.parse(Path(code.co_filename).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == code.co_name]
    return min(node.body[0].lineno for node in functions if node.body[0].lineno >= code.co_firstlineno)


def told(handler: Handler, say: Callable[[str], None]) -> Handler:
    """The handler, telling of each event what it was, what it emitted and the state after it."""

    def function(state: Any, event: Any, ctx: Any) -> Any:
        say(f"{ctx.now.isoformat()} {to_json(event)}")
        try:
            emitted = list(handler.function(state, event, ctx) or ())
        except Exception as error:
            say(f"    fails {type(error).__name__}: {error}")
            raise
        for each in emitted:
            say(f"    emits {type(each).__name__} {to_json(each)}")
        say(f"    state {to_json(state)}")
        return emitted

    return replace(handler, function=function)


def to_json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def differences(one: Replayed, other: Replayed) -> Iterator[str]:
    """What a changed handler would have done differently: states by key, then outputs."""
    before, after = one.states(), other.states()
    for key in sorted(before.keys() | after.keys()):
        old, new = to_json(before.get(key)), to_json(after.get(key))
        if old != new:
            yield f"state of {key}: {old} -> {new}"
    for identity in sorted(one.outputs.keys() | other.outputs.keys()):
        was, now = one.outputs.get(identity), other.outputs.get(identity)
        if was != now:
            yield f"output {identity}: {(was or b'nothing').decode()} -> {(now or b'nothing').decode()}"
