"""The versions of a stream's events: what its file says of each, and what leads from one to the next.

A version is stored when the event class has changed: the columns, the class's shape, and the step from the version
before it. A step is data: names that changed, names that went, and a value for each field that was added, which is its
default on that day. So old events can be read without the class, and a default that changes later changes none of them.
Only a step that raises the class's version, and whose class has a method `migrate`, needs the class.

Files from before that have versions of columns alone. So have streams without an event class, such as the changes of a
view: there a column that an old row has not is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.event_shape import EventShape, EventSpec
from penstock.evolution import NULLABLE, widens
from penstock.schema import SYSTEM_COLUMNS

EVENT_KEY, FILLS_KEY = b"penstock.event", b"penstock.fills"
FIRST = 1
"""The version of events that were stored without one."""


class Step(msgspec.Struct, frozen=True):
    """How events of the version before become those of this one. If it `migrates`, by the class's own method first."""

    renamed: dict[str, str]
    dropped: tuple[str, ...]
    migrates: bool = False

    def source(self, name: str, known: Mapping[str, object]) -> str | None:
        """The name that a field had before, of those that are known; None if it is new."""
        if name in known:
            return name
        return next((old for old, new in self.renamed.items() if new == name and old in known), None)


class _Mark(msgspec.Struct, frozen=True):
    """What a stored schema says of its event class."""

    shape: EventShape
    step: Step | None


@dataclass(frozen=True)
class Version:
    """One version: its columns; and, if an event class was declared, the class's shape, the step from the version
    before, and the values of the fields that the step adds, in one row. Without a step, no event of an earlier version
    was there when this one was declared."""

    schema: pa.Schema
    shape: EventShape | None = None
    step: Step | None = None
    fills: pa.RecordBatch | None = None

    @property
    def number(self) -> int:
        """The version of the event class."""
        return FIRST if self.shape is None else self.shape.version

    @property
    def is_plain(self) -> bool:
        """Whether events of the version before are read as they are."""
        step, fills = self.step, self.fills
        if step is None:
            return True
        return not (step.migrates or step.renamed or step.dropped or (fills is not None and fills.num_columns))

    def fill(self, name: str) -> Any:
        """The value of a field that the step adds."""
        assert self.fills is not None
        return self.fills.column(name).to_pylist(maps_as_pydicts="strict")[0]

    def stored(self) -> pa.Schema:
        """The schema as it is stored, with everything else as its metadata."""
        if self.shape is None:
            return self.schema
        metadata = {EVENT_KEY: msgspec.json.encode(_Mark(self.shape, self.step))}
        if self.fills is not None and self.fills.num_columns:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self.fills.schema) as writer:
                writer.write_batch(self.fills)
            metadata[FILLS_KEY] = sink.getvalue().to_pybytes()
        return self.schema.with_metadata(metadata)

    @classmethod
    def read(cls, stored: pa.Schema) -> Version:
        """Raises `msgspec.MsgspecError` or `pa.ArrowException` on what this Penstock does not write."""
        metadata = stored.metadata or {}
        schema = stored.remove_metadata()
        if EVENT_KEY not in metadata:
            return cls(schema)
        mark = msgspec.json.decode(metadata[EVENT_KEY], type=_Mark)
        fills = None
        if FILLS_KEY in metadata:
            fills = pa.ipc.open_stream(pa.py_buffer(metadata[FILLS_KEY])).read_next_batch()
        return cls(schema, mark.shape, mark.step, fills)


def first_version(spec: EventSpec) -> Version:
    return Version(spec.schema, spec.shape)


def is_current(newest: Version, spec: EventSpec) -> bool:
    """Whether events are stored by this version of the class already."""
    return newest.shape == spec.shape and bool(newest.schema.equals(spec.schema))


def next_version(stream: str, history: Sequence[Version], spec: EventSpec, oldest: int) -> Version:
    """The version that follows when the class is declared now. `oldest` is the number, from 1 on, of the oldest version
    of which there are events. Raises `DeclarationError` if those cannot be read as the class."""
    require_readable(stream, history, spec, oldest)
    if oldest > len(history):
        return first_version(spec)
    migrates = spec.load is not None and spec.shape.version > history[-1].number
    before = _columns(history[-1])
    renamed = {old: new for old, new in spec.renamed.items() if old in before or migrates}
    step = Step(renamed, tuple(old for old in spec.dropped if old in before or migrates), migrates)
    read = history[-1:] if history[-1].shape is not None else history[oldest - 1 :]  # of columns alone: each by itself
    added = {name for each in read for name in spec.shape.fields if step.source(name, _columns(each)) is None}
    names = [name for name in spec.defaults.schema.names if name in added or migrates]
    return Version(spec.schema, spec.shape, step, spec.defaults.select(names))


def require_readable(stream: str, history: Sequence[Version], spec: EventSpec, oldest: int) -> None:
    """Raise `DeclarationError` if stored events, of version `oldest` and later, cannot be read as the class."""
    reasons = list(misfits(history, spec, oldest))
    if reasons:
        raise DeclarationError(f"stream {stream}: {'; '.join(reasons)}")


