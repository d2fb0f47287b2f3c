"""The answers of long polling, as messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.client.asking import EARLIEST
from penstock.client.errors import Lost, ServerError
from penstock.client.messages import Delivery, Row, has_lists

_encode = msgspec.json.Encoder(order="deterministic").encode


def deliveries_of(page: Any, asked: str | None) -> list[Delivery]:
    """The messages of an answer to a GET with this `since`; none if it says nothing new."""
    if not isinstance(page, dict) or not (isinstance(cursor := page.get("cursor"), str) and cursor):
        raise Lost("this is no page: it has no cursor")
    if page.get("truncated"):
        raise ServerError(200, "truncated", "the answer does not have all rows of the view")
    kind, data = _content(page)
    first = [Delivery("reset", {"reason": ""}, EARLIEST)] if page.get("reset") else []
    if kind == "progress" and cursor == asked and not first:
        return []
    return [*first, Delivery(kind, data, cursor)]


def _content(page: Row) -> tuple[str, Row]:
    for name in ("events", "rows", "changes"):
        items = page.get(name)
        if isinstance(items, list):
            break
    else:
        raise Lost("this is no page: it has neither events nor rows nor changes")
    if name == "rows":
        return "snapshot", {"rows": items}
    if not items:
        return "progress", {}
    if name == "events":
        return "change", {"events": items}
    if not all(has_lists(change, "upserts", "deletes") for change in items):
        raise Lost("this is no page: a change lacks its upserts or deletes")
    try:
        return "change", merged(items)
    except (KeyError, TypeError) as error:
        raise Lost(f"this is no page: a row lacks its key, {error}") from None


def merged(changes: Sequence[Row]) -> Row:
    """One change with the effect of all of them: of each key the last that was said of it. `KeyError` if a row lacks a
    column of its key."""
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
    """The key of a row, as something to compare: equal for equal JSON, whatever the order of an object's fields.
    `KeyError` if it lacks one of these columns."""
    return _encode([row[name] for name in names])
