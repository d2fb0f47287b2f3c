"""Run the log through a handler again, in plain single-threaded Python: to verify a run, to inspect it, or to try out a
change."""

from __future__ import annotations

import ast
import pdb
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import msgspec

from penstock.app.app import App
from penstock.app.declared import Handler
from penstock.core.columns import partition_of
from penstock.core.contracts import LogReader
from penstock.core.cursor import Positions, StreamCursor, decode, source_positions
from penstock.core.errors import BadCursor, DeclarationError
from penstock.core.settings import Settings
from penstock.core.shapes import shape_of
from penstock.handlers.batches import input_shapes, spread
from penstock.handlers.contracts import HandlerLedgerEntry, OpenShard
from penstock.handlers.evolution import Carrier, misfit
from penstock.handlers.machine import Effects
from penstock.handlers.recomputation import Recomputation, Seen, reads_decimals_differently
from penstock.handlers.shard import Shard, digest_text


class AppLog(NamedTuple):
    """An app to replay, and the log opened with its event classes."""

    app: App
    log: LogReader


class Replay:
    """A handler that has run, with its log and its stored state, which are only read.

    `log` is opened with the event classes of `app`. `location` names the storage in messages. Raises DeclarationError
    if the handler has run with a different number of shards than it would use now.
    """

    def __init__(
        self,
        app: App,
        handler: Handler,
        handled: HandlerLedgerEntry,
        log: LogReader,
        open_shard: OpenShard,
        location: str,
        settings: Settings,
    ) -> None:
        self.app, self.handler, self.handled = app, handler, handled
        self.log, self.open_shard, self.settings = log, open_shard, settings
        count, self.placed = spread(app, handler, settings)
        if count != handled.count:
            raise DeclarationError(
                f"{location} has {handled.count} shards of {handler.name}, but this run would have {count}: set "
                "PENSTOCK_PARTITIONS to the number of partitions that the handler ran with"
            )

    @property
    def digest(self) -> str:
        """The digest of the state after the run on Spark."""
        return digest_text(sum(int.from_bytes(shard.digest, "little") for shard in self.handled.shards.values()))

    def end(self, cursor: str | None) -> Positions:
        """Return the position where the replay stops: the cursor's position, or the handler's position if `cursor` is
        None. The cursor must belong to the handler's first stream."""
        end = source_positions(self.handled.end)
        if cursor is None:
            return end
        first, stop = self.handler.inputs[0], decode(cursor)
        if not isinstance(stop, StreamCursor) or stop.generation != self.log.generation(first):
            raise BadCursor(f"the cursor does not belong to the stream {first}")
        return end | {first: end[first] | stop.offsets}

    def begin(
        self,
        handler: Handler,
        end: Positions,
        *,
        changed: AppLog | None = None,
        key: str | None = None,
        latest: bool = False,
    ) -> Recomputation:
        """Return a run of the app's handler, or of a handler in a `changed` app. It starts at the handler's beginning
        or, with `latest`, at the last snapshot before `end`. With `key`, only that key is run."""
        app, log = changed or AppLog(self.app, self.log)
        recomputation = Recomputation(app, handler, log, self.settings, key=key)
        carry = self._carry(handler)
        for number in range(self.handled.count) if key is None else [partition_of(key, self.handled.count)]:
            shard, position = self._start(number, end, latest)
            recomputation.begin(number, carry(shard), position)
        return recomputation

    def _start(self, number: int, end: Positions, latest: bool) -> tuple[Shard, Positions]:
        store = self.open_shard(self.handled.generation, number)
        known = self.handled.shards.get(number)
        if latest and known is not None:
            for shard, position in store.snapshots(known.version):
                if _position_is_before(position, end):
                    return shard, position
        return store.origin(), source_positions(self.handled.origin)

    def _carry(self, handler: Handler) -> Callable[[Shard], Shard]:
        """Return a function that converts the initial state to the state of a changed handler, whose state class may be
        different."""
        if shape_of(handler.state) == self.handled.shape:
            return lambda shard: shard
        reason = misfit(self.handled.shape, handler.state)
        if reason is not None:
            raise DeclarationError(f"{handler.where}: handler {handler.name}: {reason}")
        return Carrier(handler.state, self.handled.shape).shard

    def require_verifiable(self) -> None:
        """Raise an error if the handler has run with event classes that differ from those in the current code, because
        the results could not be compared."""
        known, declared = self.handled.inputs or {}, input_shapes(self.app, self.handler)
        other = [name for name, shape in declared.items() if name in known and known[name] != shape]
        if reads_decimals_differently(self.app, self.handler, self.handled):
            raise DeclarationError(
                f"{self.handler.where}: handler {self.handler.name}: the handler ran with an earlier version of "
                f"Penstock, which passed it Decimals with 18 digits after the decimal point, so its state encodes them "
                f"differently; run the app with the current version of Penstock first"
            )
        if other:
            raise DeclarationError(
                f"{self.handler.where}: handler {self.handler.name}: the handler ran with a different version of the "
                f"event class of {other[0]}; verify it with the code that it ran with, or run the app with the current "
                f"code first"
            )

    def require_comparable(self, changed: Handler) -> None:
        """Raise an error if a changed handler has different inputs or keys from the original."""
        if _replayed_inputs(changed) != _replayed_inputs(self.handler):
            raise DeclarationError(
                f"{changed.where}: handler {changed.name}: the changed handler reads different streams, or uses a "
                f"different key"
            )


