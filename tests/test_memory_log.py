"""The logs in memory that other tests use keep the promises of the contract that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.core.contracts import NO_MARKS, Admission, AdmissionLog, BlockingLogReader
from tests.contracts.log import AdmissionContract, AdmissionHome, LogChanges, WaitContract, batch, spec
from tests.contracts.watch import WakingWatchContract, WatchHome
from tests.memory_log import MemoryLog
from tests.serve.fakes import FakeLog


class LogWithGaps(MemoryLog):
    """Leaves a gap after each admission."""

    def admit(
        self, stream: str, batches: Mapping[int, pa.RecordBatch], marks: Mapping[str, str] = NO_MARKS
    ) -> Admission:
        admission = super().admit(stream, batches, marks)
        for partition in batches:
            self.leave_gap(stream, partition, 3)
        ends = self.ends(stream)
        return replace(admission, ends={partition: ends[partition] for partition in batches})


class FakeLogWithGaps(LogWithGaps, FakeLog):
    """The same for the log of serve's tests."""


class MemoryHome:
    """One log in memory, which cannot be closed."""

    def __init__(self, make: Callable[[], MemoryLog]) -> None:
        self._log = make()

    def open(self) -> AdmissionLog:
        return self._log

    def trim(self, log: AdmissionLog, stream: str, before: Mapping[int, int]) -> None:
        for partition, start in before.items():
            self._log.trim_to(stream, partition, start)


def declared(log: MemoryLog) -> MemoryLog:
    """Return a log in which the stream of the contract is declared."""
    log.declare(spec())
    return log


class TestMemoryLog(AdmissionContract, WaitContract):
    @pytest.fixture
    def home(self) -> AdmissionHome:
        return MemoryHome(MemoryLog)

    @pytest.fixture
    def waiting(self) -> BlockingLogReader:
        return declared(MemoryLog())


class TestWatchOfMemoryLog(WakingWatchContract):
    @pytest.fixture
    def home(self) -> WatchHome:
        log = MemoryLog()
        log.declare(spec())
        return LogChanges(log, lambda number: log.admit("fixes", {0: batch([number])}))


@pytest.mark.usefixtures("dense")
class TestMemoryLogWithGaps(AdmissionContract, WaitContract):
    @pytest.fixture
    def home(self) -> AdmissionHome:
        return MemoryHome(LogWithGaps)

    @pytest.fixture
    def waiting(self) -> BlockingLogReader:
        return declared(LogWithGaps())


@pytest.mark.usefixtures("dense")
class TestFakeLogWithGaps(AdmissionContract, WaitContract):
    @pytest.fixture
    def home(self) -> AdmissionHome:
        return MemoryHome(FakeLogWithGaps)

    @pytest.fixture
    def waiting(self) -> BlockingLogReader:
        return declared(FakeLogWithGaps())
