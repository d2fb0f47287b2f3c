"""Inputs for queries, in the form that the query processes receive.

The rows of a stream or view are stored in an in-memory file, which the query processes map without copying it. The file
is kept, and is recreated only when there are new rows.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl
from mmap import PROT_READ, mmap

import msgspec
import pyarrow as pa

from penstock.core.access import RowRule
from penstock.core.cursor import of_part
from penstock.core.errors import BadExpression, Forbidden, QueryTooLarge
from penstock.core.filters import said
from penstock.serve.channels.threads import for_reader
from penstock.serve.query.relations import Relation, RelationRows, seen

LIMITED_MAX = 8
"""Maximum number of extracts of a stream or view, for different row rules, that are kept for the next query."""
_log = logging.getLogger("penstock.serve")


class SharedFile:
    """A query's input table in an in-memory file for other processes to read. The file is sealed, so no process can
    change it.

    It is closed when the last reference to this object is gone.
    """

    def __init__(self, table: pa.Table) -> None:
        self.descriptor = os.memfd_create("table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(self.descriptor, "wb", closefd=False) as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
            self.size = file.tell()
        fcntl(self.descriptor, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)

    def table(self) -> pa.Table:
        """Return the table in the file, without copying it."""
        return pa.ipc.open_stream(pa.py_buffer(mmap(self.descriptor, 0, prot=PROT_READ))).read_all()

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True)
class Extract:
    file: SharedFile
    version: Hashable
    cursor: str


class QuerySource:
    """A relation with its last extract. Not thread-safe."""

    def __init__(self, name: str, relation: Relation, *, bytes_max: int) -> None:
        self.name, self.kind, self.part_of = name, relation.kind, relation.part_of
        self._relation, self._bytes_max = relation, bytes_max
        self._extract: Extract | None = None
        self._limited: OrderedDict[bytes, Extract] = OrderedDict()
        self._tasks = asyncio.Lock()

    async def version(self) -> Hashable:
        """Return the relation's current version. The version of a view is in memory; that of a stream is read from
        disk."""
        if self.kind == "view":
            return self._relation.version()
        return await asyncio.to_thread(self._relation.version)

    async def extract(self, rule: RowRule | None = None, who: str = "") -> Extract:
        """Return the relation's current rows that the rule allows. The rows are read when it is the caller's turn.

        Callers that request them while they are being read share the result.
        """
        async with self._tasks:
            if self._extract is None or self._extract.version != await self.version():
                self._limited.clear()
                self._extract = await for_reader(who, self._make, self._relation.prepare())
            if rule is None:
                return self._extract
            key = rule_key(rule)
            if key not in self._limited:
                self._limited[key] = await for_reader(who, self._make_limited, self._extract, rule)
            self._limited.move_to_end(key)
            while len(self._limited) > LIMITED_MAX:
                self._limited.popitem(last=False)
            return self._limited[key]

    @property
    def held(self) -> int:
        """The number of bytes held for the next query."""
        extracts = [] if self._extract is None else [self._extract]
        return sum(extract.file.size for extract in (*extracts, *self._limited.values()))

    def forget(self) -> None:
        """Drop the relation's rows; they are read again on demand."""
        self._extract = None
        self._limited.clear()

    def _make_limited(self, extract: Extract, rule: RowRule) -> Extract:
        """Return the relation's rows that a rule allows. Raises `Forbidden` if the rule does not match the columns."""
        try:
            table = seen(extract.file.table(), rule.condition, None, rule.claims)
        except BadExpression as error:
            _log.error("access to %s is refused: %s", self.name, error)
            raise Forbidden(f"access to {self.name} is refused: the row rule does not match its columns") from None
        cursor = of_part(extract.cursor, rule.condition, said(rule.condition, rule.claims))
        return Extract(SharedFile(table), extract.version, cursor)

    def _make(self, read: Callable[[], RelationRows]) -> Extract:
        rows = read()
        if rows.table.nbytes > self._bytes_max:
            raise QueryTooLarge(f"{self.name} is larger than the {self._bytes_max // 2**20} MiB that a query can read")
        return Extract(SharedFile(rows.table), rows.version, rows.cursor)


def rule_key(rule: RowRule) -> bytes:
    """Return a key that is equal for row rules that allow the same rows."""
    return msgspec.json.encode([rule.condition, rule.claims], order="deterministic", enc_hook=str)
