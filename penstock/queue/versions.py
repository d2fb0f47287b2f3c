"""The versions of a stream's events: the data stored for each version, and the steps between versions.

When the event class has changed, a new version is stored. It consists of the columns, the class's shape, and the step
from the previous version. A step is plain data: the renamed fields, the removed fields, and for each added field the
default that it had at that time. Old events can therefore be read without the class, and later changes to a default do
not affect them. The class is needed only for a step that increases the version of a class with a `migrate` method.

In older files, versions have only columns. The same is true of streams without an event class, such as a view's
changes. In these streams, a column that is missing from an old row is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.errors import DeclarationError
from penstock.core.event_shape import EventShape, EventSpec
from penstock.core.schema import SYSTEM_COLUMNS
from penstock.core.shapes import NULLABLE, widens

EVENT_KEY, FILLS_KEY = b"penstock.event", b"penstock.fills"
FIRST = 1
"""Version of events that were stored without a version."""


class VersionStep(msgspec.Struct, frozen=True):
    """The conversion of events from the previous version to this version.

    If `migrates` is true, the class's `migrate` method is called first.
    """

    renamed: dict[str, str]
    dropped: tuple[str, ...]
    migrates: bool = False

    def source(self, name: str, known: Mapping[str, object]) -> str | None:
        """Return the previous name of a field, one of the `known` names, or None if the field is new."""
        if name in known:
            return name
        return next((old for old, new in self.renamed.items() if new == name and old in known), None)


class _Mark(msgspec.Struct, frozen=True):
    """The data about the event class in a stored schema."""

    shape: EventShape
    step: VersionStep | None


@dataclass(frozen=True)
class EventVersion:
    """One version of a stream's events: its columns and, for an event class, the class's shape, the step, and the
    values of added fields.

    `fills` contains the values in one row. `step` is None if no events were stored when this version was declared.
    """

    schema: pa.Schema
    shape: EventShape | None = None
    step: VersionStep | None = None
    fills: pa.RecordBatch | None = None

    @property
    def number(self) -> int:
        """The version of the event class."""
        return FIRST if self.shape is None else self.shape.version

    @property
    def is_plain(self) -> bool:
        """Whether events of the previous version are read unchanged."""
        step, fills = self.step, self.fills
        if step is None:
            return True
        return not (step.migrates or step.renamed or step.dropped or (fills is not None and fills.num_columns))

    def fill(self, name: str) -> Any:
        """Return the value that older events get for a field that this version adds."""
        assert self.fills is not None
        return self.fills.column(name).to_pylist(maps_as_pydicts="strict")[0]

    def stored(self) -> pa.Schema:
        """Return the version's schema as stored, with everything else as its metadata."""
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
    def read(cls, stored: pa.Schema) -> EventVersion:
        """Decode a stored schema.

        Raises `msgspec.MsgspecError` or `pa.ArrowException` for data that this version of Penstock cannot read.
        """
        metadata = stored.metadata or {}
        schema = stored.remove_metadata()
        if EVENT_KEY not in metadata:
            return cls(schema)
        mark = msgspec.json.decode(metadata[EVENT_KEY], type=_Mark)
        fills = None
        if FILLS_KEY in metadata:
            fills = pa.ipc.open_stream(pa.py_buffer(metadata[FILLS_KEY])).read_next_batch()
        return cls(schema, mark.shape, mark.step, fills)


def first_version(spec: EventSpec) -> EventVersion:
    return EventVersion(spec.schema, spec.shape)


def is_current(newest: EventVersion, spec: EventSpec) -> bool:
    """Return whether events are already stored in this version of the class."""
    return newest.shape == spec.shape and bool(newest.schema.equals(spec.schema))


def next_version(stream: str, history: Sequence[EventVersion], spec: EventSpec, oldest: int) -> EventVersion:
    """Return the version to store when a stream's class is declared.

    `oldest` is the number of the oldest version that stored events have, counting from 1. Raises `DeclarationError` if
    stored events cannot be read as the new version.
    """
    require_readable(stream, history, spec, oldest)
    if oldest > len(history):
        return first_version(spec)
    migrates = spec.load is not None and spec.shape.version > history[-1].number
    before = _fields_of_version(history[-1])
    renamed = {old: new for old, new in spec.renamed.items() if old in before or migrates}
    step = VersionStep(renamed, tuple(old for old in spec.dropped if old in before or migrates), migrates)
    # each version without a class is converted directly to the first version with a class
    read = history[-1:] if history[-1].shape is not None else history[oldest - 1 :]
    added = {
        name for version in read for name in spec.shape.fields if step.source(name, _fields_of_version(version)) is None
    }
    names = [name for name in spec.defaults.schema.names if name in added or migrates]
    return EventVersion(spec.schema, spec.shape, step, spec.defaults.select(names))


def require_readable(stream: str, history: Sequence[EventVersion], spec: EventSpec, oldest: int) -> None:
    """Raise `DeclarationError` if stored events, of version `oldest` and later, cannot be read as the class."""
    reasons = list(misfits(history, spec, oldest))
    if reasons:
        raise DeclarationError(f"stream {stream}: {'; '.join(reasons)}")


