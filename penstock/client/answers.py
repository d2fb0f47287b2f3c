"""What calls return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypedDict, TypeVar

import msgspec

from penstock.client.errors import ClientError

T = TypeVar("T")


class Flaw(msgspec.Struct, frozen=True):
    """One event that does not fit its class: its place in the request, why, and where in the event."""

    index: int
    reason: str
    path: str | None = None


class Receipt(msgspec.Struct, frozen=True):
    """What became of published events. `cursor` is the position after them, `ack` can be asked about later."""

    accepted: int
    duplicates: int = 0
    rejected: int = 0
    cursor: str | None = None
    errors: Sequence[Flaw] = ()
    ack: str | None = None
    shed: int = 0


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a stream. `reset`: the position was gone, and it begins with the first event that is kept."""

    events: Sequence[T]
    cursor: str
    reset: bool = False


class Rows(msgspec.Struct, Generic[T], frozen=True):
    """Rows of a view, as of one cursor. `truncated`: there are more."""

    rows: Sequence[T]
    cursor: str
    truncated: bool = False


class Column(msgspec.Struct, frozen=True):
    """A column of a query's result: its name and SQL type."""

    name: str
    type: str


class Answer(msgspec.Struct, Generic[T], frozen=True):
    """The result of a query, and where the streams and views stood that it read. `truncated`: there are more rows."""

    rows: Sequence[T]
    columns: Sequence[Column]
    cursors: Mapping[str, str]
    truncated: bool = False


class RowsWish(TypedDict, total=False):
    """What `rows` may be asked for."""

    where: str | None
    select: str | None
    order: str | None
    limit: int | Literal["all"] | None


class EventsWish(TypedDict, total=False):
    """What `events` may be asked for."""

    since: str
    where: str | None
    select: str | None
    limit: int | None


def sound_page(raw: bytes, content: str) -> dict[str, Any]:
    """A page with its content and cursor."""
    try:
        page = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise ClientError(f"the answer is not JSON: {error}") from None
    if not (isinstance(page, dict) and isinstance(page.get(content), list) and isinstance(page.get("cursor"), str)):
        raise ClientError(f"the answer has no {content} or no cursor")
    return page
