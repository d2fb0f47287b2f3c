"""What a query reads, as the processes that run queries are handed it.

The rows of a stream or view lie in a file in memory, whose pages those processes see without a copy. They are kept, and
made again only when there is something new.
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

from penstock.access import RowRule
from penstock.cursor import of_part
from penstock.errors import BadExpression, Forbidden, QueryTooLarge
from penstock.filters import said
from penstock.serve.channels.threads import for_reader
from penstock.serve.query.relations import Reading, Relation, seen

LIMITED_MAX = 8
"""Views of a stream or view by different rules that are held for the next query."""
_log = logging.getLogger("penstock.serve")


class SharedFile:
    """A table in memory, to be read by other processes: it is sealed, so that none of them can change it. Goes with the
    last one who knows it."""

    def __init__(self, table: pa.Table) -> None:
        self.descriptor = os.memfd_create("table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(self.descriptor, "wb", closefd=False) as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
            self.size = file.tell()
        fcntl(self.descriptor, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)

    def table(self) -> pa.Table:
        """What is in it, not copied."""
        return pa.ipc.open_stream(pa.py_buffer(mmap(self.descriptor, 0, prot=PROT_READ))).read_all()

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True)
class Extract:
    file: SharedFile
    version: Hashable
    cursor: str


class Source:
    """A relation with what was made of it last. Belongs to one event loop."""

    def __init__(self, name: str, relation: Relation, *, bytes_max: int) -> None:
        self.name, self.kind, self.part_of = name, relation.kind, relation.part_of
        self._relation, self._bytes_max = relation, bytes_max
        self._made: Extract | None = None
        self._limited: OrderedDict[bytes, Extract] = OrderedDict()
        self._making = asyncio.Lock()

    async def version(self) -> Hashable:
        """That of a view is in memory, that of a stream on the disk."""
        if self.kind == "view":
            return self._relation.version()
        return await asyncio.to_thread(self._relation.version)

    async def extract(self, rule: RowRule | None = None, who: str = "") -> Extract:
        """The rows now, as far as the rule lets them be seen, made in a turn of the caller. Those who ask while they
        are being made get the same."""
        async with self._making:
            if self._made is None or self._made.version != await self.version():
                self._limited.clear()
                self._made = await for_reader(who, self._make, self._relation.prepare())
            if rule is None:
                return self._made
            key = rule_key(rule)
            if key not in self._limited:
                self._limited[key] = await for_reader(who, self._make_limited, self._made, rule)
            self._limited.move_to_end(key)
            while len(self._limited) > LIMITED_MAX:
                self._limited.popitem(last=False)
            return self._limited[key]

    @property
    def held(self) -> int:
        """The bytes of what is held for the next query."""
        made = [] if self._made is None else [self._made]
        return sum(each.file.size for each in (*made, *self._limited.values()))

    def forget(self) -> None:
        """Let go of the rows; they are made again when they are asked for."""
        self._made = None
        self._limited.clear()

    def _make_limited(self, made: Extract, rule: RowRule) -> Extract:
        """What one sees who may see some of the rows. A rule that does not fit shows nothing."""
        try:
            table = seen(made.file.table(), rule.condition, None, rule.claims)
        except BadExpression as error:
            _log.error("the rows of %s are shown to no one: %s", self.name, error)
            raise Forbidden(f"the rows of {self.name} are limited by a rule that does not fit them") from None
        cursor = of_part(made.cursor, rule.condition, said(rule.condition, rule.claims))
        return Extract(SharedFile(table), made.version, cursor)

    def _make(self, read: Callable[[], Reading]) -> Extract:
        found = read()
        if found.table.nbytes > self._bytes_max:
            raise QueryTooLarge(f"{self.name} is larger than the {self._bytes_max // 2**20} MiB that a query may read")
        return Extract(SharedFile(found.table), found.version, found.cursor)


def rule_key(rule: RowRule) -> bytes:
    """The same for rules that show the same rows."""
    return msgspec.json.encode([rule.condition, rule.claims], order="deterministic", enc_hook=str)
