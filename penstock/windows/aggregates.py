"""What is kept of the events of a window: a value for each aggregate, to which events are added, and which can be
merged with that of the events before it.

All of them leave out nulls, as SQL does, and give null for a window that has nothing else.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import nan, sqrt
from operator import itemgetter
from typing import Any, Protocol, TypeVar, runtime_checkable

COLLECTED_MAX = 10_000
_PACKED: dict[Any, str] = {int: "q", float: "d"}


@runtime_checkable
class Aggregate(Protocol):
    """One column of a window's row. What is kept is a value: `add` and `merge` give a new one, or the old one changed,
    and may be called with any that they gave before. In a merge all events of the one come before those of the other.
    """

    @property
    def column(self) -> str | None:
        """The field of the events that it is of; None if it needs none."""

    def packing(self, hint: Any) -> str | None:
        """What is kept as `struct` writes it, if that is always of one size: then hundreds of them cost next to
        nothing. A `?` at the beginning says that it may be None."""

    def kept(self, hint: Any) -> Any:
        """The type of what is kept, of a column of that type; it must be one that a state can have."""

    def type(self, hint: Any) -> Any:
        """The type of the result."""

    def zero(self) -> Any:
        """What is kept of no events."""

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        """That with one more event, which happened at that time and may be older than others."""

    def merge(self, older: Any, newer: Any) -> Any:
        """That of the events of both."""

    def result(self, kept: Any) -> Any:
        """What the row tells."""


@dataclass(frozen=True)
class OfColumn:
    """An aggregate of a column that keeps one value, or None."""

    column: str

    def packing(self, hint: Any) -> str | None:
        return f"?{_PACKED[hint]}" if hint in _PACKED else None

    def kept(self, hint: Any) -> Any:
        return hint | None

    def type(self, hint: Any) -> Any:
        return hint | None

    def zero(self) -> Any:
        return None

    def result(self, kept: Any) -> Any:
        return kept


@dataclass(frozen=True)
class Count:
    """How many events there are; of a column, how many have a value."""

    column: str | None = None

    def packing(self, hint: Any) -> str | None:
        return "q"

    def kept(self, hint: Any) -> Any:
        return int

    def type(self, hint: Any) -> Any:
        return int

    def zero(self) -> int:
        return 0

    def add(self, kept: int, value: Any, at: datetime) -> int:
        return kept if value is None and self.column is not None else kept + 1

    def merge(self, older: int, newer: int) -> int:
        return older + newer

    def result(self, kept: int) -> int:
        return kept


class Sum(OfColumn):
    """As Python adds. Where whole numbers or decimals may become too large, `sums.py` has what is run."""

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        return kept if value is None else value if kept is None else kept + value

    def merge(self, older: Any, newer: Any) -> Any:
        return older if newer is None else newer if older is None else older + newer


class Min(OfColumn):
    """As in Spark, NaN is larger than any number: it is the smallest of nothing else."""

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        return kept if value is None or (kept is not None and kept <= value) else self.merge(kept, value)

    def merge(self, older: Any, newer: Any) -> Any:
        if newer is None or (older is not None and older <= newer):
            return older
        return newer if older is None or newer == newer else older  # NaN alone is not itself


class Max(OfColumn):
    """As in Spark, NaN is larger than any number."""

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        return kept if value is None or (kept is not None and kept >= value) else self.merge(kept, value)

    def merge(self, older: Any, newer: Any) -> Any:
        if newer is None or (older is not None and older >= newer):
            return older
        return newer if older is None or older == older else older  # NaN alone is not itself


@dataclass(frozen=True)
class Mean(OfColumn):
    """Kept as count and sum."""

    def packing(self, hint: Any) -> str | None:
        return "qd"

    def kept(self, hint: Any) -> Any:
        return tuple[int, float]

    def type(self, hint: Any) -> Any:
        return float | None

    def zero(self) -> Any:
        return 0, 0.0

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        return kept if value is None else (kept[0] + 1, kept[1] + value)

    def merge(self, older: Any, newer: Any) -> Any:
        return older[0] + newer[0], older[1] + newer[1]

    def result(self, kept: Any) -> float | None:
        return kept[1] / kept[0] if kept[0] else None


@dataclass(frozen=True)
class Variance(OfColumn):
    """That of a sample. Kept as count, mean and sum of squared distances from it, which loses no digits to large values
    (Welford; merged as Chan and others do)."""

    root: bool = False

    def packing(self, hint: Any) -> str | None:
        return "qdd"

    def kept(self, hint: Any) -> Any:
        return tuple[int, float, float]

    def type(self, hint: Any) -> Any:
        return float | None

    def zero(self) -> Any:
        return 0, 0.0, 0.0

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        if value is None:
            return kept
        count, mean, squares = kept
        distance = value - mean
        mean += distance / (count + 1)
        return count + 1, mean, squares + distance * (value - mean)

    def merge(self, older: Any, newer: Any) -> Any:
        count = older[0] + newer[0]
        if not older[0] or not newer[0]:
            return older if older[0] else newer
        distance = newer[1] - older[1]
        mean = older[1] + distance * newer[0] / count
        return count, mean, older[2] + newer[2] + distance * distance * older[0] * newer[0] / count

    def result(self, kept: Any) -> float | None:
        if kept[0] < 2:
            return None
        found = kept[2] / (kept[0] - 1)
        if not found >= 0:  # values so far apart that their distance is no number any more
            return nan
        return sqrt(found) if self.root else float(found)


class _Edge(OfColumn):
    """The value at one end of a window, by event time; kept with that time."""

    def packing(self, hint: Any) -> str | None:
        return f"?d{_PACKED[hint]}" if hint in _PACKED else None

    def kept(self, hint: Any) -> Any:
        return tuple[float, hint] | None

    def result(self, kept: Any) -> Any:
        return None if kept is None else kept[1]


class First(_Edge):
    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        time = at.timestamp()
        return kept if value is None or (kept is not None and kept[0] <= time) else (time, value)

    def merge(self, older: Any, newer: Any) -> Any:
        return newer if older is None else older


class Last(_Edge):
    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        time = at.timestamp()
        return kept if value is None or (kept is not None and kept[0] > time) else (time, value)

    def merge(self, older: Any, newer: Any) -> Any:
        return older if newer is None else newer


@dataclass(frozen=True)
class Collect(OfColumn):
    """The values in order of event time, so many at most: of more, the oldest are dropped."""

    most: int = 100

    def packing(self, hint: Any) -> str | None:
        return None

    def kept(self, hint: Any) -> Any:
        return list[tuple[float, hint]]

    def type(self, hint: Any) -> Any:
        return list[hint]

    def zero(self) -> Any:
        return []

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        if value is not None:
            insort(kept, (at.timestamp(), value), key=itemgetter(0))
            del kept[: -self.most]
        return kept

    def merge(self, older: Any, newer: Any) -> Any:
        return [*older, *newer][-self.most :]

    def result(self, kept: Any) -> Any:
        return [value for _, value in kept]


class Mergeable(Protocol):
    """An object that a summary keeps, such as a sketch. It has a type that a state can have."""

    @abstractmethod
    def add(self, value: Any) -> Any: ...

    @abstractmethod
    def merge(self, other: Any) -> Any: ...

    @abstractmethod
    def copy(self) -> Any: ...


M = TypeVar("M", bound=Mergeable)


@dataclass(frozen=True)
class Summary(OfColumn):
    """An object of one's own that values are added to. `answer` is what the row tells of it, of the type `gives`."""

    made: Callable[[], Any]
    answer: Callable[[Any], Any]
    gives: Any

    def packing(self, hint: Any) -> str | None:
        return None

    def kept(self, hint: Any) -> Any:
        return builtins.type(self.made())

    def type(self, hint: Any) -> Any:
        return self.gives

    def zero(self) -> Any:
        return self.made()

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        if value is not None:
            kept.add(value)
        return kept

    def merge(self, older: Any, newer: Any) -> Any:
        merged = older.copy()
        merged.merge(newer)
        return merged

    def result(self, kept: Any) -> Any:
        return self.answer(kept)


def count(column: str | None = None) -> Count:
    """How many events there are; of a column, how many have a value."""
    return Count(column)


def sum(column: str) -> Sum:
    """Of whole numbers and decimals it is exact, and null if it does not fit a column."""
    return Sum(column)


def mean(column: str) -> Mean:
    return Mean(column)


def min(column: str) -> Min:
    return Min(column)


def max(column: str) -> Max:
    return Max(column)


def first(column: str) -> First:
    """The value of the earliest event by event time."""
    return First(column)


def last(column: str) -> Last:
    """The value of the latest event by event time."""
    return Last(column)


def variance(column: str) -> Variance:
    """The variance of a sample; null for fewer than two values."""
    return Variance(column)


def stddev(column: str) -> Variance:
    """Its root."""
    return Variance(column, root=True)


def collect(column: str, most: int = 100) -> Collect:
    """The values as a list, in order of event time, the latest `most` of them."""
    return Collect(column, most)


def summary(column: str, made: Callable[[], M], answer: Callable[[M], Any], gives: Any) -> Summary:
    """An object that can be added to and merged, such as a sketch: `summary("user", Hll, lambda users:
    users.count().value, float)`."""
    return Summary(column, made, answer, gives)
