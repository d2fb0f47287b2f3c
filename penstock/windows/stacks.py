"""Panes of a sliding window, and what is kept of all of them together, at a cost that does not grow with their number.

Two stacks. New panes go to `back`, which keeps each of them and the sum of all. Old ones leave `front`, where each
stands with the sum of itself and all that came after it there; the oldest is its last. When that is empty, all of
`back` moves over. So each pane is merged three times, however many there are, and nothing is ever taken out of a sum:
what has left a window leaves no rounding error behind, and it works for a maximum as for a sum.

Where what is kept has a fixed size, a stack is packed bytes: reading and writing them with the state costs
next to nothing. Either way a pane is put on it, and taken off, in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from struct import Struct
from typing import Any

from penstock.windows.plan import Kept, Sums, record_struct

_NUMBER = Struct("<q")
_number = itemgetter(0)
Pane = tuple[int, Kept]
"""The number of a pane, and what is kept of it."""


class Packed:
    """A stack as bytes."""

    kind: Any = bytearray

    @property
    def empty(self) -> Any:
        return bytearray()

    def __init__(self, record: Struct, sums: Sums) -> None:
        self._record, self._pack, self._unpack = record, sums.pack, sums.unpack
        self._size = record.size

    def push(self, stack: bytearray, pane: Pane) -> None:
        stack += self._record.pack(*self._pack(*pane))

    def oldest(self, stack: bytearray) -> int:
        """The number of the first pane."""
        return int(_NUMBER.unpack_from(stack)[0])

    def last_number(self, stack: bytearray) -> int:
        """The number of the last pane."""
        return int(_NUMBER.unpack_from(stack, len(stack) - self._size)[0])

    def last(self, stack: bytearray) -> Pane:
        numbers = self._record.unpack_from(stack, len(stack) - self._size)
        return numbers[0], self._unpack(numbers)

    def pop(self, stack: bytearray) -> None:
        del stack[-self._size :]

    def backwards(self, stack: bytearray) -> Iterator[Pane]:
        """From the last to the first."""
        for at in range(len(stack) - self._size, -1, -self._size):
            numbers = self._record.unpack_from(stack, at)
            yield numbers[0], self._unpack(numbers)

    def made(self, panes: list[Pane]) -> bytearray:
        return bytearray().join([self._record.pack(*self._pack(*pane)) for pane in panes])


class Listed:
    """A stack as a list, for what has no fixed size."""

    @property
    def empty(self) -> Any:
        return []

    def __init__(self, sums: Sums) -> None:
        self.kind: Any = list[tuple[int, sums.kind]]  # type: ignore[name-defined]

    def push(self, stack: list[Pane], pane: Pane) -> None:
        stack.append(pane)

    def oldest(self, stack: list[Pane]) -> int:
        return stack[0][0]

    def last_number(self, stack: list[Pane]) -> int:
        return stack[-1][0]

    def last(self, stack: list[Pane]) -> Pane:
        return stack[-1]

    def pop(self, stack: list[Pane]) -> None:
        del stack[-1]

    def backwards(self, stack: list[Pane]) -> Iterator[Pane]:
        return reversed(stack)

    def made(self, panes: list[Pane]) -> list[Pane]:
        return panes


class Stacks:
    """The two stacks of a state, in its fields `front`, `back`, and `total`, the sum of `back`."""

    def __init__(self, sums: Sums) -> None:
        record = record_struct(sums)
        self.store: Packed | Listed = Listed(sums) if record is None else Packed(record, sums)
        self._merge = sums.merge

    def holds(self, state: Any) -> bool:
        return bool(state.front or state.back)

    def push(self, state: Any, pane: Pane) -> None:
        """Take a pane that is newer than all there are."""
        self.store.push(state.back, pane)
        state.total = pane[1] if state.total is None else self._merge(state.total, pane[1])

    def put(self, state: Any, number: int, add: Callable[[Kept], Kept], zero: Callable[[], Kept]) -> None:
        """Have what came late in the pane of that number, which may be a new one, and in all sums with it."""
        front = [*self.store.backwards(state.front)]
        if front and number <= front[-1][0]:
            if all(each != number for each, _ in front):
                front.append((number, next(kept for each, kept in front if each > number)))
            front.sort(key=_number, reverse=True)
            state.front = self.store.made([(each, add(kept) if each <= number else kept) for each, kept in front])
            return
        back = dict(self.store.backwards(state.back))
        back[number] = add(back.get(number, zero()))
        state.back = self.store.made(sorted(back.items(), key=_number))
        state.total = add(zero() if state.total is None else state.total)

    def evict(self, state: Any, first: int) -> None:
        """Let go of the panes before the one with that number."""
        while state.front and self.store.last_number(state.front) < first:
            self.store.pop(state.front)
        if not state.front and state.back and self.store.oldest(state.back) < first:
            self._flip(state, first)

    def _flip(self, state: Any, first: int) -> None:
        """Move what is in `back` to `front`, but for what has to go anyway."""
        summed: list[Pane] = []
        for number, kept in self.store.backwards(state.back):
            if number < first:
                break
            summed.append((number, self._merge(kept, summed[-1][1]) if summed else kept))
        state.front, state.back, state.total = self.store.made(summed), self.store.empty, None

    def whole(self, state: Any) -> Kept | None:
        """What is kept of all panes."""
        if not state.front:
            found: Kept | None = state.total
            return found
        kept = self.store.last(state.front)[1]
        return kept if state.total is None else self._merge(kept, state.total)

    def since(self, state: Any, first: int) -> Kept | None:
        """What is kept of all panes from that number on."""
        for number, kept in self.store.backwards(state.front):
            if number >= first:
                return kept if state.total is None else self._merge(kept, state.total)
        if state.back and self.store.oldest(state.back) >= first:
            return state.total  # type: ignore[no-any-return]
        found = None
        for number, kept in self.store.backwards(state.back):
            if number < first:
                break
            found = kept if found is None else self._merge(kept, found)
        return found
