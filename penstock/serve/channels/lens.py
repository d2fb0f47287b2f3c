"""What a reader sees of events and rows: filters, one after the other, and the rest as JSON.

A feed's filter comes before that of its reader, and what a caller may see of the rows comes before both. Each is typed
against what the one before it gives. Lenses with the same filters are equal, so what one has made of a piece can be
kept for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import from_json_rows, json_rows
from penstock.cursor import narrowed
from penstock.errors import Busy
from penstock.filters import Filter, compiled, said
from penstock.schema import SYSTEM_COLUMNS, shown


@dataclass(frozen=True)
class Lens:
    """Filters of rows that have `schema`. `key` has the columns that a selection always keeps."""

    schema: pa.Schema = field(compare=False)
    key: tuple[str, ...] = field(default=(), compare=False)
    stages: tuple[Filter, ...] = ()
    strict: bool = False
    """Whether a reader must not hear of rows that it cannot see, not even that they are gone."""
    sight: bytes = b""
    """What is shown at all to those who look through it, whatever they ask for themselves: a part of their cursors."""

    @property
    def shown(self) -> pa.Schema:
        """The columns of what is seen."""
        return self.stages[-1].schema if self.stages else self.schema

    def through(self, where: str | None, select: str | None) -> Lens:
        """This lens with one filter more; `BadExpression` if it is none."""
        if where is None and select is None:
            return self
        added = compiled(self.shown, where, select, key=self.key)
        return replace(self, stages=(*self.stages, added))

    def part(self, where: str | None, select: str | None) -> Lens:
        """The same with a filter of the app, which is not the reader's choice."""
        return replace(self.through(where, select), sight=narrowed(self.sight, where, select))

    def limited(self, where: str, claims: Mapping[str, Any]) -> Lens:
        """This lens for one who must not hear of rows for which the condition does not hold."""
        added = compiled(self.shown, where, None, key=self.key, claims=claims)
        sight = narrowed(self.sight, where, said(where, claims))
        return replace(self, stages=(*self.stages, added), strict=True, sight=sight)

    def __bool__(self) -> bool:
        return bool(self.stages)

    def rows(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """Each event as JSON, None for those that are not seen. System columns are not shown."""
        if not self.stages:
            return list(json_rows(batch, [name for name in batch.schema.names if name not in SYSTEM_COLUMNS]))
        seen, places = self._seen(self._fitted(batch))
        made: list[bytes | None] = [None] * batch.num_rows
        for place, row in zip(places, json_rows(seen), strict=True):
            made[place] = row
        return made

    def json_rows(self, rows: Sequence[bytes], columns: pa.RecordBatch | None = None) -> list[bytes | None]:
        """The same for rows that are JSON already. Those of which no column is selected are given as they are.
        `columns` has those that are `asked` of the same rows, if somebody has read them already."""
        if not self.stages:
            return list(rows)
        seen, places = self._seen(from_json_rows(rows, self.schema, self.asked) if columns is None else columns)
        made: list[bytes | None] = [None] * len(rows)
        shown = json_rows(seen) if self._selects() else [rows[place] for place in places]
        for place, row in zip(places, shown, strict=True):
            made[place] = row
        return made

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the schema. Who writes the stream may not have heard yet of one that is new."""
        if set(self.schema.names) <= set(batch.schema.names):
            return batch.select(self.schema.names)
        there = {name: batch.column(name) for name in batch.schema.names}
        columns = [there.get(each.name, pa.nulls(batch.num_rows, each.type)) for each in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _seen(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        """What is left of a batch, and which rows those were."""
        places = pa.array(range(batch.num_rows), pa.int32())
        for stage in self.stages:
            mask = stage.mask(batch)
            if not pc.all(mask, min_count=0).as_py():
                batch, places = batch.filter(mask), places.filter(mask)
            batch = stage.project(batch)
        return batch, places.to_pylist()

    def _selects(self) -> bool:
        return any(stage.selects for stage in self.stages)

    @property
    def asked(self) -> list[str]:
        """The columns of the rows that are needed at all. Filters behind one that selects see nothing else of them."""
        wanted = set[str]()
        for stage in self.stages:
            wanted |= stage.columns if stage.selects else stage.asked
            if stage.selects:
                break
        return [name for name in self.schema.names if name in wanted]


class InUse:
    """The lenses that someone looks through just now, each once, and what became of slow readers. Belongs to one event
    loop."""

    def __init__(self, of: str, most: int) -> None:
        self._of, self._most = of, most
        self._readers: Counter[Lens] = Counter()
        self._own: dict[str, Counter[Lens]] = {}
        self.stalls = self.merges = self.resets = 0

    def __iter__(self) -> Iterator[Lens]:
        return iter(self._readers)

    def __contains__(self, lens: Lens) -> bool:
        return lens in self._readers

    @property
    def readers(self) -> int:
        return self._readers.total()

    def describe(self) -> dict[str, int]:
        """For the figures of the app: who reads now, through how many filters, and how often a reader was told that it
        is behind, got several changes as one, or lost its place."""
        return {
            "readers": self.readers,
            "filters": sum(map(bool, self._readers)),
            "stalls": self.stalls,
            "merges": self.merges,
            "resets": self.resets,
        }

    @contextmanager
    def one(self, lens: Lens, who: str) -> Iterator[None]:
        """Look through a lens while in the block. `Busy` if it is another one than those in use, and too many, or half
        of what may be are this caller's: there is always room for another. One without a name has no share."""
        own = self._own.setdefault(who, Counter()) if lens else Counter[Lens]()
        try:
            self._require_room(lens, own, who)
            with _counted(self._readers, lens), _counted(own, lens):
                yield
        finally:
            if not own and self._own.get(who) is own:
                del self._own[who]

    def callers(self) -> list[str]:
        """Those who look through filters."""
        return list(self._own)

    def used_by(self, who: str) -> list[Lens]:
        """The filters of a caller."""
        return list(self._own.get(who, ()))

    def _require_room(self, lens: Lens, own: Counter[Lens], who: str) -> None:
        if not lens:
            return
        if lens not in self._readers and sum(map(bool, self._readers)) >= self._most:
            raise Busy(f"all {self._most} filters that may be in use on {self._of} are taken", retry_after_s=5)
        share = max(1, self._most // 2)
        if who and lens not in own and len(own) >= share:
            raise Busy(f"you use {share} filters on {self._of}, and no one may use more", retry_after_s=5)


@contextmanager
def _counted(readers: Counter[Lens], lens: Lens) -> Iterator[None]:
    readers[lens] += 1
    try:
        yield
    finally:
        readers[lens] -= 1
        if readers[lens] == 0:
            del readers[lens]


NOTHING = Lens(pa.schema([]))
"""Before the eyes of one who sees everything."""


def lens_on(name: str, schema: pa.Schema | None, key: Sequence[str] = ()) -> Lens:
    """A lens to begin with, on a stream or view whose types are known; `Busy` as long as they are not."""
    if schema is None:
        raise Busy(f"the columns of {name} are not known yet: the query that makes it has not started", retry_after_s=2)
    return Lens(shown(schema), tuple(key))
