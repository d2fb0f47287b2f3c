"""A handler at work: events in log order, the state of each key, what is emitted. Plain Python: no Spark, no files.

The same machine runs in Spark's workers, in `penstock.testing.run` and in a replay, so what holds in one holds in all.
State between two batches is encoded bytes, decoded when a key is first touched: a batch begins with the same values
whether the process is new or old, and how events are cut into batches makes no difference.

A batch is run in good faith first. If a key gives trouble (the handler raises, or leaves a value that its type does not
have), the batch is run again with that key handled with care: its state is kept before each event, so that the effects
of one that fails can be undone. What comes out is the same as if every key had been handled so.
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

from penstock.columns import decimal_fields, unfit_decimal
from penstock.cursor import stream_cursor
from penstock.declared import Handler, Keeper
from penstock.rows import NO_ROWS, Inputs, Place, Rows, from_micros, to_micros
from penstock.schema import Event, Failed, may_share, value_class
from penstock.shard import ENTRY_BYTES, NEVER, Changes, Codec, Entry, Shard

HELD_BYTES_MAX = 256 * 1024 * 1024
"""A pass ends early, at the end of a piece, when what it holds takes about so much memory. Below that a key is decoded
and sealed once a batch, which is most of the time of an event whose key does not come again."""
STATE_RATIO, EMITTED_BYTES = 2, 500
"""The state of a key in memory, compared to its record; and about what an event emitted takes."""
CAREFUL_KEYS_MAX = 1_000
"""Keys that gave trouble are handled with care from the start of the next batch on; so many of them, the latest."""
TEXT_CHARS_MAX = 8_000
SETTLED = "settled"
"""In place of a timer's name, in the ids of what a handler gives when a batch is over."""


class Emitted(msgspec.Struct, frozen=True, gc=False):
    """One event that the handler emitted: the number of its class among those declared, what made the handler run, the
    number of this among all that it emitted then, key and log time."""

    output: int
    cause: str
    number: int
    key: str
    time: int
    event: Any

    @property
    def id(self) -> str:
        """The same in every run of the same log."""
        return f"{self.cause}/{self.number}"


class Failure(NamedTuple):
    """One event, or timer, that the handler failed on."""

    id: str
    key: str | None
    time: int
    event: Failed


class Effects(NamedTuple):
    """All that a batch does, and how many events it has."""

    changes: Changes
    emitted: list[Emitted]
    failures: list[Failure]
    events: int


class Machine:
    """Runs one handler. `run` is given a shard and leaves it as it is: `Shard.apply` takes the changes over."""

    def __init__(self, handler: Handler, careful: Sequence[str] = ()) -> None:
        self.handler = handler
        self.codec = Codec(handler.state)
        self.outputs = [_Output(index, cls) for index, cls in enumerate(handler.emits)]
        self._outputs = dict(zip(handler.emits, self.outputs, strict=True))
        self._careful = dict.fromkeys(careful)

    def run(self, shard: Shard, rows: Rows) -> Effects:
        """The effects of the rows on the shard. An event that fails has none, but for its entry in `failures`. Of rows
        in several pieces it may be the first pieces only: those that were taken."""
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
        found = self._outputs.get(type(event))
        if found is None:
            declared = ", ".join(cls.__name__ for cls in self.handler.emits) or "nothing"
            raise TypeError(f"emitted {type(event).__name__}, but is declared to emit {declared}")
        return found


def latest(keeper: Keeper, emitted: Sequence[Emitted]) -> list[Emitted]:
    """What was emitted, of each row only the last: what came before is not seen by anyone."""
    first, key = len(keeper.emits) - 2, attrgetter(*keeper.view.key)
    rows = {key(each.event): each for each in emitted if each.output >= first}
    return [*(each for each in emitted if each.output < first), *rows.values()]


