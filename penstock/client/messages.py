"""The protocol's messages, both as received and as presented to users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from penstock.client.errors import ClientError, ConnectionLost

T = TypeVar("T")
Row = dict[str, Any]
KINDS = frozenset({"snapshot", "change", "progress", "stall", "reset"})


@dataclass(frozen=True)
class RawMessage:
    """A received message. `cursor` is the client's position after it."""

    kind: str
    data: Row
    cursor: str


@dataclass(frozen=True)
class Events(Generic[T]):
    """New events from a stream, in order, to be processed as one step. The cursor is the position after the last
    event."""

    events: Sequence[T]
    cursor: str


@dataclass(frozen=True)
class Snapshot(Generic[T]):
    """All rows in a view. Discard the rows you have."""

    rows: Sequence[T]
    cursor: str


@dataclass(frozen=True)
class Change(Generic[T]):
    """New and changed rows in a view, and the keys of removed rows."""

    upserts: Sequence[T]
    deletes: Sequence[Row]
    cursor: str


@dataclass(frozen=True)
class Progress:
    """A sign that there are no new messages: everything before this cursor has been sent."""

    cursor: str


@dataclass(frozen=True)
class Stall:
    """A warning that you are behind, by this many events or by this many versions of a view."""

    behind: int
    cursor: str


@dataclass(frozen=True)
class Reset:
    """A notice that your position is no longer kept.

    If this is a stream, you have missed events, and the next message begins with the oldest event still kept. If it is
    a view, discard all rows: a snapshot follows.
    """

    reason: str
    cursor: str


StreamMessage = Events[T] | Progress | Stall | Reset
ViewMessage = Snapshot[T] | Change[T] | Progress | Stall | Reset
Message = Events[Any] | Snapshot[Any] | Change[Any] | Progress | Stall | Reset


def delivery(kind: str, data: Any, cursor: Any) -> RawMessage | None:
    """Return a message that the client received as a delivery.

    Raises `ConnectionLost` if it is incomplete. For a message of an unknown kind, only the cursor is used; without a
    cursor, the result is None.
    """
    placed, known = isinstance(cursor, str) and cursor != "", kind in KINDS
    if known and not (placed and isinstance(data, dict) and _has_content(kind, data)):
        raise ConnectionLost(f"the message is not valid: {kind!r} with cursor {cursor!r}")
    return RawMessage(kind, data if known else {}, cursor) if placed else None


def _has_content(kind: str, data: Row) -> bool:
    """Return whether a received message has the content that its kind requires."""
    if kind == "change":
        return has_lists(data, "events") or has_lists(data, "upserts", "deletes")
    if kind == "stall":
        return isinstance(behind := data.get("behind"), int | float) and not isinstance(behind, bool)
    return kind != "snapshot" or has_lists(data, "rows")


def has_lists(data: Any, *names: str) -> bool:
    """Return whether a message's `data` is an object with a list under each of these names."""
    return isinstance(data, dict) and all(isinstance(data.get(name), list) for name in names)


def reader(of: type[T]) -> Callable[[Any], Sequence[T]]:
    """Return a function that converts a received JSON list to instances of a class."""
    if of is dict:
        return lambda items: items

    def read(items: Any) -> Sequence[T]:
        try:
            return msgspec.convert(items, list[of])  # type: ignore[valid-type]
        except msgspec.ValidationError as error:
            raise ClientError(f"the data does not match {of.__name__}: {error}") from None

    return read


def message_of(came: RawMessage, read: Callable[[Any], Sequence[Any]]) -> Message | None:
    """Convert a message that the client received to the class that users see. Return None for an unknown kind."""
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
