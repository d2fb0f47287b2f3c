"""Read connections to one file, lent to one thread at a time."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import files

IDLE_MAX = 8
"""Connections kept open for the next reader. More may be out at once, one for each reading thread."""


class Pool:
    """Lends connections that see a file but cannot change it. Any thread may call."""

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
            connection.text_factory = bytes  # our columns hold no text: if one seems to, its checksum shall tell
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
        """Close what is idle; what is lent is closed when it comes back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
