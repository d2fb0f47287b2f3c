"""A pattern and all that is to be known to look for it: one frozen value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from penstock.cep.memory import DEFAULT, Bounds
from penstock.cep.pattern import Pattern
from penstock.cep.problems import bounds_problems, problems
from penstock.cep.skip import Skip
from penstock.cep.skip import none as no_skip
from penstock.schema import Event


@dataclass(frozen=True)
class Search:
    """What is looked for: `every` match, or with False the first one and no more, `within` a time, with at most a `gap`
    from one event to the next.

    If one is `preferred`, there is one match for each first event, the best as `preferring.py` has it. `merges` says
    that no predicate looks at what has matched but at the event before: then of two partial matches that wait for the
    same only the better one is kept.
    """

    pattern: Pattern
    within: timedelta | None = None
    skip: Skip = no_skip
    every: bool = True
    bounds: Bounds = DEFAULT
    preferred: bool = False
    merges: bool = False
    gap: timedelta | None = None

    def problems(self, reads: Sequence[type[Event]] | None = None, bounded: bool = False) -> tuple[str, ...]:
        """All that is wrong with it; see `problems.problems`. What is preferred comes from a text, and was looked at
        where that was read, but for the bounds."""
        found = bounds_problems(self.bounds)
        if not self.preferred:
            found += problems(
                self.pattern, within=self.within, gap=self.gap, skip=self.skip, reads=reads, bounded=bounded
            )
        return tuple(found)
