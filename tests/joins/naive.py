"""Joins written as two nested loops over lists, to compare the real ones with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from tests.joins.ads import Left, Right, shown


def in_time(events: Sequence[Any], late_after: timedelta) -> list[Any]:
    """Return the events of one side, without those further behind the newest one of their key than allowed."""
    kept: list[Any] = []
    for number, event in enumerate(events):
        before = [earlier.at for earlier in events[:number] if key_of(earlier) == key_of(event)]
        if not before or event.at >= max(before) - late_after:
            kept.append(event)
    return kept


def key_of(event: Any) -> str:
    return str(event.key if isinstance(event, Left) else event.name)


def nested_loop(
    lefts: list[Any],
    rights: list[Any],
    within: tuple[timedelta, timedelta],
    how: str,
    key_of: Callable[[Any], Any] = key_of,
    shown: Callable[[Any], str] = shown,
) -> list[str]:
    """Return every pair, and events without a partner, sorted as text."""
    before, after = within
    pairs = [
        (left, right)
        for left in lefts
        for right in rights
        if key_of(left) == key_of(right) and left.at - before <= right.at <= left.at + after
    ]
    texts = [f"{shown(left)} {shown(right)}" for left, right in pairs]
    if how in ("left", "full"):
        texts += [f"{shown(left)} -" for left in lefts if not any(left is other for other, _ in pairs)]
    if how in ("right", "full"):
        texts += [f"- {shown(right)}" for right in rights if not any(right is other for _, other in pairs)]
    return sorted(texts)


def as_of(events: Sequence[Left], rows: Sequence[Right], how: str) -> list[str]:
    """Return each event with the last of the rows with the greatest time that is not after its own."""
    texts = []
    for event in events:
        mine = [row for row in rows if row.name == event.key and row.at <= event.at]
        newest = max((row.at for row in mine), default=None)
        row = [version for version in mine if version.at == newest][-1] if mine else None
        if row is not None or how == "left":
            texts.append(f"{shown(event)} {shown(row)}")
    return sorted(texts)
