"""Grants: a caller's rights, each of which is written as one word.

| grant | allows |
|---|---|
| `produce:NAME` | sending events to the stream NAME |
| `consume:NAME` | reading the stream or view NAME, or the state of the handler NAME |
| `admin` | both, for everything |

NAME can end in `*`, which matches anything. `consume:*` also allows reading the app's status and metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from penstock.core.errors import DeclarationError

Right = Literal["produce", "consume"]
ADMIN = "admin"
EVERYTHING = "*"
_grant = re.compile(r"(?P<right>produce|consume):(?P<name>[A-Za-z0-9_.\-]*\*?)").fullmatch


@dataclass(frozen=True)
class Grants:
    """A set of grants, created by `grants`, or by `known_grants` if some words are meant for other systems."""

    produce: tuple[str, ...] = ()
    consume: tuple[str, ...] = ()
    admin: bool = False
    """Whether the caller sees all rows, regardless of the access file's row rules."""

    def may(self, right: Right, name: str) -> bool:
        """Return whether the right is granted for the stream, view or handler with that name. If the name is `*`,
        return whether it is granted for all of them."""
        return any(covers(pattern, name) for pattern in (self.produce if right == "produce" else self.consume))


def covers(pattern: str, name: str) -> bool:
    """Return whether a grant's `pattern`, a name or a prefix followed by `*`, matches `name`."""
    return pattern in (EVERYTHING, name) or (pattern[-1] == "*" and name.startswith(pattern[:-1]))


ALL = Grants((EVERYTHING,), (EVERYTHING,), admin=True)


def grants(words: Iterable[str]) -> Grants:
    """Return the grants for these words. Raises `DeclarationError` for a word that is not a grant."""
    words = list(words)
    for word in words:
        if word != ADMIN and not _is_grant(word):
            raise DeclarationError(
                f"{word[:80]!r} is not a grant: use produce:STREAM, consume:STREAM_OR_VIEW or admin; names can end in *"
            )
    return known_grants(words)


def known_grants(words: Iterable[str]) -> Grants:
    """Return the grants for these words, ignoring words that are not grants, such as a token's scopes for other
    systems."""
    words = set(words)
    if ADMIN in words:
        return ALL
    names: dict[str, list[str]] = {"produce": [], "consume": []}
    for word in sorted(words):
        match = _grant(word)
        if match and match["name"]:
            names[match["right"]].append(match["name"])
    return Grants(tuple(names["produce"]), tuple(names["consume"]))


def _is_grant(word: str) -> bool:
    match = _grant(word)
    return match is not None and bool(match["name"])
