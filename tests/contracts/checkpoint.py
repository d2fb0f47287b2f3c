"""Promises of every `QueryCheckpoint`: `QueryCheckpointContract`, inherited by the tests of each implementation."""

from __future__ import annotations

import json
from typing import Protocol

import pytest

from penstock.analyze.contracts import QueryCheckpoint
from penstock.core.contracts import LedgerEntry
from penstock.core.errors import LedgerMismatch


def entry(batch: int) -> LedgerEntry:
    """Return the ledger of a query whose batch N ends at 10 * (N + 1)."""
    start = json.dumps([{"s/0": 10 * batch}], separators=(",", ":")) if batch else "[]"
    return LedgerEntry(batch, start, json.dumps([{"s/0": 10 * (batch + 1)}], separators=(",", ":")), 1)


class CheckpointHome(Protocol):
    """The place of one checkpoint, into which a test writes as Spark does."""

    def make(self, planned: int, committed: int) -> QueryCheckpoint:
        """Plan batches 0 to `planned` - 1, and commit batches 0 to `committed` - 1. Batch N ends at 10 * (N + 1)."""

    def tear(self, batch: int) -> None:
        """Tear the plan of a batch, as a power cut does."""


class QueryCheckpointContract:
    """Promises of every `QueryCheckpoint`. Inherit this and define the fixture `home`."""

    @pytest.fixture
    def home(self) -> CheckpointHome:
        raise NotImplementedError

    def test_a_batch_has_the_range_that_spark_wrote_down(self, home: CheckpointHome) -> None:
        checkpoint = home.make(3, 2)
        assert checkpoint.range(0) == ("[]", '[{"s/0":10}]')
        assert checkpoint.range(2) == ('[{"s/0":20}]', '[{"s/0":30}]')

    def test_it_knows_what_was_planned_and_committed(self, home: CheckpointHome) -> None:
        checkpoint = home.make(3, 2)
        assert checkpoint.has_planned()
        assert [checkpoint.has_commit(batch) for batch in range(4)] == [True, True, False, False]

    def test_an_empty_checkpoint_has_planned_nothing_and_fits_an_empty_ledger(self, home: CheckpointHome) -> None:
        checkpoint = home.make(0, 0)
        assert (checkpoint.has_planned(), checkpoint.has_commit(0)) == (False, False)
        checkpoint.verify("v", None)

    @pytest.mark.parametrize("committed", [2, 3])
    def test_a_checkpoint_at_or_just_behind_the_ledger_fits(self, home: CheckpointHome, committed: int) -> None:
        home.make(3, committed).verify("v", entry(2))

    def test_a_planned_batch_beyond_the_ledger_fits(self, home: CheckpointHome) -> None:
        home.make(4, 3).verify("v", entry(2))

    @pytest.mark.parametrize(
        ("planned", "committed", "last", "says"),
        [
            (2, 2, entry(4), "ends at batch 1"),
            (0, 0, entry(4), "is empty"),
            (3, 3, None, "has no batch"),
            (6, 6, entry(2), "has committed batch 5"),
            (3, 3, LedgerEntry(2, '[{"s/0":20}]', '[{"s/0":99}]', 1), '"s/0":99'),
        ],
    )
    def test_a_foreign_checkpoint_is_refused_with_both_positions(
        self, home: CheckpointHome, planned: int, committed: int, last: LedgerEntry | None, says: str
    ) -> None:
        with pytest.raises(LedgerMismatch, match="ledger") as caught:
            home.make(planned, committed).verify("v", last)
        assert says in str(caught.value)

    def test_a_torn_plan_above_the_ledger_is_repaired(self, home: CheckpointHome) -> None:
        checkpoint = home.make(4, 3)
        home.tear(3)
        assert len(checkpoint.repair(entry(2))) == 2
        assert checkpoint.range(2) == ('[{"s/0":20}]', '[{"s/0":30}]')
        assert [checkpoint.has_commit(batch) for batch in range(3)] == [True, True, False]
        checkpoint.verify("v", entry(2))
