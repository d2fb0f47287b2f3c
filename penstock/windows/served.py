"""The closed windows of a key whose rows are still in the view, in the key's state, oldest first.

They are stored as packed pairs of integers: for windows by time, the numbers of the first and the last window in a run
of windows without a gap; for sessions, the start and end of each. So the size is proportional to the rows at most, and
reading and writing it with the state costs almost nothing.
"""

from __future__ import annotations

from struct import Struct

_PAIR, _NUMBER = Struct("<qq"), Struct("<q")
_SIZE = _PAIR.size
Pair = tuple[int, int]


def oldest(served: bytearray) -> Pair:
    first, last = _PAIR.unpack_from(served)
    return first, last


def starts_by(served: bytearray, number: int) -> bool:
    """Return whether the oldest pair begins at `number` or before. Called each time that a window closes."""
    return bool(served) and _NUMBER.unpack_from(served)[0] <= number


def newest(served: bytearray) -> Pair:
    first, last = _PAIR.unpack_from(served, len(served) - _SIZE)
    return first, last


def append(served: bytearray, pair: Pair) -> None:
    served += _PAIR.pack(*pair)


def append_number(served: bytearray, number: int) -> None:
    """Add a window by its number, which must be greater than all others: to the newest run, or as a new run."""
    last = len(served) - _NUMBER.size
    if served and _NUMBER.unpack_from(served, last)[0] == number - 1:
        _NUMBER.pack_into(served, last, number)
    else:
        append(served, (number, number))


def take_oldest(served: bytearray) -> Pair:
    """Remove the oldest pair and return it."""
    pair = oldest(served)
    del served[:_SIZE]
    return pair


def take_numbers(served: bytearray, last: int) -> list[int]:
    """Remove the numbers up to `last` from the runs, and return them."""
    taken: list[int] = []
    while starts_by(served, last):
        first, end = oldest(served)
        taken += range(first, min(end, last) + 1)
        if end > last:
            _PAIR.pack_into(served, 0, last + 1, end)
        else:
            del served[:_SIZE]
    return taken
