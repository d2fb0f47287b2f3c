"""HTML tables for notebooks. All text in them is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

ROWS_SHOWN = 20


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Render an HTML table for a notebook, with a title, the first ROWS_SHOWN rows, and the number of rows not
    shown."""
    listed = [list(row) for row in rows]
    more = len(listed) - ROWS_SHOWN
    lines = [_html_table_row("td", row) for row in listed[:ROWS_SHOWN]] or [_html_table_row("td", ["none"])]
    if columns:
        lines.insert(0, _html_table_row("th", columns))
    end = f"<p>and {more} more</p>" if more > 0 else ""
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>{end}"


def _html_table_row(tag: str, cells: Sequence[Any]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(_cell_text(cell))}</{tag}>" for cell in cells) + "</tr>"


def _cell_text(cell: Any) -> str:
    """Return the text of a cell. A window is shown by its start and end; other parts of a row, by their fields."""
    if isinstance(cell, list | tuple):
        return ", ".join(map(_cell_text, cell))
    names = getattr(cell, "__struct_fields__", None)
    if names is None:
        return str(cell)
    if names == ("start", "end"):
        return f"{cell.start} to {cell.end}"
    return ", ".join(f"{name}: {_cell_text(getattr(cell, name))}" for name in names)
