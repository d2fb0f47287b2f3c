"""Fast conversion of Arrow columns to Python objects."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Literal

import pyarrow as pa

_STEP = 1_024
"""Number of values to convert at a time: few enough to stay in the CPU cache until events are built from them.
Converting a whole batch at once takes 50% longer."""
Reader = Callable[[pa.Array], Iterable[Any]]


def in_steps(read: Callable[[Any], Iterable[Any]]) -> Reader:
    """Return a reader that converts an Arrow column lazily, `_STEP` values at a time."""
    return lambda column: chain.from_iterable(
        read(column[first : first + _STEP]) for first in range(0, len(column), _STEP)
    )


def packed(code: Literal["i", "q", "d"], column: pa.Array) -> array[Any]:
    """Convert a numeric Arrow column without nulls to an array. `code` is the array type code that matches the column's
    type."""
    numbers = array(code)
    if len(column):
        held = memoryview(column.buffers()[1]).cast(code)
        numbers.frombytes(held[column.offset : column.offset + len(column)].cast("B"))
    return numbers