class _Output:
    """One class that a handler emits, and how its instances are taken."""

    def __init__(self, number: int, cls: type[Event]) -> None:
        self.number = number
        self.shares = may_share(cls)
        self._cls = cls
        self._strict = list[value_class(cls)]  # type: ignore[misc]
        self._has_decimals = bool(decimal_fields(cls))

    def taken(self, event: Any) -> Any:
        """The event, or a copy if the handler may still change a part of it. Raises as `check` does."""
        (twin,) = self.check([event])
        return msgspec.convert(twin, self._cls, from_attributes=True) if self.shares else event

    def check(self, events: list[Any]) -> list[Any]:
        """The events' values. Raises if one of them is not of its type. Many at once take a third of the time each."""
        twins: list[Any] = msgspec.convert(events, self._strict, from_attributes=True)
        if self._has_decimals and any(map(unfit_decimal, twins)):
            raise ValueError("a decimal has more digits than its column")
        return twins


class _Timer(NamedTuple):
    """A timer that is being called."""

    key: str
    name: str
    due: int


class _Context:
    """What a handler is given as `ctx`: a `contracts.Context`. One object for a batch, which is moved from row to row;
    what it tells is looked up when it is asked for."""

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
        return from_micros(self._time)

    @property
    def _time(self) -> int:
        return self._timer.due if self._timer is not None else self._attempt.inputs.times[self._row]

    @property
    def _cause(self) -> str:
        """What made the handler run, as text: the place of an event, or a timer."""
        name = self._attempt.handler.name
        if self._timer is not None:
            return f"{name}/timer/{self._timer.key}/{self._timer.name}/{self._timer.due}"
        return f"{name}/{self._attempt.inputs.place(self._row).path}"

    @property
    def random(self) -> Random:
        """An event's id, if it has one, does not depend on how the stream is partitioned; its place does."""
        moment = (self._row, self._timer)
        if self._random_of != moment:
            known = self._attempt.inputs.id(self._row) if self._timer is None else None
            seed = f"{self._attempt.handler.name}/{known}" if known is not None else self._cause
            self._random, self._random_of = Random(seed), moment
        return self._random

    @property
    def cursor(self) -> str:
        place = self._attempt.inputs.place(self._row)
        return stream_cursor(place.generation, {place.partition: place.offset})

    @property
    def stream(self) -> str:
        return self._attempt.inputs.place(self._row).stream if self._timer is None else ""

    def timer(self, name: str, at: datetime | None) -> None:
        self._attempt.set_timer(self, name, at)


