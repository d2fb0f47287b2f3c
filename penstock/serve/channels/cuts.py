"""What is seen of a view's rows and changes through a lens: made once for each version, for all who look through it."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from penstock.columns import from_json_rows
from penstock.contracts import Change
from penstock.serve.channels.lens import Lens
from penstock.serve.channels.pieces import join
from penstock.serve.channels.threads import for_reader

INLINE_ROWS = 64
"""So many rows are looked at in the event loop, in some tenths of a millisecond; more of them in a thread."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Most that is kept of changes that were cut."""

INLINE_ROW_BYTES = 1024
"""A row that is larger counts as several."""
ENTRY_BYTES = 512
"""What is kept for a version of which nothing is seen."""

T = TypeVar("T")
_Name = tuple[Lens, int, int]


class Data(msgspec.Struct):
    """What a change holds."""

    upserts: list[msgspec.Raw]
    deletes: list[msgspec.Raw]


decode_data = msgspec.json.Decoder(Data).decode


class Unknown(Exception):
    """It is not known any more whether the reader could see the rows that a change took away, and it must not be told
    of those that it could not."""


def looks(change: Change) -> int:
    """How many rows are looked at for a change, about."""
    if change.before is None:
        return 1 + len(change.data) // 100
    size = len(change.data) + sum(len(row) for row in change.before if row is not None)
    return max(len(change.before), size // INLINE_ROW_BYTES)


def cut(change: Change, lens: Lens, key: tuple[str, ...]) -> Change | None:
    """A change as it is seen through a lens; None if it is not."""
    return next(iter(cut_all(Offered([change]), lens, key)), None)


class Offered:
    """Changes that are to be looked at together, through any number of lenses: a look costs much more than a row, and
    what is read of the rows is read once for all who ask for the same columns. Used by one thread at a time."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.changes = changes
        self.parts = [_Part.of(change) for change in changes]
        self.rows = [row for part in self.parts for row in part.looked_at()]
        self.owners = [index for index, part in enumerate(self.parts) for _ in part.looked_at()]
        self.guessed = {index for index, change in enumerate(changes) if change.before is None}
        self._read: list[tuple[pa.Schema, list[str], pa.RecordBatch]] = []

    def columns(self, lens: Lens) -> pa.RecordBatch:
        """What a lens asks of the rows."""
        for schema, names, batch in self._read:
            if names == lens.asked and (schema is lens.schema or schema.equals(lens.schema)):
                return batch
        found = from_json_rows(self.rows, lens.schema, lens.asked)
        self._read.append((lens.schema, lens.asked, found))
        return found


def cut_all(offered: Offered, lens: Lens, key: tuple[str, ...]) -> list[Change]:
    """The changes that are seen through a lens, as they are seen. A row that is no longer seen is a delete.

    If the rows before a change are not known, what is not seen now counts as gone: a client may be told to delete what
    it never had.
    """
    if lens.strict and offered.guessed:
        raise Unknown
    seen = lens.json_rows(offered.rows, offered.columns(lens))
    touched = {owner for owner, row in zip(offered.owners, seen, strict=True) if row is not None}
    cuts = (_cut(offered, index, seen, key) for index in sorted(touched | offered.guessed))
    return [each for each in cuts if each is not None]


def _cut(offered: Offered, index: int, seen: Sequence[bytes | None], key: tuple[str, ...]) -> Change | None:
    """What of one change is seen."""
    part, change, guessed = offered.parts[index], offered.changes[index], index in offered.guessed
    looks = iter(seen[bisect_left(offered.owners, index) :])
    now = [next(looks) for _ in part.rows]
    earlier = [None if row is None else next(looks) for row in part.before]
    upserts, deletes = list[bytes](), list[bytes]()
    for row, shown, then in zip(part.rows, now, earlier, strict=False):
        if shown is not None and shown != then:
            upserts.append(shown)
        elif shown is None and (guessed or then is not None):
            deletes.append(_key_of(row, key))
    for name, then in zip(part.deletes, earlier[len(part.rows) :], strict=True):
        if guessed or then is not None:
            deletes.append(bytes(name))
    return Change(change.version, changed(upserts, deletes)) if upserts or deletes else None


@dataclass(frozen=True)
class _Part:
    """The rows of one change, and those that stood there before, of which None was."""

    rows: list[bytes]
    deletes: list[msgspec.Raw]
    before: Sequence[bytes | None]

    @classmethod
    def of(cls, change: Change) -> _Part:
        data = decode_data(change.data)
        before = change.before if change.before is not None else (None,) * (len(data.upserts) + len(data.deletes))
        return cls([bytes(row) for row in data.upserts], data.deletes, before)

    def looked_at(self) -> list[bytes]:
        return [*self.rows, *(row for row in self.before if row is not None)]


def changed(upserts: Sequence[bytes], deletes: Sequence[bytes]) -> bytes:
    return b'{"upserts":' + join(upserts) + b',"deletes":' + join(deletes) + b"}"


def _key_of(row: bytes, key: tuple[str, ...]) -> bytes:
    found: dict[str, Any] = msgspec.json.decode(row)
    return msgspec.json.encode({name: found[name] for name in key})


class Cuts(Generic[T]):
    """Results by lens and version, each made once though many ask at the same time. The least used go first.

    Belongs to one event loop.
    """

    def __init__(self, size: Callable[[T], int], bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._size = size
        self._bytes_max = bytes_max
        self._made: OrderedDict[_Name, tuple[T, int]] = OrderedDict()
        self._making: dict[_Name, asyncio.Task[T]] = {}
        self.bytes = 0

    async def get(
        self, lens: Lens, generation: int, version: int, rows: int, make: Callable[[], T], who: str = ""
    ) -> T:
        """What was made for this lens and version; else it is made, in a thread if there are many rows, in a turn of
        the caller who was first. It goes on though the one who asked goes: others may wait for it."""
        name = (lens, generation, version)
        found = self._made.get(name)
        if found is not None:
            self._made.move_to_end(name)
            return found[0]
        if name not in self._making:
            if rows <= INLINE_ROWS:
                return self._keep(name, *self._sized(make))
            self._making[name] = asyncio.create_task(self._make(name, make, who))
        return await asyncio.shield(self._making[name])

    async def _make(self, name: _Name, make: Callable[[], T], who: str) -> T:
        try:
            return self._keep(name, *await for_reader(who, self._sized, make))
        finally:
            del self._making[name]

    def _sized(self, make: Callable[[], T]) -> tuple[T, int]:
        made = make()
        return made, ENTRY_BYTES + self._size(made)

    def _keep(self, name: _Name, made: T, size: int) -> T:
        self._made[name] = made, size
        self.bytes += size
        while self.bytes > self._bytes_max and len(self._made) > 1:
            _, (_, gone) = self._made.popitem(last=False)
            self.bytes -= gone
        return made