def _replayed_inputs(handler: Handler) -> dict[str, tuple[str, ...]]:
    """Return the inputs of a handler, each with the key fields."""
    return {name: handler.key_of(name) for name in handler.inputs}


def _position_is_before(position: Positions, end: Positions) -> bool:
    return all(
        at <= end[stream][partition] for stream, offsets in position.items() for partition, at in offsets.items()
    )


def debugged(handler: Handler) -> Handler:
    """Return the handler with a debugger that stops at the first line of its function for each event."""
    code = handler.function.__code__
    first = min(line for _, _, line in code.co_lines() if line is not None and line >= _first_statement_line(code))

    def function(state: Any, event: Any, ctx: Any) -> Any:
        debugger = pdb.Pdb(nosigint=True, readrc=False)
        debugger.rcLines = [f"tbreak {code.co_filename}:{first}", "continue"]
        return debugger.runcall(lambda: list(handler.function(state, event, ctx) or ()))

    return replace(handler, function=function)


def _first_statement_line(code: CodeType) -> int:
    """Return the line of the first statement in a handler's function, after the decorators and the signature."""
    tree = ast.parse(Path(code.co_filename).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == code.co_name]
    return min(node.body[0].lineno for node in functions if node.body[0].lineno >= code.co_firstlineno)


def traced(handler: Handler, say: Callable[[str], None]) -> Handler:
    """Return the handler with printing added: each event, the events emitted for it, and the state after it."""

    def function(state: Any, event: Any, ctx: Any) -> Any:
        say(f"{ctx.now.isoformat()} {to_json(event)}")
        try:
            emitted = list(handler.function(state, event, ctx) or ())
        except Exception as error:
            say(f"    fails {type(error).__name__}: {error}")
            raise
        for emission in emitted:
            say(f"    emits {type(emission).__name__} {to_json(emission)}")
        say(f"    state {to_json(state)}")
        return emitted

    return replace(handler, function=function)


def to_json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def states(run: Recomputation) -> dict[str, Any]:
    decode = run.machine.codec.decode
    return {key: decode(record).state for shard in run.shards.values() for key, record in shard.records.items()}


def collect(outputs: dict[str, bytes]) -> Seen:
    """Return a function that stores a replay's emitted and failed events in `outputs`, by id."""

    def see(effects: Effects) -> None:
        outputs.update({emission.id: msgspec.json.encode(emission.event, enc_hook=str) for emission in effects.emitted})
        outputs.update({failure.id: failure.event.error.encode() for failure in effects.failures})

    return see


def state_differences(one: Recomputation, other: Recomputation) -> Iterator[str]:
    """Yield the keys whose state would differ under the changed handler."""
    before, after = states(one), states(other)
    for key in sorted(before.keys() | after.keys()):
        old, new = to_json(before.get(key)), to_json(after.get(key))
        if old != new:
            yield f"state of {key}: {old} -> {new}"


def output_differences(one: dict[str, bytes], other: dict[str, bytes]) -> Iterator[str]:
    """Yield the outputs that would differ under the changed handler."""
    for identity in sorted(one.keys() | other.keys()):
        was, now = one.get(identity), other.get(identity)
        if was != now:
            yield f"output {identity}: {(was or b'nothing').decode()} -> {(now or b'nothing').decode()}"
