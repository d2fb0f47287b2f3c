"""A caller's query: the SQL to run, and the rules for the rows that it can read."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from penstock.core.access import RowRule
from penstock.serve.query.check import Checked
from penstock.serve.query.sources import rule_key


@dataclass(frozen=True)
class QueryPlan:
    """A checked query with its rules.

    `rules` contains, for each stream or view that the query reads, the rule for its rows, or None for all rows.
    """

    checked: Checked
    rules: tuple[RowRule | None, ...]

    @property
    def key(self) -> Hashable:
        """Return a key that is equal for the same query with the same rules."""
        seen = tuple(None if rule is None else rule_key(rule) for rule in self.rules)
        return self.checked.sql, self.checked.reads, seen
