"""Rows as columns, with the position of each key, so that the cost of applying a change depends mostly on the number of
changed rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class RowChanges:
    """A view's changed rows with their keys, and the keys of deleted rows."""

    rows: pa.Table
    keys: Sequence[str]
    deletes: Sequence[str]


@dataclass(frozen=True)
class KeyedTable:
    """A view's rows, and the position of each row by its key. The order of the rows is not significant."""

    table: pa.Table
    rows_by_key: dict[str, int]

    @classmethod
    def of(cls, table: pa.Table, keys: Sequence[str]) -> KeyedTable:
        return cls(table, {key: place for place, key in enumerate(keys)})

    def changed(self, changes: Sequence[RowChanges]) -> tuple[KeyedTable, RowChanges]:
        """Apply changes to the rows of a view. Returns the resulting rows, and all changes combined into one. Copies
        the columns."""
        before, order = self.table.num_rows, dict(self.rows_by_key)
        deletes: dict[str, None] = {}
        count = before
        for change in changes:
            for key in change.deletes:
                if order.pop(key, None) is not None:
                    deletes[key] = None
            order.update((key, count + number) for number, key in enumerate(change.keys))
            count += len(change.keys)
        parts = pa.concat_tables([self.table, *(change.rows for change in changes)])
        fresh = {key: place for key, place in order.items() if place >= before}
        net = RowChanges(
            parts.take(pa.array(fresh.values(), pa.int64())).combine_chunks(),
            list(fresh),
            [key for key in deletes if key not in order],
        )
        if not fresh and not net.deletes:
            return self, net
        table = parts.take(pa.array(order.values(), pa.int64())).combine_chunks()
        return KeyedTable.of(table, list(order)), net


def in_order(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return a view's rows sorted by their key columns, field by field for structs. No two rows have the same key, so
    there is only one such order."""
    columns = list(_flat_columns(table.select(list(key))))
    names = [str(place) for place in range(len(columns))]
    rows_by_key = pc.sort_indices(pa.table(columns, names), [(name, "ascending") for name in names])
    return table.take(rows_by_key).combine_chunks()


def _flat_columns(table: pa.Table) -> Iterator[pa.ChunkedArray]:
    """Yield the columns of a table, with structs replaced by their fields."""
    while any(pa.types.is_struct(column_type) for column_type in table.schema.types):
        table = table.flatten()
    return iter(table.columns)
