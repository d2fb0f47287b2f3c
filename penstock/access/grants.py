"""What someone may do: a set of grants, each of them one word.

| grant | gives |
|---|---|
| `produce:NAME` | sending events to the stream NAME |
| `consume:NAME` | reading the stream or view NAME, or the state of the handler NAME |
| `admin` | both, of everything |

A NAME may end in `*`, which stands for anything: `consume:*` also gives the figures of the app.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from penstock.errors import DeclarationError

Right = Literal["produce", "consume"]
ADMIN = "admin"
EVERYTHING = "*"
_grant = re.compile(r"(?P<right>produce|consume):(?P<name>[A-Za-z0-9_.\-]*\*?)").fullmatch


@dataclass(frozen=True)
class Grants:
    """Made by `grants`, or by `known_grants` of words from elsewhere."""

    produce: tuple[str, ...] = ()
    consume: tuple[str, ...] = ()
    admin: bool = False
    """Whether rows are shown as they are, whatever the access file says of them."""

    def may(self, right: Right, name: str) -> bool:
        """`name` is that of a stream, view or handler, or `*` for all there are."""
        return any(covers(pattern, name) for pattern in (self.produce if right == "produce" else self.consume))


def covers(pattern: str, name: str) -> bool:
    """Whether a name, or the beginning of one and `*`, stands for this one."""
    return pattern in (EVERYTHING, name) or (pattern[-1] == "*" and name.startswith(pattern[:-1]))


ALL = Grants((EVERYTHING,), (EVERYTHING,), admin=True)


def grants(words: Iterable[str]) -> Grants:
    """The grants that these words give. One that is no grant is refused."""
    words = list(words)
    for word in words:
        if word != ADMIN and not _is_grant(word):
            raise DeclarationError(
                f"{word[:80]!r} is no grant: use produce:STREAM, consume:STREAM_OR_VIEW, or admin; a name may end in *"
            )
    return known_grants(words)


def known_grants(words: Iterable[str]) -> Grants:
    """The same for words among which there may be others, as in the scopes of a token that serves many systems."""
    words = set(words)
    if ADMIN in words:
        return ALL
    found: dict[str, list[str]] = {"produce": [], "consume": []}
    for word in sorted(words):
        match = _grant(word)
        if match and match["name"]:
            found[match["right"]].append(match["name"])
    return Grants(tuple(found["produce"]), tuple(found["consume"]))


def _is_grant(word: str) -> bool:
    match = _grant(word)
    return match is not None and bool(match["name"])