def misfits(history: Sequence[EventVersion], spec: EventSpec, oldest: int) -> Iterator[str]:
    """Yield the reasons why stored events cannot be read as the class, each with a fix."""
    newest, name = history[-1], spec.name
    if oldest > len(history):
        return
    if newest.number > spec.shape.version:
        older = f"{name} is version {spec.shape.version}"
        yield f"its events have version {newest.number}, but {older}: run the newer code"
        return
    steps = [version.step for version in history[oldest:] if version.step is not None]
    if spec.load is None and any(step.migrates for step in steps):
        yield f"it has events from before version {newest.number}, but {name} has no migrate method: restore the method"
    elif not is_current(newest, spec) and not (spec.load is not None and spec.shape.version > newest.number):
        yield from (
            _undeclared_changes(history, spec, oldest) if spec.written else _replaced_declaration(history, spec, oldest)
        )


def _replaced_declaration(history: Sequence[EventVersion], spec: EventSpec, oldest: int) -> Iterator[str]:
    if any(True for _ in _undeclared_changes(history, spec, oldest)):
        yield "its events belong to a different declaration, which must keep this name: rename the new declaration"


def _undeclared_changes(history: Sequence[EventVersion], spec: EventSpec, oldest: int) -> Iterator[str]:
    """Yield the changes that the event class statement does not declare."""
    before, name, number = _fields_of_version(history[-1]), spec.name, history[-1].number + 1
    statement = f"in the statement `class {name}(...)`"
    raised = f"raise the version (version={number} {statement})"
    migrate = f"{raised} and give the class a static method migrate(version, fields)"
    taken: dict[str, str] = {}
    vanished = []
    for old, kind in before.items():
        new = spec.renamed.get(old, old)
        if old in spec.dropped:
            continue
        if new not in spec.shape.fields:
            vanished.append(old)
        elif new in taken:
            yield f"its events have both {taken[new]!r} and {old!r}, but {name}.{new} can be only one of them"
        elif not _fits_new_field(history[-1], old, spec, new):
            yield f"{name}.{new} was {kind} and is {spec.shape.fields[new]}: {migrate}"
        taken.setdefault(new, old)
    missing = [
        new
        for new in spec.shape.fields
        if new not in spec.defaults.schema.names and not _is_in_every_event(new, history, spec, oldest, taken)
    ]
    for old in vanished:
        like = next((new for new in missing if new not in taken and _fits_new_field(history[-1], old, spec, new)), None)
        if like is not None:
            missing.remove(like)
        yield (
            f"its events have a field {old!r}, but {name} does not: rename or drop it, with "
            f"renamed={{{old!r}: {like or 'NEW_NAME'!r}}} or dropped=[{old!r}] {statement}. If this is an older "
            "version of the app, run the newer version"
        )
    for new in missing:
        yield f"{name}.{new} is new, and its events have no value for it: either give it a default, or {migrate}"


def field_origins(history: Sequence[EventVersion], spec: EventSpec) -> dict[str, str]:
    """Return the name that fingerprints use for each field of a class, which is the field's first name. If a field is
    added under a name that another field once had, the number of the version that adds it is appended, to keep the two
    fields distinct.
    """
    chain = [(_fields_of_version(version), version.step) for version in history]
    if not history or not is_current(history[-1], spec):
        chain.append((spec.shape.fields, None))
    origins: dict[str, str] = {}
    taken: set[str] = set()
    for number, (names, stored_step) in enumerate(chain, 1):
        step = stored_step or VersionStep(spec.renamed if number == len(chain) else {}, ())
        sources = {name: step.source(name, origins) for name in names}
        origins = {
            name: origins[before] if before is not None else f"{name}@{number}" if name in taken else name
            for name, before in sources.items()
        }
        taken.update(origins.values())
    return origins


def _fields_of_version(version: EventVersion) -> Mapping[str, str]:
    """Return the fields of a version with their types, from the class if the version has a class, otherwise from the
    columns."""
    if version.shape is not None:
        return version.shape.fields
    return {field.name: str(field.type) for field in version.schema if field.name not in SYSTEM_COLUMNS}


def _fits_new_field(newest: EventVersion, old: str, spec: EventSpec, new: str) -> bool:
    """Return whether each value of a stored field is valid for the class's field.

    Without a class, only the stored type is known, so nulls are found only on reading.
    """
    if newest.shape is None:
        return bool(newest.schema.field(old).type == spec.schema.field(new).type)
    return widens(_stored_type(newest.shape.fields[old]), _stored_type(spec.shape.fields[new]))


def _stored_type(kind: str) -> str:
    """Return the stored type: a time that is sent as milliseconds is stored like any other time."""
    return "datetime" + kind.removeprefix("epoch") if kind.removesuffix(NULLABLE) == "epoch" else kind


def _is_in_every_event(
    new: str, history: Sequence[EventVersion], spec: EventSpec, oldest: int, taken: Mapping[str, str]
) -> bool:
    """Return whether an event field without a default is in every stored event.

    A version without a class can lack a nullable column. The column is then read as null, as it was before the stream
    had a class.
    """
    if new not in taken:
        return False
    if history[-1].shape is not None or spec.shape.fields[new].endswith(NULLABLE):
        return True
    return all(taken[new] in version.schema.names for version in history[oldest - 1 :])
