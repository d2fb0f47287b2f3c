"""Run a handler and record each step, for comparison with another run (`determinism`).

Rows are processed one at a time, which makes no difference to a handler but shows the effect of each row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from penstock.app.declared import Handler
from penstock.core.columns import event_key
from penstock.core.times import from_micros
from penstock.handlers.machine import Effects, Machine
from penstock.handlers.rows import Inputs, LogPosition
from penstock.handlers.shard import Shard

VALUE_CHARS_MAX = 2_000
ENDING_TICKS = 50
"""Maximum number of ticks at the end, each of which lets time pass until the next timer is due. A timer may be set
again each time."""
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


class RehearsalRow(NamedTuple):
    """One row of a stream. A tick has no event."""

    time: int
    position: LogPosition
    id: str | None
    event: Any


class RehearsalStep(msgspec.Struct):
    """The effects of one row. `states` contains the new states of keys, each as field values in JSON, or None if the
    key has its initial state. `emitted` contains the emitted events, as (class, key, event), and `errors` the errors
    that were raised. `failed` is true if the row's own event failed. A tick has no event, and a tick that was added at
    the end has no position."""

    position: str
    event: str | None
    key: str | None
    states: dict[str, dict[str, str] | None]
    emitted: list[tuple[str, str, str]]
    errors: list[str]
    failed: bool


class SampleRow(NamedTuple):
    """A row that did not come from the log: a generated or emitted event, or a tick."""

    time: datetime
    event: Any = None
    id: str | None = None


class Rehearsal:
    """One handler, and its state as it processes rows. `outputs` collects the events that it emits to each stream."""

    def __init__(self, handler: Handler, shard: Shard) -> None:
        self.handler, self.shard = handler, shard
        self.machine = Machine(handler)
        self.outputs: dict[str, list[SampleRow]] = {stream.name: [] for stream in handler.outputs}

    def steps(self, rows: Iterable[RehearsalRow]) -> Iterator[bytes]:
        """Process the handler's rows, and yield the step for each row as a line of JSON."""
        return map(self._step, rows)

    def ending(self) -> Iterator[RehearsalRow]:
        """Yield ticks for the handler's timers that are still pending. Each tick must be processed before the next tick
        is read."""
        for number in range(ENDING_TICKS):
            due = self.shard.next_due()
            if due is None:
                return
            yield RehearsalRow(due, LogPosition(self.handler.inputs[0], 0, -1, number), None, None)

    def _step(self, row: RehearsalRow) -> bytes:
        event = row.event
        key = event_key(event, self.handler.key_of(row.position.stream)) if event is not None else None
        given = Inputs.of([key], [event], [row.time], lambda _: row.id, lambda _: row.position)
        effects = self.machine.run(self.shard, given)
        self.shard.apply(effects.changes)
        self._remember(effects)
        return msgspec.json.encode(self._rehearsal_step(row, key, effects)) + b"\n"

    def _remember(self, effects: Effects) -> None:
        *outputs, failures = self.handler.outputs
        for emission in effects.emitted:
            if emission.output >= len(outputs):
                continue  # a view's row, which no handler reads
            self.outputs[outputs[emission.output].name].append(
                SampleRow(from_micros(emission.time), emission.event, emission.id)
            )
        for failure in effects.failures:
            self.outputs[failures.name].append(SampleRow(from_micros(failure.time), failure.event, failure.id))

    def _rehearsal_step(self, row: RehearsalRow, key: str | None, effects: Effects) -> RehearsalStep:
        names = [cls.__name__ for cls in self.handler.emits]
        return RehearsalStep(
            position=row.position.path if row.position.partition >= 0 else "",
            event=_recorded_value(row.event) if row.event is not None else None,
            key=key,
            states={key: self._state(record) for key, record in sorted(effects.changes.records.items())},
            emitted=[
                (names[emission.output], emission.key, _recorded_value(emission.event)) for emission in effects.emitted
            ],
            errors=[_ADDRESS.sub("0x...", failure.event.error) for failure in effects.failures],
            failed=row.event is not None and any(failure.event.partition >= 0 for failure in effects.failures),
        )

    def _state(self, record: bytes | None) -> dict[str, str] | None:
        if record is None:
            return None
        entry = self.machine.codec.decode(record)
        fields = {name: _recorded_value(getattr(entry.state, name)) for name in entry.state.__struct_fields__}
        timers = {name: from_micros(due) for name, due in sorted((entry.timers or {}).items())}
        return fields | ({"(timers)": _recorded_value(timers)} if timers else {})


def _recorded_value(value: Any) -> str:
    """Return a recorded value as JSON. A long value is shortened and includes a digest, so different values still
    differ."""
    whole = msgspec.json.encode(value, enc_hook=str).decode(errors="replace")
    if len(whole) <= VALUE_CHARS_MAX:
        return whole
    digest = blake2b(whole.encode(), digest_size=8).hexdigest()
    return f"{whole[:VALUE_CHARS_MAX]}... ({len(whole):,} characters, digest {digest})"
