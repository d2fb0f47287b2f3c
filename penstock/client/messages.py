"""What a client is told: the messages of the protocol, as they come and as users see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from penstock.client.errors import ClientError, Lost

T = TypeVar("T")
Row = dict[str, Any]
KINDS = frozenset({"snapshot", "change", "progress", "stall", "reset"})


@dataclass(frozen=True)
class Delivery:
    """One message as it came: `cursor` is where the client stands once it has it."""

    kind: str
    data: Row
    cursor: str


@dataclass(frozen=True)
class Events(Generic[T]):
    """New events of a stream, in order. They are one step: the cursor stands after the last of them."""

    events: Sequence[T]
    cursor: str


@dataclass(frozen=True)
class Snapshot(Generic[T]):
    """All rows of a view: forget those you have."""

    rows: Sequence[T]
    cursor: str


@dataclass(frozen=True)
class Change(Generic[T]):
    """Rows of a view that are new or changed, and the keys of those that left."""

    upserts: Sequence[T]
    deletes: Sequence[Row]
    cursor: str


@dataclass(frozen=True)
class Progress:
    """Nothing new: all that was to come before this cursor has come."""

    cursor: str


@dataclass(frozen=True)
class Stall:
    """You are `behind` by so many events, or versions of a view."""

    behind: int
    cursor: str


@dataclass(frozen=True)
class Reset:
    """Your position is gone. Of a stream, events were missed, and what follows begins with the first that is kept. Of a
    view, forget all rows: a snapshot follows."""

    reason: str
    cursor: str


StreamMessage = Events[T] | Progress | Stall | Reset
ViewMessage = Snapshot[T] | Change[T] | Progress | Stall | Reset
Message = Events[Any] | Snapshot[Any] | Change[Any] | Progress | Stall | Reset


def delivery(kind: str, data: Any, cursor: Any) -> Delivery | None:
    """A delivery; `Lost` if it is not whole. Of a kind that is not known only the cursor counts: None without one."""
    placed, known = isinstance(cursor, str) and cursor != "", kind in KINDS
    if known and not (placed and isinstance(data, dict) and _has_content(kind, data)):
        raise Lost(f"this is no message: {kind!r} with cursor {cursor!r}")
    return Delivery(kind, data if known else {}, cursor) if placed else None


def _has_content(kind: str, data: Row) -> bool:
    """Whether it has what belongs into a message of this kind."""
    if kind == "change":
        return has_lists(data, "events") or has_lists(data, "upserts", "deletes")
    if kind == "stall":
        return isinstance(behind := data.get("behind"), int | float) and not isinstance(behind, bool)
    return kind != "snapshot" or has_lists(data, "rows")


def has_lists(data: Any, *names: str) -> bool:
    """Whether it is an object with a list under each of these names."""
    return isinstance(data, dict) and all(isinstance(data.get(name), list) for name in names)


def reader(of: type[T]) -> Callable[[Any], Sequence[T]]:
    """A function that makes values of a class of a list as JSON has it."""
    if of is dict:
        return lambda items: items

    def read(items: Any) -> Sequence[T]:
        try:
            return msgspec.convert(items, list[of])  # type: ignore[valid-type]
        except msgspec.ValidationError as error:
            raise ClientError(f"what came does not fit {of.__name__}: {error}") from None

    return read


def message_of(came: Delivery, read: Callable[[Any], Sequence[Any]]) -> Message | None:
    """A delivery as users see it; None for a kind that is not known."""
    kind, data, cursor = came.kind, came.data, came.cursor
    if kind == "change":
        if has_lists(data, "events"):
            return Events(read(data["events"]), cursor)
        return Change(read(data["upserts"]), data["deletes"], cursor)
    if kind == "snapshot":
        return Snapshot(read(data["rows"]), cursor)
    if kind == "progress":
        return Progress(cursor)
    if kind == "stall":
        return Stall(int(data["behind"]), cursor)
    if kind == "reset":
        return Reset(str(data.get("reason", "")), cursor)
    return None
