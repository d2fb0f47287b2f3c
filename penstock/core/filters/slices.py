"""Slices of a batch: few enough rows at a time that the strings created for them fit into memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.core.filters.limits import SLICE_BYTES, SLICE_ROWS, TEXT_BYTES_MAX


class Slicing(NamedTuple):
    """Limits on the rows that an expression is evaluated for at a time: their number, and the size in bytes of the
    columns that it reads, or None if it does not copy them."""

    rows_max: int = SLICE_ROWS
    bytes_max: int | None = None

    @classmethod
    def of(cls, created: int, copied: int, row_bytes: int = 0) -> Slicing:
        """Return the slicing for an expression in which `created` operations create strings of up to `TEXT_BYTES_MAX`,
        and `copied` operations return copies of strings or lists. All of them can exist at once. `row_bytes` is what a
        row holds in addition."""
        row_size = created * TEXT_BYTES_MAX + row_bytes
        return cls(
            max(1, min(SLICE_ROWS, SLICE_BYTES // row_size)) if row_size else SLICE_ROWS,
            SLICE_BYTES // copied if copied else None,
        )

    def parts(self, batch: pa.RecordBatch, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        """Yield the slices of a batch, at least one. `columns` are the columns whose size counts. A single row is
        never split."""
        if batch.num_rows <= (1 if self.bytes_max is not None else self.rows_max):
            yield batch
            return
        names = [name for name in batch.schema.names if name in columns]
        for start in range(0, max(1, batch.num_rows), self.rows_max):
            yield from self._halves(batch.slice(start, self.rows_max), names)

    def _halves(self, part: pa.RecordBatch, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if (
            self.bytes_max is None
            or part.num_rows <= 1
            or sum(part.column(name).nbytes for name in names) <= self.bytes_max
        ):
            yield part
            return
        middle = part.num_rows // 2
        yield from self._halves(part.slice(0, middle), names)
        yield from self._halves(part.slice(middle), names)


WHOLE_SLICES = Slicing()
"""The slices for expressions that neither create nor copy strings."""


def joined_slices(pieces: Sequence[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
