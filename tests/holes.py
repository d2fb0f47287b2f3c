"""Offsets with gaps where a test wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.queue.gaps import Offsets


def holes(lengths: Mapping[int, int]) -> Offsets:
    """Offsets of which no row has the `length` ones from each position on, in every partition."""

    def offsets(first: int, rows: int) -> Sequence[int]:
        given = [first + lengths.get(first, 0) if rows else first]
        for _ in range(rows):
            following = given[-1] + 1
            given.append(following + lengths.get(following, 0))
        return given

    return offsets
