"""Rows as columns, with the place of each key, so that a change costs little more than what has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Change:
    """Rows as they are now, with their keys, and the keys of rows that are gone."""

    rows: pa.Table
    keys: Sequence[str]
    gone: Sequence[str]


@dataclass(frozen=True)
class KeyedTable:
    """Rows, and the place of each by its key. Their order means nothing."""

    table: pa.Table
    places: dict[str, int]

    @classmethod
    def of(cls, table: pa.Table, keys: Sequence[str]) -> KeyedTable:
        return cls(table, {key: place for place, key in enumerate(keys)})

    def changed(self, changes: Sequence[Change]) -> tuple[KeyedTable, Change]:
        """The rows after some changes, and all of these as one. Copies the columns."""
        before, order = self.table.num_rows, dict(self.places)
        gone: dict[str, None] = {}
        count = before
        for change in changes:
            for key in change.gone:
                if order.pop(key, None) is not None:
                    gone[key] = None
            order.update((key, count + number) for number, key in enumerate(change.keys))
            count += len(change.keys)
        parts = pa.concat_tables([self.table, *(change.rows for change in changes)])
        fresh = {key: place for key, place in order.items() if place >= before}
        net = Change(
            parts.take(pa.array(fresh.values(), pa.int64())).combine_chunks(),
            list(fresh),
            [key for key in gone if key not in order],
        )
        if not fresh and not net.gone:
            return self, net
        table = parts.take(pa.array(order.values(), pa.int64())).combine_chunks()
        return KeyedTable.of(table, list(order)), net


def in_order(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows sorted by their key columns, field by field where one is a struct. No two rows have the same key, so there
    is one such order."""
    columns = list(_plain(table.select(list(key))))
    names = [str(place) for place in range(len(columns))]
    places = pc.sort_indices(pa.table(columns, names), [(name, "ascending") for name in names])
    return table.take(places).combine_chunks()


def _plain(table: pa.Table) -> Iterator[pa.ChunkedArray]:
    """The columns of a table, with the fields of structs in their place."""
    while any(pa.types.is_struct(each) for each in table.schema.types):
        table = table.flatten()
    return iter(table.columns)