class _Attempt:
    """One pass over a batch. `trouble` has the keys that must be handled with care for a pass to count."""

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
        self._checked = 0  # of what was emitted
        self._before: dict[str, bytes | None] = {}  # what was decoded
        self._decoded = 0  # bytes of that
        self._live: dict[str, Entry[Any]] = {}  # run in good faith
        self._cared: dict[str, Entry[Any]] = {}  # handled with care
        self._context = _Context(self)
        self._end = end
        self._queue: list[tuple[int, str]] = []
        self._due = NEVER  # the time of the next timer
        self._due_row = 0  # the row of this piece that it comes before
        self._horizon = -1

    def run(self, pieces: Iterator[Inputs]) -> None:
        """Every row in turn, until there are no more or enough is held."""
        for inputs in pieces:
            self._run(inputs)
            self._check()
            if self._held_bytes() > HELD_BYTES_MAX:
                self._end = self._end if inputs.time is None else inputs.time
                break
        if self._end >= self._due:
            self._fire(self._end, len(self.inputs.times) - 1)
            self._check()
        if isinstance(self.handler, Keeper) and self.handler.settle is not None:
            self._settle(self.handler.settle)
            self._check()
        self._seal()

    def _held_bytes(self) -> int:
        keys = len(self._before) + len(self._queue)
        return (
            ENTRY_BYTES * keys + STATE_RATIO * self._decoded + EMITTED_BYTES * (len(self.emitted) + len(self.failures))
        )

    def _run(self, inputs: Inputs) -> None:
        """The inner loop of the platform: what it does for each event is counted in nanoseconds."""
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
                made = function(state, event, context)
                if made is not None:
                    for each in made:
                        emit(each)
            except (Exception, SystemExit):
                self._give_up(inputs.keys[code])
                states[code] = None

    def _states(self, keys: Sequence[str | None]) -> list[Any]:
        """The state of each key of a piece. None for rows that are not run in good faith: ticks, events without a key,
        and those of keys that give trouble."""
        live: dict[Any, Entry[Any]] = self._live
        fresh = [key for key in keys if key not in live]
        if fresh:
            aside = self.careful | self.trouble
            self._enter([key for key in fresh if key is not None and key not in aside])
        return [None if (entry := live.get(key)) is None else entry.state for key in keys]

    def _enter(self, keys: list[str]) -> None:
        """Decode the state of keys that are met for the first time."""
        records = list(map(self.shard.records.get, keys))
        self._decoded += sum(len(record) for record in records if record is not None)
        self._before.update(zip(keys, records, strict=True))
        self._live.update(zip(keys, self.machine.codec.decode_all(records), strict=True))

    def _run_aside(self, key: str | None, event: Any) -> None:
        """One row that is not run in good faith."""
        if key is None and event is None:
            self.events -= 1
        elif key is None:
            self._fail(ValueError(f"the event has no {self._missing(event)}"), (event,))
        elif key in self.careful:
            self._with_care(self._entry(key), self.handler.function, event)

    def _missing(self, event: Any) -> str:
        """The fields of the key that an event has no value for."""
        names = self.handler.key_of(self.inputs.place(self._context._row).stream)
        return ", ".join(name for name in names if getattr(event, name) is None)

    def _entry(self, key: str) -> Entry[Any]:
        held = self._cared if key in self.careful else self._live
        entry = held.get(key)
        if entry is None:
            record = self._before[key] = self.shard.records.get(key)
            self._decoded += len(record) if record is not None else 0
            entry = held[key] = self.machine.codec.decode(record)
        return entry

    def _give_up(self, key: str | None) -> None:
        """This pass will not count, for a key is in trouble. Most of its further rows are passed over."""
        assert key is not None
        self.trouble.add(key)
        self._live.pop(key, None)

    def _emit(self, event: Any) -> None:
        """Take what the handler emits, in good faith unless it may be changed later: see `_check`."""
        output = self.machine.output(event)
        self._add(output, output.taken(event) if output.shares else event)

    def _emit_checked(self, event: Any) -> None:
        output = self.machine.output(event)
        self._add(output, output.taken(event))

    def _add(self, output: _Output, event: Any) -> None:
        context, emitted = self._context, self.emitted
        cause = context._cause
        number = emitted[-1].number + 1 if emitted and emitted[-1].cause == cause else 0
        emitted.append(Emitted(output.number, cause, number, context.key, context._time, event))

    def _check(self) -> None:
        """Look at what was emitted since the last time. A value that is not of its type means trouble for its key."""
        fresh, self._checked = self.emitted[self._checked :], len(self.emitted)
        for output in self.machine.outputs:
            mine = [each for each in fresh if each.output == output.number]
            try:
                output.check([each.event for each in mine])
            except Exception:
                self._find_trouble(output, mine)

    def _find_trouble(self, output: _Output, emitted: list[Emitted]) -> None:
        for each in emitted:
            try:
                output.check([each.event])
            except Exception:
                self._give_up(each.key)

    def _with_care(self, entry: Entry[Any], function: Callable[..., Any], *given: Any) -> None:
        """Run one event, or timer, of a key that has given trouble; undo it if it fails."""
        copy, emitted = self.machine.codec.copy, len(self.emitted)
        before = copy(entry)
        try:
            for each in function(entry.state, *given, self._context) or ():
                self._emit_checked(each)
            after = copy(entry)
        except (Exception, SystemExit) as error:
            del self.emitted[emitted:]
            after = before
            self._fail(error, given)
        entry.state, entry.timers = after.state, after.timers

    def _fail(self, error: BaseException, given: tuple[Any, ...]) -> None:
        context = self._context
        place = self.inputs.place(context._row) if given else Place("", 0, -1, -1)
        shown = msgspec.json.encode(given[0], enc_hook=str).decode() if given else context._cause
        text = "".join(traceback.format_exception(error))
        failed = Failed(
            stream=place.stream,
            partition=place.partition,
            offset=place.offset,
            key=context.key,
            error=f"{type(error).__name__}: {error}"[:TEXT_CHARS_MAX],
            traceback=text[-TEXT_CHARS_MAX:],
            event=shown[:TEXT_CHARS_MAX],
        )
        self.failures.append(Failure(f"{context._cause}/failed", context.key, context._time, failed))

    def set_timer(self, context: _Context, name: str, at: datetime | None) -> None:
        if name not in self.handler.timers:
            raise LookupError(
                f"the handler has no timer {name!r}; declare it with @{self.handler.name}.timer({name!r})"
            )
        entry = self._entry(context.key)
        timers = entry.timers = {} if entry.timers is None else entry.timers
        if at is None:
            timers.pop(name, None)
            return
        due = to_micros(at)
        if context._timer is not None and due <= context._timer.due:
            raise ValueError("a timer set by a timer must be later than that one")
        timers[name] = due
        if context._timer is None:  # else whoever calls it looks for what follows
            self._expect(due, context.key)

    def _expect(self, due: int, key: str) -> None:
        if due <= self._end:
            heappush(self._queue, (due, key))
            if due < self._due:
                self._find_due()

    def _look_ahead(self, time: int) -> None:
        """Queue the shard's timers that are due until `time`, and as far again: so the shard is asked a few times for
        all pieces, and never for many more timers than come to be called."""
        horizon = min(self._end, 2 * time - self.shard.time)
        self._queue += (each for each in self.shard.due_until(horizon) if each[0] > self._horizon)
        heapify(self._queue)
        self._horizon = horizon

    def _find_due(self) -> None:
        self._due = self._queue[0][0] if self._queue else NEVER
        self._due_row = bisect_left(self.inputs.times, self._due)

    def _fire(self, time: int, row: int) -> None:
        """Call every timer that is due at `time`, the earliest first, each at its own time."""
        context = self._context
        context._row = row
        while self._queue and self._queue[0][0] <= time:
            due, key = heappop(self._queue)
            if key in self.trouble:
                continue
            entry = self._entry(key)
            if entry.next_due() != due:
                continue
            name = entry.take_due()
            context._timer = _Timer(key, name, due)
            self._call_aside(entry, self.handler.timers.get(name, _undeclared))
            following = entry.next_due()
            if following is not None:
                self._expect(following, key)
        context._timer = None
        self._find_due()

    def _call_aside(self, entry: Entry[Any], function: Callable[..., Any]) -> None:
        """Call a function that is given no event."""
        if self._context.key in self.careful:
            self._with_care(entry, function)
            return
        try:
            for each in function(entry.state, self._context) or ():
                self._emit(each)
        except (Exception, SystemExit):
            self._give_up(self._context.key)

    def _settle(self, function: Callable[..., Any]) -> None:
        """Take the rows that are made once for all that the batch did to a key."""
        for key, entry in [*self._live.items(), *self._cared.items()]:
            self._context._timer = _Timer(key, SETTLED, self._end)
            self._call_aside(entry, function)
        self._context._timer = None

    def _seal(self) -> None:
        """Give every touched key its record. One that has a value that is not of its type means trouble."""
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
        changes = Changes(self.records, self.due, self._end, before)
        return Effects(changes, self.emitted, self.failures, self.events)


def _undeclared(*_: Any) -> tuple[()]:
    raise LookupError("a timer was set whose function is no longer declared")
