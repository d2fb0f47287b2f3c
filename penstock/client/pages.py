"""Conversion of long-poll responses to messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.client.asking import EARLIEST
from penstock.client.errors import ConnectionLost, ServerError
from penstock.client.messages import RawMessage, Row, has_lists

_encode = msgspec.json.Encoder(order="deterministic").encode


def deliveries_of(page: Any, asked: str | None) -> list[RawMessage]:
    """Return the messages in the response to a GET with `since` set to `asked`. The list is empty if there is nothing
    new."""
    if not isinstance(page, dict) or not (isinstance(cursor := page.get("cursor"), str) and cursor):
        raise ConnectionLost("the response is not a page: it has no cursor")
    if page.get("truncated"):
        raise ServerError(200, "truncated", "the response does not contain all rows of the view")
    kind, data = _page_as_message(page)
    first = [RawMessage("reset", {"reason": ""}, EARLIEST)] if page.get("reset") else []
    if kind == "progress" and cursor == asked and not first:
        return []
    return [*first, RawMessage(kind, data, cursor)]


def _page_as_message(page: Row) -> tuple[str, Row]:
    for name in ("events", "rows", "changes"):
        items = page.get(name)
        if isinstance(items, list):
            break
    else:
        raise ConnectionLost("the response is not a page: it has no events, rows or changes")
    if name == "rows":
        return "snapshot", {"rows": items}
    if not items:
        return "progress", {}
    if name == "events":
        return "change", {"events": items}
    if not all(has_lists(change, "upserts", "deletes") for change in items):
        raise ConnectionLost("the response is not a page: a change does not contain both upserts and deletes")
    try:
        return "change", merged(items)
    except (KeyError, TypeError) as error:
        raise ConnectionLost(f"the response is not a page: a row has no key column {error}") from None


def merged(changes: Sequence[Row]) -> Row:
    """Merge changes of a view, as received by the client, into one with the same effect: the last state of each key.

    Raises `KeyError` if a row lacks a key column.
    """
    names = next((list(key) for change in changes for key in change["deletes"]), None)
    if names is None:
        return {"upserts": [row for change in changes for row in change["upserts"]], "deletes": []}
    last: dict[bytes, tuple[str, Row]] = {}
    for change in changes:
        for part in ("upserts", "deletes"):
            for row in change[part]:
                name = key_of(row, names)
                last.pop(name, None)
                last[name] = (part, row)
    return {part: [row for said, row in last.values() if said == part] for part in ("upserts", "deletes")}


def key_of(row: Row, names: Sequence[str]) -> bytes:
    """Return the key of a received row in a comparable form: equal for equal JSON, regardless of the order of an
    object's fields.

    Raises `KeyError` if the row lacks one of these columns.
    """
    return _encode([row[name] for name in names])
