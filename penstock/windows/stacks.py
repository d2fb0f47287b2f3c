"""The panes of a sliding window, and the accumulator of all panes, at a cost that does not depend on the number of
panes.

There are two stacks. New panes go to `back`, which stores each pane and the sum of all. Old panes are removed from
`front`, which stores, for each pane, the sum of that pane and all newer panes in `front`; the oldest pane is last. When
`front` is empty, all panes in `back` are moved to it. So each pane is merged three times, however many panes there are.
Nothing is ever subtracted, so a pane that leaves the window leaves no rounding error behind, and a maximum works like a
sum.

If accumulators have a fixed size, a stack consists of packed bytes, which cost almost nothing to read and write with
the state; otherwise, it is a list. Panes are pushed and popped in place in both kinds of stack.
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
"""The number of a pane, and its accumulators."""


class StackBytes:
    """A stack of panes, stored as packed bytes."""

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
        """Return the number of the stack's first pane."""
        return int(_NUMBER.unpack_from(stack)[0])

    def last_number(self, stack: bytearray) -> int:
        """Return the number of the last pane."""
        return int(_NUMBER.unpack_from(stack, len(stack) - self._size)[0])

    def last(self, stack: bytearray) -> Pane:
        numbers = self._record.unpack_from(stack, len(stack) - self._size)
        return numbers[0], self._unpack(numbers)

    def pop(self, stack: bytearray) -> None:
        del stack[-self._size :]

    def backwards(self, stack: bytearray) -> Iterator[Pane]:
        """Yield the panes from the last to the first."""
        for at in range(len(stack) - self._size, -1, -self._size):
            numbers = self._record.unpack_from(stack, at)
            yield numbers[0], self._unpack(numbers)

    def stack_of(self, panes: list[Pane]) -> bytearray:
        return bytearray().join([self._record.pack(*self._pack(*pane)) for pane in panes])


class Listed:
    """A stack of panes, stored as a list, for accumulators without a fixed size."""

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

    def stack_of(self, panes: list[Pane]) -> list[Pane]:
        return panes


class Stacks:
    """The two stacks in a state: its fields `front` and `back`, and `total`, the sum of `back`."""

    def __init__(self, sums: Sums) -> None:
        record = record_struct(sums)
        self.store: StackBytes | Listed = Listed(sums) if record is None else StackBytes(record, sums)
        self._merge = sums.merge

    def holds(self, state: Any) -> bool:
        return bool(state.front or state.back)

    def push(self, state: Any, pane: Pane) -> None:
        """Add a sliding window's pane that is newer than all others."""
        self.store.push(state.back, pane)
        state.total = pane[1] if state.total is None else self._merge(state.total, pane[1])

    def put(self, state: Any, number: int, add: Callable[[Kept], Kept], zero: Callable[[], Kept]) -> None:
        """Add a late value to a sliding window: to the pane with this number, which is created if necessary, and to all
        sums that include the pane."""
        front = [*self.store.backwards(state.front)]
        if front and number <= front[-1][0]:
            if all(other != number for other, _ in front):
                front.append((number, next(kept for other, kept in front if other > number)))
            front.sort(key=_number, reverse=True)
            state.front = self.store.stack_of(
                [(other, add(kept) if other <= number else kept) for other, kept in front]
            )
            return
        back = dict(self.store.backwards(state.back))
        back[number] = add(back.get(number, zero()))
        state.back = self.store.stack_of(sorted(back.items(), key=_number))
        state.total = add(zero() if state.total is None else state.total)

    def evict(self, state: Any, first: int) -> None:
        """Remove a sliding window's panes with numbers below `first`."""
        while state.front and self.store.last_number(state.front) < first:
            self.store.pop(state.front)
        if not state.front and state.back and self.store.oldest(state.back) < first:
            self._flip(state, first)

    def _flip(self, state: Any, first: int) -> None:
        """Move the panes in `back` to `front`, except for panes with numbers below `first`, which are removed."""
        summed: list[Pane] = []
        for number, kept in self.store.backwards(state.back):
            if number < first:
                break
            summed.append((number, self._merge(kept, summed[-1][1]) if summed else kept))
        state.front, state.back, state.total = self.store.stack_of(summed), self.store.empty, None

    def whole(self, state: Any) -> Kept | None:
        """Return the merged accumulators of all panes in the stacks."""
        if not state.front:
            total: Kept | None = state.total
            return total
        kept = self.store.last(state.front)[1]
        return kept if state.total is None else self._merge(kept, state.total)

    def since(self, state: Any, first: int) -> Kept | None:
        """Return the merged accumulators of all panes from number `first` on."""
        for number, kept in self.store.backwards(state.front):
            if number >= first:
                return kept if state.total is None else self._merge(kept, state.total)
        if state.back and self.store.oldest(state.back) >= first:
            return state.total  # type: ignore[no-any-return]
        total = None
        for number, kept in self.store.backwards(state.back):
            if number < first:
                break
            total = kept if total is None else self._merge(kept, total)
        return total