def misfits(history: Sequence[Version], spec: EventSpec, oldest: int) -> Iterator[str]:
    """Why stored events cannot be read as the class, each with what to do; nothing if they can."""
    newest, name = history[-1], spec.name
    if oldest > len(history):
        return
    if newest.number > spec.shape.version:
        older = f"{name} is version {spec.shape.version}"
        yield f"its events are of version {newest.number} and {older}: run the newer code"
        return
    steps = [each.step for each in history[oldest:] if each.step is not None]
    if spec.load is None and any(step.migrates for step in steps):
        yield f"it has events from before version {newest.number}, and {name} has no method migrate: put that back"
    elif not is_current(newest, spec) and not (spec.load is not None and spec.shape.version > newest.number):
        yield from _unsaid(history, spec, oldest) if spec.written else _remade(history, spec, oldest)


def _remade(history: Sequence[Version], spec: EventSpec, oldest: int) -> Iterator[str]:
    if any(True for _ in _unsaid(history, spec, oldest)):
        yield "its events were made by another declaration: keep that one under this name, and this under another"


def _unsaid(history: Sequence[Version], spec: EventSpec, oldest: int) -> Iterator[str]:
    """What has changed, and is not said in the class statement."""
    before, name, number = _columns(history[-1]), spec.name, history[-1].number + 1
    statement = f"in the statement `class {name}(...)`"
    migrate = f"raise the version, version={number} {statement}, and give it a static migrate(version, fields)"
    taken: dict[str, str] = {}
    vanished = []
    for old, kind in before.items():
        new = spec.renamed.get(old, old)
        if old in spec.dropped:
            continue
        if new not in spec.shape.fields:
            vanished.append(old)
        elif new in taken:
            yield f"its events have both {taken[new]!r} and {old!r}, and {name}.{new} can be one of them only"
        elif not _holds(history[-1], old, spec, new):
            yield f"{name}.{new} was {kind} and is {spec.shape.fields[new]}: {migrate}"
        taken.setdefault(new, old)
    missing = [
        new
        for new in spec.shape.fields
        if new not in spec.defaults.schema.names and not _is_known(new, history, spec, oldest, taken)
    ]
    for old in vanished:
        like = next((new for new in missing if new not in taken and _holds(history[-1], old, spec, new)), None)
        if like is not None:
            missing.remove(like)
        yield (
            f"its events have a field {old!r} and {name} has not: say what became of it, with "
            f"renamed={{{old!r}: {like or 'NEW_NAME'!r}}} or dropped=[{old!r}] {statement}. If this is an earlier "
            "version of the app, run the newer one"
        )
    for new in missing:
        yield f"{name}.{new} is new, and its events have no value for it: give it a default; or {migrate}"


def field_origins(history: Sequence[Version], spec: EventSpec) -> dict[str, str]:
    """The name by which fingerprints know each field of a class: the first one that it had. A field that was added
    under a name that another one had before has the number of its version too, so that they are not taken for one."""
    chain = [(_columns(each), each.step) for each in history]
    if not history or not is_current(history[-1], spec):
        chain.append((spec.shape.fields, None))
    found: dict[str, str] = {}
    taken: set[str] = set()
    for number, (names, made) in enumerate(chain, 1):
        step = made or Step(spec.renamed if number == len(chain) else {}, ())
        sources = {name: step.source(name, found) for name in names}
        found = {
            name: found[before] if before is not None else f"{name}@{number}" if name in taken else name
            for name, before in sources.items()
        }
        taken.update(found.values())
    return found


def _columns(version: Version) -> Mapping[str, str]:
    """The fields of a version with their types, as far as these are known."""
    if version.shape is not None:
        return version.shape.fields
    return {each.name: str(each.type) for each in version.schema if each.name not in SYSTEM_COLUMNS}


def _holds(newest: Version, old: str, spec: EventSpec, new: str) -> bool:
    """Whether each value of a stored field is one of the class's field. Of columns alone, no more is known than what
    they are stored as: whether one of their values is null shows when it is read."""
    if newest.shape is None:
        return bool(newest.schema.field(old).type == spec.schema.field(new).type)
    return widens(_stored_as(newest.shape.fields[old]), _stored_as(spec.shape.fields[new]))


def _stored_as(kind: str) -> str:
    """A time that is sent as milliseconds is stored as any other."""
    return "datetime" + kind.removeprefix("epoch") if kind.removesuffix(NULLABLE) == "epoch" else kind


def _is_known(new: str, history: Sequence[Version], spec: EventSpec, oldest: int, taken: Mapping[str, str]) -> bool:
    """Whether a field that has no default is in every stored event. One of columns alone may lack it, where null will
    do: that is what such an event was read as before."""
    if new not in taken:
        return False
    if history[-1].shape is not None or spec.shape.fields[new].endswith(NULLABLE):
        return True
    return all(taken[new] in each.schema.names for each in history[oldest - 1 :])
