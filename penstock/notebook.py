"""Tables in HTML, for notebooks. All text in them is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

ROWS_SHOWN = 20


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a title; of many rows the first, and how many there are."""
    listed = [list(row) for row in rows]
    more = len(listed) - ROWS_SHOWN
    lines = [_line("th", columns), *(_line("td", row) for row in listed[:ROWS_SHOWN])]
    end = f"<p>and {more} more</p>" if more > 0 else ""
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>{end}"


def _line(tag: str, cells: Sequence[Any]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
