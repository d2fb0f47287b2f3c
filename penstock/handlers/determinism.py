"""Compare two runs of a handler on the same events, and describe the first difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from penstock.app.declared import Handler
from penstock.handlers.rehearsal import RehearsalStep

NOT_RUN = "not run"
PARTS_MAX = 4
SHOWN_CHARS = 160
SHOWN_BEFORE = 40


class DeterminismResult(NamedTuple):
    """The result of running a handler twice: the number of events, the number of events that it raised on, and the
    first difference, if any."""

    handler: Handler
    kind: str
    events: int = 0
    failed: int = 0
    first_error: str = ""
    difference: str | None = None

    def __str__(self) -> str:
        name, streams = self.handler.name, len(self.handler.reads)
        what = f"{self.events:,} {self.kind} events of {streams} stream{'s' if streams > 1 else ''}"
        if self.difference is not None:
            return f"{self.handler.where}: handler {name}: {self.difference}"
        if self.kind == NOT_RUN:
            return f"{name}: NOT TESTED: it has outside effects, which a second run could repeat; remove them first"
        if not self.events:
            return f"{name}: NOT TESTED: there are no {self.kind} events of {', '.join(self.handler.reads)}"
        if self.failed == self.events:
            return f"{name}: NOT TESTED: it raised on all {what}, first with {self.first_error}"
        raised = f"; it raised on {self.failed:,} of them, first with {self.first_error}" if self.failed else ""
        return f"{name}: ran twice on {what}, no difference{raised}"


def compare(handler: Handler, kind: str, one: Iterable[bytes], two: Iterable[bytes]) -> DeterminismResult:
    """Compare two runs of a handler on one kind of events. Each run is passed as the lines of its steps
    (`Rehearsal.steps`), which are read one at a time."""
    result = DeterminismResult(handler, kind)
    for mine, other in zip_longest(one, two, fillvalue=b""):
        step = _decode_step(mine or other)
        result = result._replace(
            events=result.events + (step.event is not None),
            failed=result.failed + step.failed,
            first_error=result.first_error or "".join(step.errors[:1]),
        )
        if mine != other and result.difference is None:
            result = result._replace(difference=_difference(_decode_step(mine), _decode_step(other)))
    return result


def _decode_step(line: bytes) -> RehearsalStep:
    return msgspec.json.decode(line, type=RehearsalStep) if line else RehearsalStep("", None, None, {}, [], [], False)


def _difference(one: RehearsalStep, two: RehearsalStep) -> str:
    """Describe the first step after which two runs of a handler differ, and the differences."""
    step = one if one != _decode_step(b"") else two
    what = f"event {step.position} {step.event}" if step.event is not None else f"tick {step.position}"
    differences = [*_state_differences(one, two), *_emitted_differences(one, two), *_error_differences(one, two)]
    more = [f"and {len(differences) - PARTS_MAX} more"] if len(differences) > PARTS_MAX else []
    where = what if step.position else "the last event, as time passes and timers are due"
    return f"two runs differ after {where}: {'; '.join((*differences[:PARTS_MAX], *more))}"


def _state_differences(one: RehearsalStep, two: RehearsalStep) -> Iterator[str]:
    for key in sorted(one.states.keys() | two.states.keys()):
        mine, other = one.states.get(key), two.states.get(key)
        if mine is None or other is None:
            if (key in one.states, mine) != (key in two.states, other):
                yield f"key {key!r}, state is {both(_whole_state(one, key), _whole_state(two, key))}"
            continue
        for name in dict.fromkeys((*mine, *other)):
            if mine.get(name) != other.get(name):
                yield f"key {key!r}, state.{name} is {both(mine.get(name), other.get(name))}"


def _whole_state(step: RehearsalStep, key: str) -> str:
    state = step.states.get(key, {})
    if state is None:
        return "the initial one"
    return ", ".join(f"{name}={value}" for name, value in state.items()) or "unchanged"


def _emitted_differences(one: RehearsalStep, two: RehearsalStep) -> Iterator[str]:
    for number, (mine, other) in enumerate(zip_longest(one.emitted, two.emitted)):
        if mine != other:
            texts = [f"{event[0]} {event[2]}" if event is not None else None for event in (mine, other)]
            yield f"key {(mine or other)[1]!r}, emitted event {number + 1} is {both(*texts)}"


def _error_differences(one: RehearsalStep, two: RehearsalStep) -> Iterator[str]:
    if one.errors != two.errors:
        key = f"key {one.key!r}, " if one.key is not None else ""
        yield f"{key}it raised {both('; '.join(one.errors) or None, '; '.join(two.errors) or None)}"


def both(one: str | None, two: str | None) -> str:
    """Describe two values that differ between a handler's runs. Long values are shortened to the part where the
    difference begins."""
    first = next((at for at, (a, b) in enumerate(zip(one or "", two or "", strict=False)) if a != b), 0)
    start = max(0, first - SHOWN_BEFORE) if max(len(one or ""), len(two or "")) > SHOWN_CHARS else 0
    shown = (
        "nothing" if text is None else ("..." if start else "") + _cut_difference(text[start:]) for text in (one, two)
    )
    return " in one run and ".join(shown) + " in the other"


def _cut_difference(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."
