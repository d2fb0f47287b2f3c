"""Promises of every `Sink`: `SinkContract`, inherited by the tests of each implementation."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

import pytest

from penstock.core.contracts import LedgerEntry, Output, Sink
from penstock.core.errors import LedgerMismatch

MISFITS = {
    "another range": (1, 10, 21),
    "another start": (1, 9, 20),
    "a batch before": (0, 0, 10),
    "a batch left out": (3, 30, 40),
    "a hole in the range": (2, 21, 30),
}


class SinkHome(Protocol):
    """The storage of the output of one query. It outlives the sinks that are opened on it."""

    def open(self) -> AbstractContextManager[Sink]:
        """Open it for writing."""

    def output(self, batch_id: int, start: int, end: int, epoch: int) -> Output:
        """Return the output of a batch over a range of offsets."""

    def written(self) -> object:
        """Return everything that counts: what readers find, and the ledger."""


class SinkContract:
    """Promises of every `Sink`. Inherit this and define the fixture `sink_home`."""

    @pytest.fixture
    def sink_home(self) -> SinkHome:
        raise NotImplementedError

    def test_a_sink_knows_its_last_batch_after_a_restart_too(self, sink_home: SinkHome) -> None:
        with sink_home.open() as sink:
            assert sink.last() is None
            for number in range(3):
                output = _batch(sink_home, number, epoch=7)
                assert sink.commit(output)
                last = LedgerEntry(number, output.start, output.end, 7)
                assert sink.last() == last
        with sink_home.open() as again:
            assert again.last() == last

    def test_the_same_batch_again_changes_nothing(self, sink_home: SinkHome) -> None:
        """Also with a later epoch, or with its positions written in another way."""
        with sink_home.open() as sink:
            output = _batch(sink_home, 0)
            assert sink.commit(output)
            before = sink_home.written()
            assert not sink.commit(output)
            assert not sink.commit(_batch(sink_home, 0, epoch=2))
            assert not sink.commit(replace(output, end=json.dumps(json.loads(output.end), indent=2)))
        with sink_home.open() as again:
            assert not again.commit(output)
            assert sink_home.written() == before

    @pytest.mark.parametrize("misfit", MISFITS.values(), ids=MISFITS)
    def test_a_batch_that_does_not_fit_is_refused_with_both_positions(
        self, sink_home: SinkHome, misfit: tuple[int, int, int]
    ) -> None:
        with sink_home.open() as sink:
            sink.commit(_batch(sink_home, 0))
            last, offered = _batch(sink_home, 1), sink_home.output(*misfit, 1)
            sink.commit(last)
            before = sink_home.written()
            with pytest.raises(LedgerMismatch) as caught:
                sink.commit(offered)
            assert sink_home.written() == before
            assert sink.commit(_batch(sink_home, 2))
        for output in (last, offered):
            assert f"batch {output.batch_id} from {output.start} to {output.end}" in caught.value.message

    def test_an_older_epoch_is_refused_by_name(self, sink_home: SinkHome) -> None:
        with sink_home.open() as sink:
            sink.commit(_batch(sink_home, 0, epoch=5))
            before = sink_home.written()
            with pytest.raises(LedgerMismatch, match="epoch 4 is older than epoch 5"):
                sink.commit(_batch(sink_home, 1, epoch=4))
            assert sink_home.written() == before


def _batch(home: SinkHome, number: int, epoch: int = 1) -> Output:
    """Return batch N, which reads the offsets from 10 N to 10 N + 10."""
    return home.output(number, number * 10, number * 10 + 10, epoch)
