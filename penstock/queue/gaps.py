"""Gaps between offsets, for tests. The embedded log normally has no gaps, but a log such as Kafka does.

If the environment variable `PENSTOCK_TEST_GAPS` is set, every log that is opened for writing skips offsets. Short gaps
occur at random, within and after batches. Long gaps occur at fixed positions, including one before the first row of a
partition. The variable's value is the random seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from random import Random

from penstock.core.settings import TEST_GAPS

VARIABLE = TEST_GAPS
LENGTH_MAX = 4
WITHIN_SHARE, BEHIND_SHARE = 0.02, 0.5
"""The share of rows that follow a short gap within a batch, and the share of batches that are followed by a short
gap."""
FIRST_ROW = 1_100
"""The offset of a partition's first row."""
LONG_PERIOD, LONG_BEGIN, LONG_END = 200_000, 1_150, 151_150
"""In each period, no row has an offset in [LONG_BEGIN, LONG_END): more offsets than any reader reads at a time."""

Offsets = Callable[[int, int], Sequence[int]]
"""A function that takes the lowest offset to use and a number of rows. It returns an offset for each row, followed by
the next free offset. If there are no rows, it returns only the lowest offset."""


def dense(first: int, rows: int) -> Sequence[int]:
    """Return log offsets without gaps."""
    return range(first, first + rows + 1)


def chosen() -> Offsets:
    """Return the offset function that the environment selects."""
    seed = os.environ.get(VARIABLE)
    return dense if not seed else sparse(Random(seed))


def sparse(draw: Random) -> Offsets:
    """Return a function that assigns log offsets with random short gaps, and with long gaps at fixed positions."""

    def offsets(first: int, rows: int) -> Sequence[int]:
        given = [_past_long_gap(first) if rows else first]
        for row in range(1, rows + 1):
            share = WITHIN_SHARE if row < rows else BEHIND_SHARE
            short = draw.randint(1, LENGTH_MAX) if draw.random() < share else 0
            given.append(_past_long_gap(given[-1] + 1 + short))
        return given

    return offsets


def _past_long_gap(offset: int) -> int:
    """Return the first offset, at or after this offset, that is not in a long gap."""
    if offset < FIRST_ROW:
        return FIRST_ROW
    within = offset % LONG_PERIOD
    return offset - within + LONG_END if LONG_BEGIN <= within < LONG_END else offset
