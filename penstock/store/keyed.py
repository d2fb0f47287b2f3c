"""Rows as columns, with the place of each key, so that a change costs little more than what has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


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
