"""The log once more through a handler, in plain single-threaded Python: to check, to look, to try out a change."""

from __future__ import annotations

import ast
import pdb
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec

from penstock.analyze.batches import spread
from penstock.app import App
from penstock.columns import place
from penstock.contracts import LogReader
from penstock.cursor import Positions, StreamCursor, decode, source_positions
from penstock.declared import Handler
from penstock.errors import BadCursor, DeclarationError
from penstock.evolution import Carrier, misfit, shape_of
from penstock.machine import Effects
from penstock.runtime.directory import DataDirectory
from penstock.runtime.events import event_problems, input_shapes, open_log
from penstock.runtime.rerun import Rerun, Seen, reads_decimals_otherwise
from penstock.runtime.states import ShardOpener
from penstock.settings import Settings
from penstock.shard import Shard, digest_text
from penstock.store import Handled, read_handled


class Replay:
    """A handler and the log of a data directory, which is only read and may be a copy of one that is in use."""

    def __init__(self, app: App, handler: Handler, root: Path, settings: Settings) -> None:
        self.app, self.handler, self.settings = app, handler, settings
        self.directory = DataDirectory(root)
        handled = read_handled(self.directory.handler_ledger(handler.name))
        if handled is None or handled.entry is None:
            raise DeclarationError(f"{root} has nothing of the handler {handler.name!r}: it has never run there")
        self.handled: Handled = handled
        self.log: LogReader = open_log(app, self.directory)
        count, self.placed = spread(app, handler, settings)
        if count != handled.count:
            raise DeclarationError(
                f"{root} has {handled.count} shards of {handler.name}, and here there would be {count}: give the "
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
        first, found = self.handler.inputs[0], decode(cursor)
        if not isinstance(found, StreamCursor) or found.generation != self.log.generation(first):
            raise BadCursor(f"this is not a cursor of the stream {first}")
        return end | {first: end[first] | found.offsets}

    def begin(
        self, handler: Handler, end: Positions, *, app: App | None = None, key: str | None = None, latest: bool = False
    ) -> Rerun:
        """A handler, the app's own or a changed one of another app, at where it began; or, with `latest`, at its last
        snapshot before `end`. On one key only, if it is given."""
        log = self.log if app is None else open_log(app, self.directory)
        made = Rerun(app or self.app, handler, log, self.settings, key=key)
        carry = self._carry(handler)
        for number in range(self.handled.count) if key is None else [place(key, self.handled.count)]:
            shard, position = self._start(number, end, latest)
            made.begin(number, carry(shard), position)
        return made

    def _start(self, number: int, end: Positions, latest: bool) -> tuple[Shard, Positions]:
        files = ShardOpener(self.directory, self.handler.name)(self.handled.generation, number)
        known = self.handled.shards.get(number)
        if latest and known is not None:
            for shard, position in files.snapshots(known.version):
                if _is_before(position, end):
                    return shard, position
        return files.origin(), source_positions(self.handled.origin)

    def _carry(self, handler: Handler) -> Callable[[Shard], Shard]:
        """What the state at the beginning is to a changed handler, whose class may be another."""
        if shape_of(handler.state) == self.handled.shape:
            return lambda shard: shard
        reason = misfit(self.handled.shape, handler.state)
        if reason is not None:
            raise DeclarationError(f"{handler.where}: handler {handler.name}: {reason}")
        return Carrier(handler.state, self.handled.shape).shard

    def require_verifiable(self) -> None:
        """Refuse to compare with a run that has read its events by other classes than those of this code."""
        known, declared = self.handled.inputs or {}, input_shapes(self.app, self.handler.inputs)
        other = [name for name, shape in declared.items() if name in known and known[name] != shape]
        if reads_decimals_otherwise(self.app, self.handler, self.handled):
            raise DeclarationError(
                f"{self.handler.where}: handler {self.handler.name}: it has run with a Penstock that gave it Decimals "
                "with 18 digits after the point, so their texts in its state differ; run this one first"
            )
        if other:
            raise DeclarationError(
                f"{self.handler.where}: handler {self.handler.name}: it has run with another version of the events of "
                f"{other[0]}; verify it with that code, or run this one first"
            )

    def require_comparable(self, app: App, changed: Handler) -> None:
        """Refuse a changed handler whose inputs are others than those that the log has been cut for, or an app whose
        classes the log cannot be read as."""
        if _read_by(changed) != _read_by(self.handler):
            raise DeclarationError(
                f"{changed.where}: handler {changed.name}: once changed, it reads other streams, or by another key"
            )
        problems = list(event_problems(app, self.directory))
        if problems:
            raise DeclarationError("\n".join(problems))


def _read_by(handler: Handler) -> dict[str, tuple[str, ...]]:
    """What a handler reads, each with the fields of the key."""
    return {name: handler.key_of(name) for name in handler.inputs}


def _is_before(position: Positions, end: Positions) -> bool:
    return all(at <= end[stream][partition] for stream, each in position.items() for partition, at in each.items())


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


def states(run: Rerun) -> dict[str, Any]:
    decode = run.machine.codec.decode
    return {key: decode(record).state for shard in run.shards.values() for key, record in shard.records.items()}


def collect(outputs: dict[str, bytes]) -> Seen:
    """Puts what was emitted, and what failed, by its id into `outputs`."""

    def see(effects: Effects) -> None:
        outputs.update({each.id: msgspec.json.encode(each.event, enc_hook=str) for each in effects.emitted})
        outputs.update({each.id: each.event.error.encode() for each in effects.failures})

    return see


def state_differences(one: Rerun, other: Rerun) -> Iterator[str]:
    """The keys whose state a changed handler would have left otherwise."""
    before, after = states(one), states(other)
    for key in sorted(before.keys() | after.keys()):
        old, new = to_json(before.get(key)), to_json(after.get(key))
        if old != new:
            yield f"state of {key}: {old} -> {new}"


def output_differences(one: dict[str, bytes], other: dict[str, bytes]) -> Iterator[str]:
    """What a changed handler would have emitted otherwise."""
    for identity in sorted(one.keys() | other.keys()):
        was, now = one.get(identity), other.get(identity)
        if was != now:
            yield f"output {identity}: {(was or b'nothing').decode()} -> {(now or b'nothing').decode()}"
