"""Skip strategies, which decide which other matches remain when a match is found. Without a strategy, an event can be
part of several matches.

Matches are emitted in the order in which they began. If two matches begin with the same event, the match that is
completed first comes first. If both are completed at the same time, the match whose last event is earlier comes first,
then the match whose events, compared one by one, are earlier. Therefore a match might have to wait for a match that
began earlier and would skip it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["none", "to_next", "past_last", "to_first", "to_last"]


@dataclass(frozen=True)
class Skip:
    """A strategy that drops the partial matches that began before a certain event in the match."""

    kind: Kind
    name: str | None = None

    def __str__(self) -> str:
        return self.kind if self.name is None else f"{self.kind}({self.name!r})"


none = Skip("none")
"""Keep every possible match."""
to_next = Skip("to_next")
"""Keep at most one match for each first event."""
past_last = Skip("past_last")
"""Drop matches that began before or at the last event of the match."""


def to_first(name: str) -> Skip:
    """Create a skip strategy that drops matches that began before the first event of this step. If the step has no
    event, nothing is dropped."""
    return Skip("to_first", name)


def to_last(name: str) -> Skip:
    """Create a skip strategy that drops matches that began before the last event of this step. If the step has no
    event, nothing is dropped."""
    return Skip("to_last", name)
