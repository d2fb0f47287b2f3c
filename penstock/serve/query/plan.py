"""A query of a caller: what is to be run, and which rows it may see."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from penstock.access import RowRule
from penstock.serve.query.check import Checked
from penstock.serve.query.sources import rule_key


@dataclass(frozen=True)
class Plan:
    """`rules` has, for each of the streams and views that are read, the rule for its rows, None if all may be seen."""

    checked: Checked
    rules: tuple[RowRule | None, ...]

    @property
    def key(self) -> Hashable:
        """The same for those who ask the same and see the same."""
        seen = tuple(None if rule is None else rule_key(rule) for rule in self.rules)
        return self.checked.sql, self.checked.reads, seen
