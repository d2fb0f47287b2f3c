"""A pattern and all options for finding it, as one frozen value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from penstock.cep.memory import DEFAULT, Bounds
from penstock.cep.pattern import Pattern
from penstock.cep.problems import bounds_problems, problems
from penstock.cep.skip import Skip
from penstock.cep.skip import none as no_skip
from penstock.core.schema import Event


@dataclass(frozen=True)
class Search:
    """A pattern and its search options. With `every`, all matches are found; otherwise only the first. `within` limits
    the duration of a match, and `gap` the time from one event to the next.

    With `preferred`, there is one match for each first event: the best one according to the rules in
    `preferred_plan.py`. `merges` means that no predicate looks at the match so far, except at the previous event. In
    that case, if two partial matches have the same wait, only the better one is kept.
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
        """Return all errors in the pattern search; see `problems.problems`. A preferred search comes from SQL text, and
        its pattern was checked when the text was parsed, so this method checks only the bounds."""
        errors = bounds_problems(self.bounds)
        if not self.preferred:
            errors += problems(
                self.pattern, within=self.within, gap=self.gap, skip=self.skip, reads=reads, bounded=bounded
            )
        return tuple(errors)
