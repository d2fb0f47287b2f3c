"""Sentences about a name that does not exist: which one was probably meant, and which there are."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

NAMES_SHOWN = 12


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Say that there is no such thing, with the nearest name, or with all of them if none is near."""
    there = list(known)
    near = get_close_matches(name, there, 1)
    if near:
        return f"there is no {kind} {name!r}; did you mean {near[0]!r}?"
    names = ", ".join(there[:NAMES_SHOWN]) + (", ..." if len(there) > NAMES_SHOWN else "")
    return f"there is no {kind} {name!r}; there are {names or 'none'}"
