"""Whether handlers do the same twice: run over the same events in processes that differ in all that must not matter.

The first process runs all events. The second runs the first half of them, and a third the rest, as after a restart:
what a handler keeps outside of its state is lost there. Each has its own hash seed, so that sets have another order;
the runs have their own time zones, so far apart that the date differs, and their own working directories; and they are
not at the same time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from penstock.analyze.batches import advance, inputs
from penstock.app import App
from penstock.columns import text_of
from penstock.contracts import LogReader
from penstock.declared import Handler, Stream
from penstock.errors import DeclarationError, HandlerError, NotFound
from penstock.rows import Place
from penstock.runtime.directory import DataDirectory
from penstock.runtime.events import open_log
from penstock.runtime.rehearsal import Call, Made, Part, Step, rows_file, trace_file, view_rows, write_made, write_rows
from penstock.samples import samples
from penstock.schema import event_schema

RUNS: tuple[tuple[str, Part, str, str], ...] = (
    ("one", "whole", "1", "AAA12"),
    ("two", "first half", "2", "BBB-14"),
    ("two", "second half", "3", "BBB-14"),
)
"""The processes: run, part, hash seed, and a time zone at either end of the world, 26 hours apart."""
RUN_S_MAX = 900
NOT_RUN = "not run"
PARTS_MAX = 4
SHOWN_CHARS = 160
SHOWN_BEFORE = 40


class Verdict(NamedTuple):
    """What two runs of a handler came to: over so many events, on so many of which it raised; and the first difference
    between them, if there is one."""

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
            return f"{name}: NOT TESTED: it reaches outside, where running it twice may do harm; mend that first"
        if not self.events:
            return f"{name}: NOT TESTED: there are no {self.kind} events of {', '.join(self.handler.reads)}"
        if self.failed == self.events:
            return f"{name}: NOT TESTED: it raised on all {what}, first {self.first_error}"
        raised = f"; it raised on {self.failed:,} of them, first {self.first_error}" if self.failed else ""
        return f"{name}: {what}, twice, no difference{raised}"


def examine(
    app: App, target: str, data: Path | None, events_max: int, without: frozenset[str] = frozenset()
) -> list[Verdict]:
    """Run the handlers of a sound app twice, but for those named by `without`: over the first events of each stream in
    a data directory, which is only read, or over generated ones."""
    with TemporaryDirectory(prefix="penstock-") as name:
        folder = Path(name)
        if data is None:
            _generate(app, folder, events_max)
        else:
            _take(app, data, folder, events_max, without)
        for run, part, seed, zone in RUNS:
            (folder / run).mkdir(exist_ok=True)
            call = Call(str(Path(target).absolute()), name, run, part, events_max, without)
            run_apart("penstock.runtime.rehearsal", msgspec.json.encode(call).decode(), seed, zone)
        kinds = dict.fromkeys((each.name for each in app.handlers), "generated" if data is None else "recorded")
        kinds |= dict.fromkeys(without, NOT_RUN)
        return [_verdict(handler, folder, kinds[handler.name]) for handler in app.handlers]


def _read(app: App, streams: Sequence[Stream]) -> list[Stream]:
    """Those of the streams that a handler reads."""
    names = {name for handler in app.handlers for name in handler.reads}
    return [stream for stream in streams if stream.name in names]


def _viewed(app: App) -> list[tuple[Stream, str | None]]:
    """The changes of views as handlers read them, each with the name under which it finds them."""
    return [
        (stream, name)
        for handler in app.handlers
        for stream in inputs(app, handler).values()
        if (name := view_rows(handler, stream)) is not None
    ]


def _generate(app: App, folder: Path, count: int) -> None:
    """Made-up rows for each stream. What handlers fill is made by the first run."""
    for stream, name in [*((each, None) for each in _read(app, app.streams)), *_viewed(app)]:
        identity = stream.event.__id_field__
        made = []
        for time, event in samples(app, stream, count):
            known = text_of(getattr(event, identity)) if event is not None and identity is not None else None
            made.append(Made(time, event, known))
        write_made(folder, stream, made, name)


def _take(app: App, data: Path, folder: Path, count: int, without: frozenset[str]) -> None:
    """The first rows of each stream of a data directory, also of those that handlers fill. If such a one is not there,
    what the handler emits in the first run takes its place. Streams of `without` are not read, and taken as empty."""
    log = open_log(app, DataDirectory(data))
    try:
        streams = [(each, None) for each in _read(app, (*app.streams, *app.outputs)) if each.name not in without]
        found = [_take_stream(log, each, folder, count, name) for each, name in (*streams, *_viewed(app))]
    finally:
        log.close()
    if not any(found):
        raise DeclarationError(f"{data} has no events of the app {app.name}; without --data they are generated")
    for stream, name in [*((each, None) for each in _read(app, app.streams)), *_viewed(app)]:
        if not rows_file(folder, name or stream.name).exists():
            write_made(folder, stream, [], name)


def _take_stream(log: LogReader, stream: Stream, folder: Path, count: int, name: str | None = None) -> bool:
    """Copy the first rows of a stream; whether there were any."""
    try:
        starts, ends = log.starts(stream.name), advance(log.starts(stream.name), log.ends(stream.name), count)
    except NotFound:
        return False
    schema, generation = event_schema(stream.event), log.generation(stream.name)
    batches, places = [], []
    for partition, end in ends.items():
        for batch in log.read(stream.name, partition, starts[partition], end):
            _require_fields(stream, set(schema.names) - set(batch.schema.names))
            batches.append(batch.select(schema.names).cast(schema))
        offsets = range(starts[partition], end)
        places += [Place(stream.name, generation, partition, offset) for offset in offsets]
    if batches:
        write_rows(folder, stream, batches, places, name)
    return bool(batches)


def _require_fields(stream: Stream, missing: set[str]) -> None:
    if missing:
        names = ", ".join(sorted(missing))
        raise DeclarationError(
            f"{stream.where}: stream {stream.name}: {names} is not in the log; generate events instead"
        )


def run_apart(module: str, call: str, seed: str, zone: str) -> None:
    """Run a module in a process of its own, to its end. What handlers print is of no interest here."""
    command = [sys.executable, "-m", module, call]
    environment = os.environ | {"PYTHONHASHSEED": seed, "TZ": zone}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=RUN_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HandlerError(f"the handlers did not end within {RUN_S_MAX} s: give fewer --events") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise HandlerError(f"the process that ran the handlers ended with status {done.returncode}: {last}")


def _verdict(handler: Handler, folder: Path, kind: str) -> Verdict:
    verdict = Verdict(handler, kind)
    files = [trace_file(folder, run, handler.name) for run in ("one", "two")]
    with files[0].open("rb") as one, files[1].open("rb") as two:
        for mine, other in zip_longest(one, two, fillvalue=b""):
            step = _decode(mine or other)
            verdict = verdict._replace(
                events=verdict.events + (step.event is not None),
                failed=verdict.failed + step.failed,
                first_error=verdict.first_error or "".join(step.errors[:1]),
            )
            if mine != other and verdict.difference is None:
                verdict = verdict._replace(difference=_difference(_decode(mine), _decode(other)))
    return verdict


def _decode(line: bytes) -> Step:
    return msgspec.json.decode(line, type=Step) if line else Step("", None, None, {}, [], [], False)


def _difference(one: Step, two: Step) -> str:
    """The step after which two runs differ, and what differs in it."""
    step = one if one != _decode(b"") else two
    what = f"event {step.place} {step.event}" if step.event is not None else f"tick {step.place}"
    found = [*_states(one, two), *_emitted(one, two), *_errors(one, two)]
    more = [f"and {len(found) - PARTS_MAX} more"] if len(found) > PARTS_MAX else []
    where = what if step.place else "the last event, as time passes and timers are due"
    return f"two runs differ after {where}: {'; '.join((*found[:PARTS_MAX], *more))}"


def _states(one: Step, two: Step) -> Iterator[str]:
    for key in sorted(one.states.keys() | two.states.keys()):
        mine, other = one.states.get(key), two.states.get(key)
        if mine is None or other is None:
            if (key in one.states, mine) != (key in two.states, other):
                yield f"key {key!r}, state is {both(_whole(one, key), _whole(two, key))}"
            continue
        for name in dict.fromkeys((*mine, *other)):
            if mine.get(name) != other.get(name):
                yield f"key {key!r}, state.{name} is {both(mine.get(name), other.get(name))}"


def _whole(step: Step, key: str) -> str:
    state = step.states.get(key, {})
    if state is None:
        return "as new"
    return ", ".join(f"{name}={value}" for name, value in state.items()) or "unchanged"


def _emitted(one: Step, two: Step) -> Iterator[str]:
    for number, (mine, other) in enumerate(zip_longest(one.emitted, two.emitted)):
        if mine != other:
            told = [f"{each[0]} {each[2]}" if each is not None else None for each in (mine, other)]
            yield f"key {(mine or other)[1]!r}, emitted event {number + 1} is {both(*told)}"


def _errors(one: Step, two: Step) -> Iterator[str]:
    if one.errors != two.errors:
        key = f"key {one.key!r}, " if one.key is not None else ""
        yield f"{key}it raised {both('; '.join(one.errors) or None, '; '.join(two.errors) or None)}"


def both(one: str | None, two: str | None) -> str:
    """Two values that differ: of long ones the part where they begin to."""
    first = next((at for at, (a, b) in enumerate(zip(one or "", two or "", strict=False)) if a != b), 0)
    start = max(0, first - SHOWN_BEFORE) if max(len(one or ""), len(two or "")) > SHOWN_CHARS else 0
    shown = ("nothing" if each is None else ("..." if start else "") + _cut(each[start:]) for each in (one, two))
    return " in one run and ".join(shown) + " in the other"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."
