"""Promises of every `Source`: `SourceContract`, inherited by the tests of each implementation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.core.contracts import Source, SourceStatus
from tests.clocks import until
from tests.collect.support import opened
from tests.memory_log import MemoryLog

DEADLINE_S = 60.0


class SourceContract:
    """Promises of every `Source`. Inherit this and define both methods and the attributes."""

    KIND: str
    ADDRESS: str
    """The address of `declared`."""

    def declared(self) -> Source:
        """Return a source, always with the same options. Each secret among them is the word `hidden`."""
        raise NotImplementedError

    def absent(self, tmp_path: Path) -> Source:
        """Return a source of which there is nothing to read, and from which nothing will come."""
        raise NotImplementedError

    def test_it_names_its_kind_and_its_address(self) -> None:
        source = self.declared()
        assert (source.kind, source.address) == (self.KIND, self.ADDRESS)

    def test_it_is_a_value_that_shows_no_secret(self) -> None:
        source = self.declared()
        assert source == self.declared()
        assert hash(source) == hash(self.declared())
        assert "hidden" not in repr(source) + str(source) + source.address
        for name in ("backoff", "address"):
            with pytest.raises(AttributeError):
                setattr(source, name, None)

    def test_it_goes_on_until_it_is_cancelled_though_there_is_nothing(self, tmp_path: Path) -> None:
        async def check() -> None:
            log, status = MemoryLog(), SourceStatus()
            async with asyncio.timeout(DEADLINE_S), opened(log) as rig:
                writer = rig.ingress.writer_for_source("feed", "raw")
                running = asyncio.create_task(self.absent(tmp_path).run(writer, status))
                await until(lambda: status.state != "starting" or running.done())
                assert not running.done()
                running.cancel()
                await asyncio.wait([running])
                assert running.cancelled()
                assert (log.events("raw"), status.received) == ([], 0)

        asyncio.run(check())
