"""Event classes that change from version to version, each with the expected fields of an older event: the plain Python
that the log is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pyarrow.compute as pc

from penstock.core.columns import tick_batch, to_batch
from penstock.core.contracts import Log, LogReader, StreamSpec
from penstock.core.event_shape import event_spec
from penstock.core.schema import KIND_EVENT, OFFSET_COLUMN, Event, event_schema
from penstock.handlers.rows import to_events

AT = datetime(2024, 5, 1, tzinfo=UTC)
Fields = dict[str, Any]
Lift = Callable[[Fields], Fields]


@dataclass(frozen=True)
class Version:
    """One version of a class: its fields with their types and defaults, and how an event of the version before becomes
    one of this. `moves` has the effect of `migrate`, by the version that it begins at."""

    hints: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    number: int = 1
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Sequence[str] = ()
    moves: Mapping[int, Lift] = field(default_factory=dict)
    lift: Lift = dict

    def event_class(self) -> type[Event]:
        moves = dict(self.moves)

        def migrate(version: int, fields: Fields) -> Fields:
            return moves[version](fields)

        space: Fields = {"__annotations__": dict(self.hints), "__module__": __name__, **self.defaults}
        if moves:
            space["migrate"] = staticmethod(migrate)
        options: Any = {"version": self.number, "renamed": self.renamed, "dropped": list(self.dropped)}
        return made_class("Order", space, **options)

    def following(self, lift: Lift, **changes: Any) -> Version:
        return replace(self, **({"renamed": {}, "dropped": ()} | changes), lift=lift)


def made_class(name: str, space: Fields, **options: Any) -> type[Event]:
    """Return a class of events, as if a user had written it."""
    meta: Any = type(Event)
    cls: type[Event] = meta(name, (Event,), space, **options)
    return cls


def add(before: Version, name: str, hint: Any, default: Any) -> Version:
    value = msgspec.field(default_factory=lambda: deepcopy(default)) if isinstance(default, list | dict) else default
    hints, defaults = {**before.hints, name: hint}, {**before.defaults, name: value}
    return before.following(lambda fields: {**fields, name: deepcopy(default)}, hints=hints, defaults=defaults)


def rename(before: Version, old: str, new: str) -> Version:
    names = {name: new if name == old else name for name in before.hints}
    hints = {names[name]: hint for name, hint in before.hints.items()}
    defaults = {names[name]: value for name, value in before.defaults.items()}

    def lift(fields: Fields) -> Fields:
        return {names[name]: value for name, value in fields.items()}

    return before.following(lift, hints=hints, defaults=defaults, renamed={old: new})


def drop(before: Version, old: str) -> Version:
    hints = {name: hint for name, hint in before.hints.items() if name != old}
    defaults = {name: value for name, value in before.defaults.items() if name != old}
    return before.following(
        lambda fields: {name: value for name, value in fields.items() if name != old},
        hints=hints, defaults=defaults, dropped=[old],
    )  # fmt: skip


def widen(before: Version, name: str) -> Version:
    """Let a field be null from now on; or add a value to a choice."""
    wider = (
        Literal["new", "paid", "sent"] if before.hints[name] == Literal["new", "paid"] else before.hints[name] | None
    )
    return before.following(lambda fields: fields, hints={**before.hints, name: wider})


def migrate(before: Version, name: str, hint: Any, move: Callable[[Fields], Any]) -> Version:
    """Give a field another type, or add one without a default: computed by `migrate` from the other fields."""

    def lift(fields: Fields) -> Fields:
        return {**fields, name: move(fields)}

    defaults = {other: value for other, value in before.defaults.items() if other != name}
    moves = {**before.moves, before.number: lift}
    hints = {**before.hints, name: hint}
    return before.following(lift, hints=hints, defaults=defaults, number=before.number + 1, moves=moves)


def declare(log: Log, cls: type[Event], stream: str = "orders", partitions: int = 1) -> None:
    log.declare(StreamSpec.of(stream, event_spec(cls), partitions))


def append(log: Log, cls: type[Event], events: Sequence[Fields], first: int, stream: str = "orders") -> None:
    """Append events, given by their fields, under sequences from `first` on; each has its sequence as its id."""
    instances = [cls(**fields) for fields in events]
    ids = [f"{first + number}" for number in range(len(instances))]
    batch = to_batch(cls, instances, ids=ids, keys=[None] * len(instances), now=AT)
    log.append(stream, 0, batch, producer="p", sequence=first)


def tick(log: Log, cls: type[Event], at: datetime | None, sequence: int, stream: str = "orders") -> None:
    batch = tick_batch(event_schema(cls), AT, cls.__time_field__, at)
    log.append(stream, 0, batch, producer="ticks", sequence=sequence)


def events(log: LogReader, cls: type[Event], stream: str = "orders") -> list[Fields]:
    """Return all events of the first partition as the class has them, by their fields."""
    rows: list[Fields] = []
    for batch in log.read(stream, 0, log.starts(stream)[0], log.ends(stream)[0]):
        assert batch.drop_columns([OFFSET_COLUMN]).schema.equals(event_schema(cls))
        only = batch.filter(pc.equal(batch.column("_kind"), KIND_EVENT))
        rows += [{name: getattr(event, name) for name in cls.__struct_fields__} for event in to_events(cls, only)]
    return rows
