"""Joins as one would write them down over a list, with two loops: what the real ones are held against."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tests.joins.ads import Left, Right, shown


def in_time(events: Sequence[Any], late_after: timedelta) -> list[Any]:
    """The events of one side, without those further behind the newest one of their key than allowed."""
    kept: list[Any] = []
    for number, event in enumerate(events):
        before = [each.at for each in events[:number] if key_of(each) == key_of(event)]
        if not before or event.at >= max(before) - late_after:
            kept.append(event)
    return kept


def key_of(event: Any) -> str:
    return str(event.key if isinstance(event, Left) else event.name)


def nested_loop(lefts: list[Any], rights: list[Any], within: tuple[timedelta, timedelta], how: str) -> list[str]:
    """Every pair, and those without a partner, sorted as text."""
    before, after = within
    pairs = [
        (left, right)
        for left in lefts
        for right in rights
        if key_of(left) == key_of(right) and left.at - before <= right.at <= left.at + after
    ]
    found = [f"{shown(left)} {shown(right)}" for left, right in pairs]
    if how in ("left", "full"):
        found += [f"{shown(left)} -" for left in lefts if not any(left is each for each, _ in pairs)]
    if how in ("right", "full"):
        found += [f"- {shown(right)}" for right in rights if not any(right is each for _, each in pairs)]
    return sorted(found)


def as_of(events: Sequence[Left], rows: Sequence[Right], how: str) -> list[str]:
    """Each event with the last of the rows with the greatest time that is not after its own."""
    found = []
    for event in events:
        mine = [row for row in rows if row.name == event.key and row.at <= event.at]
        newest = max((row.at for row in mine), default=None)
        row = [each for each in mine if each.at == newest][-1] if mine else None
        if row is not None or how == "left":
            found.append(f"{shown(event)} {shown(row)}")
    return sorted(found)
