"""What of other matches remains when one is found: an event may be part of several.

Matches are told in the order in which they began. Of two that begin with the same event, the one that is complete first
comes first, and if both are at the same time, the one whose last event is the earlier, then the one whose events, one
by one, are the earlier. So a match may have to wait for one that began earlier, if that one would skip it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["none", "to_next", "past_last", "to_first", "to_last"]


@dataclass(frozen=True)
class Skip:
    """Which partial matches are given up: those that began up to an event of the match."""

    kind: Kind
    name: str | None = None

    def __str__(self) -> str:
        return self.kind if self.name is None else f"{self.kind}({self.name!r})"


none = Skip("none")
"""Every possible match."""
to_next = Skip("to_next")
"""At most one match for each event that begins one."""
past_last = Skip("past_last")
"""No match that began before the last event of this one, or with it."""


def to_first(name: str) -> Skip:
    """No match that began before the first event of that step. If the step took none, nothing is given up."""
    return Skip("to_first", name)


def to_last(name: str) -> Skip:
    """No match that began before the last event of that step. If the step took none, nothing is given up."""
    return Skip("to_last", name)
