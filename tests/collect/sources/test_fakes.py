"""The source writer that the tests of sources use keeps the promises of its contract."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from penstock.core.contracts import SourceWriter
from tests.collect.sources.file_workers import CrashingWriter
from tests.contracts.source_writer import SourceWriterContract, WriterHome

MANY = 1_000


class CrashingWriterHome:
    """A writer whose process does not end during a test."""

    def __init__(self) -> None:
        self._writer = CrashingWriter(random.Random(0))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SourceWriter]:
        self._writer.restart(MANY, events_min=MANY)
        yield self._writer

    def events(self) -> Sequence[bytes]:
        return self._writer.durable_events


class TestCrashingWriter(SourceWriterContract):
    @pytest.fixture
    def home(self) -> WriterHome:
        return CrashingWriterHome()
