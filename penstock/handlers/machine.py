"""The machine that runs a handler: it processes events in log order, keeps each key's state, and collects the emitted
events. Plain Python: no Spark, no files.

The same machine runs in Spark's workers, in `penstock.testing.run` and in a replay, with the same guarantees. Between
two batches, state is stored as encoded bytes, which are decoded when a key is first used. So a batch begins with the
same values in any process, and batch boundaries make no difference.

A batch is first run optimistically. If a key causes trouble (the handler raises, or stores a value that does not fit
its type), the batch is run again with that key handled carefully. Its state is then copied before each event, so the
effects of an event that fails can be undone. The result is the same as if every key had been handled carefully.
"""

from __future__ import annotations

import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple

import msgspec

from penstock.app.declared import Handler, ViewHandler
from penstock.core.columns import decimal_fields, unfit_decimal
from penstock.core.cursor import stream_cursor
from penstock.core.schema import Event, Failed, may_share, value_class
from penstock.core.times import from_micros, to_micros
from penstock.handlers.rows import NO_ROWS, Inputs, LogPosition, ShardRows
from penstock.handlers.shard import ENTRY_BYTES, NEVER, Codec, KeyState, Shard, ShardChanges

HELD_BYTES_MAX = 256 * 1024 * 1024
"""Approximate memory use, in bytes, at which a pass ends early, at the end of a piece. Below this limit, each key is
decoded and sealed only once per batch. For a key that occurs once, decoding and sealing take most of the time."""
STATE_RATIO, EMITTED_BYTES = 2, 500
"""The size of a key's state in memory relative to its record, and the approximate size of an emitted event."""
CAREFUL_KEYS_MAX = 1_000
"""Maximum number of keys that are handled carefully from the start of the next batch. These are the keys that caused
trouble most recently."""
TEXT_CHARS_MAX = 8_000
SETTLED = "settled"
"""Replaces a timer's name in the ids of events that a handler emits at the end of a batch."""


class Emitted(msgspec.Struct, frozen=True, gc=False):
    """An event that a handler emitted: the index of its class in the handler's `emits`, its cause, its number among the
    events with that cause, its key and its log time."""

    output: int
    cause: str
    number: int
    key: str
    time: int
    event: Any

    @property
    def id(self) -> str:
        """The emitted event's id, which is the same in every run over the same log."""
        return f"{self.cause}/{self.number}"


class Failure(NamedTuple):
    """An event or timer on which the handler failed."""

    id: str
    key: str | None
    time: int
    event: Failed


class Effects(NamedTuple):
    """The effects of a handler's batch, and the number of events in it."""

    changes: ShardChanges
    emitted: list[Emitted]
    failures: list[Failure]
    events: int


class Machine:
    """Runs one handler. `run` does not modify its shard: `Shard.apply` applies the changes."""

    def __init__(self, handler: Handler, careful: Sequence[str] = ()) -> None:
        self.handler = handler
        self.codec = Codec(handler.state)
        self.outputs = [_Output(index, cls) for index, cls in enumerate(handler.emits)]
        self._outputs = dict(zip(handler.emits, self.outputs, strict=True))
        self._careful = dict.fromkeys(careful)

    def run(self, shard: Shard, rows: ShardRows) -> Effects:
        """Run the handler on the rows, and return their effects on the shard. An event that fails has no effect except
        its entry in `failures`. If there are several pieces of rows, this may process only the first pieces."""
        careful = set(self._careful)
        while True:
            attempt = _Attempt(self, shard, careful, shard.time if rows.time is None else rows.time)
            attempt.run(rows.pieces())
            if not attempt.trouble:
                return attempt.effects()
            careful |= attempt.trouble
            self._careful |= dict.fromkeys(sorted(attempt.trouble))
            for key in list(self._careful)[:-CAREFUL_KEYS_MAX]:
                del self._careful[key]

    def output(self, event: Any) -> _Output:
        output = self._outputs.get(type(event))
        if output is None:
            declared = ", ".join(cls.__name__ for cls in self.handler.emits) or "nothing"
            raise TypeError(f"emitted {type(event).__name__}, but is declared to emit {declared}")
        return output


def latest(view_handler: ViewHandler, emitted: Sequence[Emitted]) -> list[Emitted]:
    """Return a view handler's emitted events with only the last change to each row of the view, because earlier changes
    are never visible."""
    first, key = len(view_handler.emits) - 2, attrgetter(*view_handler.view.key)
    rows = {key(emission.event): emission for emission in emitted if emission.output >= first}
    return [*(emission for emission in emitted if emission.output < first), *rows.values()]


