"""Text of clients in the log stays within the entry that quotes it."""

from __future__ import annotations

import logging
import sys

import pytest

from penstock.runtime.logs import EntryFormatter


def entry(message: str, *given: object, error: bool = False) -> str:
    exc_info = sys.exc_info() if error else None
    record = logging.LogRecord("penstock.serve", logging.ERROR, __file__, 1, message, given, exc_info)
    return EntryFormatter().format(record)


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n", "\v", "\f", "\x85", "\u2028", "\x1e"])
def test_a_line_break_in_a_message_does_not_begin_an_entry(line_break: str) -> None:
    shown = entry("a query failed: %s", f"x{line_break}2026-01-01 00:00:00,000 penstock: the key admin was used")
    first, second = shown.splitlines()
    assert first.endswith("penstock.serve: a query failed: x")
    assert second == "    2026-01-01 00:00:00,000 penstock: the key admin was used"


def test_control_characters_are_escaped() -> None:
    assert entry("%s", "a\x1b[2Jb\x00c\x9bd\ttab ü").endswith(": a\\x1b[2Jb\\x00c\\x9bd\ttab ü")


def test_a_traceback_is_indented_with_its_entry() -> None:
    try:
        raise ValueError("bad\n2026-01-01 false entry")
    except ValueError:
        shown = entry("it failed", error=True).splitlines()
    assert len(shown) > 3
    assert all(line.startswith("    ") for line in shown[1:])
