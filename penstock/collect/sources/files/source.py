"""Base class of the sources that read files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from penstock.collect.sources.reconnect import keep_connected
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus, SourceWriter


class FileSource(ABC):
    """Base class of the file sources: reads again after a failure. Implements `contracts.Source`."""

    path: str | os.PathLike[str]
    backoff: Backoff

    @property
    @abstractmethod
    def kind(self) -> str: ...

    @property
    def address(self) -> str:
        return os.fspath(self.path)

    async def run(self, source_writer: SourceWriter, status: SourceStatus) -> None:
        """Read until cancelled. Raises only if the source writer fails, or the mark belongs to a different kind of
        source."""
        await keep_connected(
            lambda: self._read(source_writer, status), source_writer, status, self.backoff, self.address
        )

    @abstractmethod
    async def _read(self, source_writer: SourceWriter, status: SourceStatus) -> str:
        """Read until the file or folder cannot be read, and return the reason."""