class _Output:
    """A class of emitted events, with the checks for its instances."""

    def __init__(self, number: int, cls: type[Event]) -> None:
        self.number = number
        self.shares = may_share(cls)
        self._cls = cls
        self._strict = list[value_class(cls)]  # type: ignore[misc]
        self._has_decimals = bool(decimal_fields(cls))

    def taken(self, event: Any) -> Any:
        """Check the emitted event and return it, or return a copy if the handler could still modify parts of it. Raises
        the same errors as `check`."""
        (twin,) = self.check([event])
        return msgspec.convert(twin, self._cls, from_attributes=True) if self.shares else event

    def check(self, events: list[Any]) -> list[Any]:
        """Return the emitted events' values. Raises if a value does not fit its type. Checking many events at once
        takes a third of the time per event."""
        twins: list[Any] = msgspec.convert(events, self._strict, from_attributes=True)
        if self._has_decimals and any(map(unfit_decimal, twins)):
            raise ValueError("a decimal has more digits than its column allows")
        return twins


class _Timer(NamedTuple):
    """A handler's timer that is firing."""

    key: str
    name: str
    due: int


class _Context:
    """The handler's `ctx`, a `contracts.Context`. One object serves the whole batch and is moved from row to row; its
    values are computed on access."""

    __slots__ = ("_attempt", "_random", "_random_of", "_row", "_timer")

    def __init__(self, attempt: _Attempt) -> None:
        self._attempt = attempt
        self._row = 0
        self._timer: _Timer | None = None
        self._random = Random(0)
        self._random_of: tuple[int, _Timer | None] | None = None

    @property
    def key(self) -> str:
        return self._timer.key if self._timer is not None else self._attempt.inputs.key(self._row) or ""

    @property
    def now(self) -> datetime:
        return from_micros(self._now_us)

    @property
    def _now_us(self) -> int:
        return self._timer.due if self._timer is not None else self._attempt.inputs.times[self._row]

    @property
    def _cause(self) -> str:
        """The cause of the current call, as a string: an event's position, or a timer."""
        name = self._attempt.handler.name
        if self._timer is not None:
            return f"{name}/timer/{self._timer.key}/{self._timer.name}/{self._timer.due}"
        return f"{name}/{self._attempt.inputs.position(self._row).path}"

    @property
    def random(self) -> Random:
        """A generator seeded by the event's id, which does not depend on partitioning. For an event without an id, the
        seed is its position, which depends on partitioning."""
        moment = (self._row, self._timer)
        if self._random_of != moment:
            known = self._attempt.inputs.id(self._row) if self._timer is None else None
            seed = f"{self._attempt.handler.name}/{known}" if known is not None else self._cause
            self._random, self._random_of = Random(seed), moment
        return self._random

    @property
    def cursor(self) -> str:
        position = self._attempt.inputs.position(self._row)
        return stream_cursor(position.generation, {position.partition: position.offset})

    @property
    def stream(self) -> str:
        return self._attempt.inputs.position(self._row).stream if self._timer is None else ""

    def timer(self, name: str, at: datetime | None) -> None:
        self._attempt.set_timer(self, name, at)


