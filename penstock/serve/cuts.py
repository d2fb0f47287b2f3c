"""What is seen of a view's rows and changes through a lens: made once for each version, for all who look through it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from penstock.contracts import Change
from penstock.serve.lens import Lens
from penstock.serve.pieces import join

INLINE_ROWS = 64
"""So many rows are looked at in the event loop, in some tenths of a millisecond; more of them in a thread."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Most that is kept of changes that were cut."""

T = TypeVar("T")


class Data(msgspec.Struct):
    """What a change holds."""

    upserts: list[msgspec.Raw]
    deletes: list[msgspec.Raw]


decode_data = msgspec.json.Decoder(Data).decode


class Unknown(Exception):
    """It is not known any more whether the reader could see the rows that a change took away, and it must not be told
    of those that it could not."""


def cut(change: Change, lens: Lens, key: tuple[str, ...]) -> Change | None:
    """A change as it is seen through a lens; None if it is not."""
    return cut_all([change], lens, key)[0]


def cut_all(changes: Sequence[Change], lens: Lens, key: tuple[str, ...]) -> list[Change | None]:
    """Each change as it is seen through a lens; None for one that is not. A row that is no longer seen is a delete.

    Their rows are looked at together: a look costs much more than a row. If the rows before a change are not known,
    what is not seen now counts as gone: a client may be told to delete what it never had.
    """
    if lens.strict and any(change.before is None for change in changes):
        raise Unknown
    parts = [_Part.of(change) for change in changes]
    seen = iter(lens.json_rows([row for part in parts for row in part.looked_at()]))
    return [part.cut(change, seen, key) for part, change in zip(parts, changes, strict=True)]


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

    def cut(self, change: Change, seen: Iterator[bytes | None], key: tuple[str, ...]) -> Change | None:
        now = [next(seen) for _ in self.rows]
        earlier = [None if row is None else next(seen) for row in self.before]
        guessed = change.before is None
        upserts, deletes = list[bytes](), list[bytes]()
        for row, shown, then in zip(self.rows, now, earlier, strict=False):
            if shown is not None and shown != then:
                upserts.append(shown)
            elif shown is None and (guessed or then is not None):
                deletes.append(_key_of(row, key))
        for name, then in zip(self.deletes, earlier[len(self.rows) :], strict=True):
            if guessed or then is not None:
                deletes.append(bytes(name))
        return Change(change.version, changed(upserts, deletes)) if upserts or deletes else None


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
        self._made: OrderedDict[tuple[Lens, int, int], asyncio.Future[T]] = OrderedDict()
        self._bytes = 0

    async def get(self, lens: Lens, generation: int, version: int, rows: int, make: Callable[[], T]) -> T:
        """What was made for this lens and version; else it is made, in a thread if there are many rows."""
        name = (lens, generation, version)
        found = self._made.get(name)
        if found is not None:
            self._made.move_to_end(name)
            return found.result() if found.done() else await asyncio.shield(found)
        if rows <= INLINE_ROWS:
            result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            try:
                result.set_result(make())
            except Exception as error:
                result.set_exception(error)
        else:
            result = asyncio.ensure_future(asyncio.to_thread(make))
        self._made[name] = result
        try:
            made = await asyncio.shield(result)
        except Exception:
            self._made.pop(name, None)
            raise
        self._bytes += self._size(made)
        self._shrink()
        return made

    def _shrink(self) -> None:
        while self._bytes > self._bytes_max and len(self._made) > 1:
            name = next((name for name, each in self._made.items() if each.done()), None)
            if name is None:
                return
            gone = self._made.pop(name)
            if gone.exception() is None:
                self._bytes -= self._size(gone.result())
