"""Read connections to one file. Each connection is lent to one thread at a time."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.core import files

IDLE_MAX = 8
"""Maximum number of idle connections kept open. More connections than that can be lent at the same time, one to each
reading thread."""


class ConnectionPool:
    """Lends read-only connections to a stream's file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: deque[sqlite3.Connection] = deque()
        self._closed = False

    @contextmanager
    def lend(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = files.connect(self._path, read_only=True)
            connection.text_factory = bytes  # no column contains text: a value marked as text must fail its checksum
        try:
            yield connection
        finally:
            self._take_back(connection)

    def _take_back(self, connection: sqlite3.Connection) -> None:
        if self._closed or len(self._idle) >= IDLE_MAX:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close idle connections to the stream's file. Connections that are currently lent are closed when they are
        returned."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