class _Attempt:
    """One pass over a handler's batch. `trouble` contains the keys that must be handled carefully; if there are any,
    the pass is discarded."""

    def __init__(self, machine: Machine, shard: Shard, careful: set[str], end: int) -> None:
        self.machine = machine
        self.handler = machine.handler
        self.shard = shard
        self.inputs = NO_ROWS
        self.careful = careful
        self.trouble: set[str] = set()
        self.emitted: list[Emitted] = []
        self.failures: list[Failure] = []
        self.records: dict[str, bytes | None] = {}
        self.due: dict[str, int] = {}
        self.events = 0
        self._checked = 0  # emitted events that were checked
        self._before: dict[str, bytes | None] = {}  # decoded records
        self._decoded = 0  # their size in bytes
        self._live: dict[str, KeyState[Any]] = {}  # keys run optimistically
        self._cared: dict[str, KeyState[Any]] = {}  # keys handled carefully
        self._context = _Context(self)
        self._end = end
        self._queue: list[tuple[int, str]] = []
        self._due = NEVER  # the time of the next timer
        self._due_row = 0  # the row in this piece before which that timer fires
        self._horizon = -1

    def run(self, pieces: Iterator[Inputs]) -> None:
        """Run the handler on every row in order, until no rows are left or the memory limit is reached."""
        for inputs in pieces:
            self._run(inputs)
            self._check()
            if self._held_bytes() > HELD_BYTES_MAX:
                self._end = self._end if inputs.time is None else inputs.time
                break
        if self._end >= self._due:
            self._fire(self._end, len(self.inputs.times) - 1)
            self._check()
        if isinstance(self.handler, ViewHandler) and self.handler.settle is not None:
            self._settle(self.handler.settle)
            self._check()
        self._seal()

    def _held_bytes(self) -> int:
        keys = len(self._before) + len(self._queue)
        return (
            ENTRY_BYTES * keys + STATE_RATIO * self._decoded + EMITTED_BYTES * (len(self.emitted) + len(self.failures))
        )

    def _run(self, inputs: Inputs) -> None:
        """Run the handler on the rows of one piece. This is the platform's inner loop, where every nanosecond per event
        matters."""
        function, context, emit = self.handler.function, self._context, self._emit
        self.inputs, context._random_of = inputs, None
        self.events += len(inputs.times)
        if inputs.times and inputs.times[-1] > self._horizon:
            self._look_ahead(inputs.times[-1])
        self._find_due()
        states = self._states(inputs.keys)
        for row, code, event in zip(range(len(inputs.times)), inputs.codes, inputs.events, strict=True):
            if row >= self._due_row:
                self._fire(inputs.times[row], row)
            context._row = row
            state = states[code]
            if state is None:
                self._run_aside(inputs.keys[code], event)
                continue
            try:
                results = function(state, event, context)
                if results is not None:
                    for result in results:
                        emit(result)
            except (Exception, SystemExit):
                self._give_up(inputs.keys[code])
                states[code] = None

    def _states(self, keys: Sequence[str | None]) -> list[Any]:
        """Return the state of each key in a piece. It is None for rows that are not run optimistically: ticks, events
        without a key, and events with a key that has caused trouble."""
        live: dict[Any, KeyState[Any]] = self._live
        fresh = [key for key in keys if key not in live]
        if fresh:
            aside = self.careful | self.trouble
            self._enter([key for key in fresh if key is not None and key not in aside])
        return [None if (entry := live.get(key)) is None else entry.state for key in keys]

    def _enter(self, keys: list[str]) -> None:
        """Decode the state of keys that this pass uses for the first time."""
        records = list(map(self.shard.records.get, keys))
        self._decoded += sum(len(record) for record in records if record is not None)
        self._before.update(zip(keys, records, strict=True))
        self._live.update(zip(keys, self.machine.codec.decode_all(records), strict=True))

    def _run_aside(self, key: str | None, event: Any) -> None:
        """Run one row that is not run optimistically."""
        if key is None and event is None:
            self.events -= 1
        elif key is None:
            self._add_failure(ValueError(f"the event has no {self._missing_key_fields(event)}"), (event,))
        elif key in self.careful:
            self._with_care(self._key_state(key), self.handler.function, event)

    def _missing_key_fields(self, event: Any) -> str:
        """Return the names of the key fields that are None in an event, separated by commas."""
        names = self.handler.key_of(self.inputs.position(self._context._row).stream)
        return ", ".join(name for name in names if getattr(event, name) is None)

    def _key_state(self, key: str) -> KeyState[Any]:
        held = self._cared if key in self.careful else self._live
        entry = held.get(key)
        if entry is None:
            record = self._before[key] = self.shard.records.get(key)
            self._decoded += len(record) if record is not None else 0
            entry = held[key] = self.machine.codec.decode(record)
        return entry

    def _give_up(self, key: str | None) -> None:
        """Record that a key has caused trouble, so this pass is discarded. Most of the key's later rows are skipped."""
        assert key is not None
        self.trouble.add(key)
        self._live.pop(key, None)

    def _emit(self, event: Any) -> None:
        """Add an event that the handler emits. It is checked later, in `_check`, unless the handler could still modify
        it."""
        output = self.machine.output(event)
        self._add_emitted(output, output.taken(event) if output.shares else event)

    def _emit_checked(self, event: Any) -> None:
        output = self.machine.output(event)
        self._add_emitted(output, output.taken(event))

    def _add_emitted(self, output: _Output, event: Any) -> None:
        context, emitted = self._context, self.emitted
        cause = context._cause
        number = emitted[-1].number + 1 if emitted and emitted[-1].cause == cause else 0
        emitted.append(Emitted(output.number, cause, number, context.key, context._now_us, event))

    def _check(self) -> None:
        """Check the events emitted since the last call. If a value does not fit its type, its key has caused
        trouble."""
        fresh, self._checked = self.emitted[self._checked :], len(self.emitted)
        for output in self.machine.outputs:
            mine = [emission for emission in fresh if emission.output == output.number]
            try:
                output.check([emission.event for emission in mine])
            except Exception:
                self._find_trouble(output, mine)

    def _find_trouble(self, output: _Output, emitted: list[Emitted]) -> None:
        for emission in emitted:
            try:
                output.check([emission.event])
            except Exception:
                self._give_up(emission.key)

    def _with_care(self, entry: KeyState[Any], function: Callable[..., Any], *given: Any) -> None:
        """Run one event or timer of a key that has caused trouble, and undo its effects if it fails."""
        copy, emitted = self.machine.codec.copy, len(self.emitted)
        before = copy(entry)
        try:
            for event in function(entry.state, *given, self._context) or ():
                self._emit_checked(event)
            after = copy(entry)
        except (Exception, SystemExit) as error:
            del self.emitted[emitted:]
            after = before
            self._add_failure(error, given)
        entry.state, entry.timers = after.state, after.timers

    def _add_failure(self, error: BaseException, given: tuple[Any, ...]) -> None:
        context = self._context
        position = self.inputs.position(context._row) if given else LogPosition("", 0, -1, -1)
        shown = msgspec.json.encode(given[0], enc_hook=str).decode() if given else context._cause
        text = "".join(traceback.format_exception(error))
        failed = Failed(
            stream=position.stream,
            partition=position.partition,
            offset=position.offset,
            key=context.key,
            error=f"{type(error).__name__}: {error}"[:TEXT_CHARS_MAX],
            traceback=text[-TEXT_CHARS_MAX:],
            event=shown[:TEXT_CHARS_MAX],
        )
        self.failures.append(Failure(f"{context._cause}/failed", context.key, context._now_us, failed))

    def set_timer(self, context: _Context, name: str, at: datetime | None) -> None:
        if name not in self.handler.timers:
            raise LookupError(
                f"the handler has no timer {name!r}; declare it with @{self.handler.name}.timer({name!r})"
            )
        entry = self._key_state(context.key)
        timers = entry.timers = {} if entry.timers is None else entry.timers
        if at is None:
            timers.pop(name, None)
            return
        due = to_micros(at)
        if context._timer is not None and due <= context._timer.due:
            raise ValueError("a timer that is set by another timer must be due later than that timer")
        timers[name] = due
        if context._timer is None:  # otherwise the caller looks for the next timer
            self._expect_timer(due, context.key)

    def _expect_timer(self, due: int, key: str) -> None:
        if due <= self._end:
            heappush(self._queue, (due, key))
            if due < self._due:
                self._find_due()

    def _look_ahead(self, time: int) -> None:
        """Queue the shard's timers that are due by `time`, and those due in the next interval after it, which is as
        long as the interval from the shard's log time to `time`. This way, the shard is queried only a few times for
        all pieces, and seldom returns many more timers than will fire."""
        horizon = min(self._end, 2 * time - self.shard.time)
        self._queue += (timer for timer in self.shard.due_until(horizon) if timer[0] > self._horizon)
        heapify(self._queue)
        self._horizon = horizon

    def _find_due(self) -> None:
        self._due = self._queue[0][0] if self._queue else NEVER
        self._due_row = bisect_left(self.inputs.times, self._due)

    def _fire(self, time: int, row: int) -> None:
        """Fire every timer of the shard that is due by `time`, earliest first. In each call, `ctx.now` is the timer's
        due time."""
        context = self._context
        context._row = row
        while self._queue and self._queue[0][0] <= time:
            due, key = heappop(self._queue)
            if key in self.trouble:
                continue
            entry = self._key_state(key)
            if entry.next_due() != due:
                continue
            name = entry.take_due()
            context._timer = _Timer(key, name, due)
            self._call_aside(entry, self.handler.timers.get(name, _undeclared_timer))
            following = entry.next_due()
            if following is not None:
                self._expect_timer(following, key)
        context._timer = None
        self._find_due()

    def _call_aside(self, entry: KeyState[Any], function: Callable[..., Any]) -> None:
        """Call a function that does not take an event: a timer's function, or `settle`."""
        if self._context.key in self.careful:
            self._with_care(entry, function)
            return
        try:
            for event in function(entry.state, self._context) or ():
                self._emit(event)
        except (Exception, SystemExit):
            self._give_up(self._context.key)

    def _settle(self, function: Callable[..., Any]) -> None:
        """Emit the rows that a handler emits only once per batch and key, after all changes to the key."""
        for key, entry in [*self._live.items(), *self._cared.items()]:
            self._context._timer = _Timer(key, SETTLED, self._end)
            self._call_aside(entry, function)
        self._context._timer = None

    def _seal(self) -> None:
        """Encode the records of all keys used in this pass. If a value does not fit its type, its key has caused
        trouble."""
        seal, known = self.machine.codec.seal, self._before
        for key, entry in chain(self._live.items(), self._cared.items()):
            before = known[key]
            try:
                record = seal(key, entry, before)
            except Exception:
                self.trouble.add(key)
                continue
            if record is not before:
                self.records[key] = record
                if entry.timers:
                    self.due[key] = min(entry.timers.values())

    def effects(self) -> Effects:
        before = list(map(self._before.__getitem__, self.records))
        changes = ShardChanges(self.records, self.due, self._end, before)
        return Effects(changes, self.emitted, self.failures, self.events)


def _undeclared_timer(*_: Any) -> tuple[()]:
    raise LookupError("the function of this timer is no longer declared")
