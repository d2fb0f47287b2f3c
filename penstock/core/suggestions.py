"""Parts of messages: a number with its noun, and the known names if a name is unknown."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

NAMES_SHOWN = 12


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the singular or the plural: `1 row`, `2,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return a message about an unknown name. The message suggests the closest known name or, if no name is close,
    lists the known names."""
    there = list(known)
    near = get_close_matches(name, there, 1)
    if near:
        return f"there is no {kind} {name!r}; did you mean {near[0]!r}?"
    names = ", ".join(there[:NAMES_SHOWN]) + (", ..." if len(there) > NAMES_SHOWN else "")
    return f"there is no {kind} {name!r}; available: {names or 'none'}"
