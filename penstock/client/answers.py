"""The results of a client's calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypedDict, TypeVar

import msgspec

from penstock.client.errors import ClientError

T = TypeVar("T")


class Flaw(msgspec.Struct, frozen=True):
    """An event that the server rejected: its index in the request, the reason, and the path to the invalid field."""

    index: int
    reason: str
    path: str | None = None


class Receipt(msgspec.Struct, frozen=True):
    """The outcome of published events. `cursor` is the position after them; pass `ack` to `/v1/acks` later to see what
    they caused."""

    accepted: int
    duplicates: int = 0
    rejected: int = 0
    cursor: str | None = None
    errors: Sequence[Flaw] = ()
    ack: str | None = None
    shed: int = 0


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a stream. `reset` means that the position is no longer kept, so the page begins with the oldest event
    kept."""

    events: Sequence[T]
    cursor: str
    reset: bool = False


class Rows(msgspec.Struct, Generic[T], frozen=True):
    """A view's rows, as of one cursor. `truncated` is true if the view has more rows."""

    rows: Sequence[T]
    cursor: str
    truncated: bool = False


class Column(msgspec.Struct, frozen=True):
    """A column of a query's result: its name and SQL type."""

    name: str
    type: str


class Answer(msgspec.Struct, Generic[T], frozen=True):
    """The result of a query, and the cursors of the streams and views it read. `truncated` is true if there are more
    rows."""

    rows: Sequence[T]
    columns: Sequence[Column]
    cursors: Mapping[str, str]
    truncated: bool = False


class RowsOptions(TypedDict, total=False):
    """Options for the client's `rows`."""

    where: str | None
    select: str | None
    order: str | None
    limit: int | Literal["all"] | None


class EventsOptions(TypedDict, total=False):
    """Options for the client's `events`."""

    since: str
    where: str | None
    select: str | None
    limit: int | None


def checked_page(raw: bytes, content: str) -> dict[str, Any]:
    """Decode a page that the client received. Raises `ClientError` unless it has a cursor and a list under
    `content`."""
    try:
        page = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise ClientError(f"the response is not JSON: {error}") from None
    if not (isinstance(page, dict) and isinstance(page.get(content), list) and isinstance(page.get("cursor"), str)):
        raise ClientError(f"the response must contain {content} and a cursor")
    return page
