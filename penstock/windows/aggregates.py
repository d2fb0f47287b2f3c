"""Window aggregates. Each aggregate has an accumulator. Events are added to it, and it can be merged with the
accumulator of earlier events.

All aggregates ignore nulls, as in SQL, and return null for a window that contains only nulls.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import copysign, nan, sqrt
from operator import itemgetter
from struct import Struct
from typing import Any, Protocol, TypeVar, runtime_checkable

from penstock.windows.clock import EPOCH, TICK

COLLECTED_MAX = 10_000
_NEAR_S = 2.0**33
"""Unix times in seconds below this, in the years 1697 to 2242, differ as floats if they differ by a microsecond."""
_FLOAT, _BITS = Struct("<d"), Struct("<q")
_PACKED: dict[Any, str] = {int: "q", float: "d"}


@runtime_checkable
class Aggregate(Protocol):
    """One column of a window's row. Its accumulator is a value: `add` and `merge` return either a new accumulator or
    the old one, which they have modified. They can be called with any accumulator that they have returned. In a merge,
    all events in `older` come before all events in `newer`."""

    @property
    def column(self) -> str | None:
        """The event field that the aggregate reads, or None if it does not read a field."""

    def packing(self, hint: Any) -> str | None:
        """Return the `struct` format of the accumulator if it has a fixed size, otherwise None. Hundreds of fixed-size
        accumulators cost almost nothing. A leading `?` means that the accumulator can be None."""

    def kept(self, hint: Any) -> Any:
        """Return the accumulator's type for a column of type `hint`. It must be a type that a state can contain."""

    def type(self, hint: Any) -> Any:
        """Return the result's type for a column of type `hint`."""

    def zero(self) -> Any:
        """Return the initial accumulator, before any events."""

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        """Add the value of an event that happened at `at`. The event can be older than events that were added
        earlier."""

    def merge(self, older: Any, newer: Any) -> Any:
        """Merge the accumulators of two groups of events."""

    def result(self, kept: Any) -> Any:
        """Return the accumulator's result, which is the value in the row."""


@dataclass(frozen=True)
class OfColumn:
    """An aggregate of a column whose accumulator is a single value or None."""

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
    """The number of events; with a column, the number of its non-null values."""

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
    """The sum, in Python arithmetic. Windows use `sums.py` for integers and decimals, whose sums could overflow."""

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        return kept if value is None else value if kept is None else kept + value

    def merge(self, older: Any, newer: Any) -> Any:
        return older if newer is None else newer if older is None else older + newer


class Min(OfColumn):
    """The minimum. As in Spark, NaN is larger than any number, so it is the result only if there are no numbers."""

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        return kept if value is None or (kept is not None and kept <= value) else self.merge(kept, value)

    def merge(self, older: Any, newer: Any) -> Any:
        if newer is None or (older is not None and older <= newer):
            return older
        return newer if older is None or newer == newer else older  # only NaN differs from itself


class Max(OfColumn):
    """The maximum. As in Spark, NaN is larger than any number."""

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        return kept if value is None or (kept is not None and kept >= value) else self.merge(kept, value)

    def merge(self, older: Any, newer: Any) -> Any:
        if newer is None or (older is not None and older >= newer):
            return older
        return newer if older is None or older == older else older  # only NaN differs from itself


@dataclass(frozen=True)
class Mean(OfColumn):
    """The mean. Its accumulator contains the count and the sum."""

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
    """The sample variance. Its accumulator contains the count, the mean and the sum of squared distances from the mean,
    so that it stays accurate for large values. It uses Welford's algorithm, and merges as in Chan et al."""

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
        variance = kept[2] / (kept[0] - 1)
        if not variance >= 0:  # the values are so far apart that their distance is not a number
            return nan
        return sqrt(variance) if self.root else float(variance)


def time_order(at: datetime) -> float:
    """Return a float that puts times in order, to the microsecond. Stored accumulators contain it. It is the Unix time
    in seconds, as long as that is precise enough. Beyond, it is not a time: from one microsecond to the next, it is the
    next larger float."""
    time = at.timestamp()
    return time if -_NEAR_S < time < _NEAR_S else _far_time_order(at, time)


def _far_time_order(at: datetime, time: float) -> float:
    beyond_us = abs((at - EPOCH) // TICK) - int(_NEAR_S) * 1_000_000
    (bits,) = _BITS.unpack(_FLOAT.pack(_NEAR_S))
    (order,) = _FLOAT.unpack(_BITS.pack(bits + beyond_us))  # larger bits are a larger float
    return copysign(order, time)


class _Edge(OfColumn):
    """The first or last value in a window by event time, stored with its `time_order`."""

    def packing(self, hint: Any) -> str | None:
        return f"?d{_PACKED[hint]}" if hint in _PACKED else None

    def kept(self, hint: Any) -> Any:
        return tuple[float, hint] | None

    def result(self, kept: Any) -> Any:
        return None if kept is None else kept[1]


class First(_Edge):
    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        order = time_order(at)
        return kept if value is None or (kept is not None and kept[0] <= order) else (order, value)

    def merge(self, older: Any, newer: Any) -> Any:
        return newer if older is None else older


class Last(_Edge):
    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        order = time_order(at)
        return kept if value is None or (kept is not None and kept[0] > order) else (order, value)

    def merge(self, older: Any, newer: Any) -> Any:
        return older if newer is None else newer


@dataclass(frozen=True)
class Collect(OfColumn):
    """The values in order of event time, up to a limit, beyond which the oldest are dropped."""

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
            insort(kept, (time_order(at), value), key=itemgetter(0))
            del kept[: -self.most]
        return kept

    def merge(self, older: Any, newer: Any) -> Any:
        return [*older, *newer][-self.most :]

    def result(self, kept: Any) -> Any:
        return [value for _, value in kept]


class Mergeable(Protocol):
    """An object, such as a sketch, that is used as an accumulator. Its type must be one that a state can contain."""

    @abstractmethod
    def add(self, value: Any) -> Any: ...

    @abstractmethod
    def merge(self, other: Any) -> Any: ...

    @abstractmethod
    def copy(self) -> Any: ...


M = TypeVar("M", bound=Mergeable)


@dataclass(frozen=True)
class Summary(OfColumn):
    """A user-defined object that values are added to. `answer` returns the value in the row, which has the type
    `gives`. The object is created for the first value, so the accumulator is None if there are no values. The result is
    then null, and `answer` is not called, because not every object has an answer without values."""

    made: Callable[[], Any]
    answer: Callable[[Any], Any]
    gives: Any

    def packing(self, hint: Any) -> str | None:
        return None

    def kept(self, hint: Any) -> Any:
        return builtins.type(self.made()) | None

    def type(self, hint: Any) -> Any:
        return self.gives | None

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        if value is not None:
            kept = self.made() if kept is None else kept
            kept.add(value)
        return kept

    def merge(self, older: Any, newer: Any) -> Any:
        """Merge two accumulators. The result is always a copy, because objects are modified in place."""
        if older is None or newer is None:
            only = newer if older is None else older
            return None if only is None else only.copy()
        merged = older.copy()
        merged.merge(newer)
        return merged

    def result(self, kept: Any) -> Any:
        return None if kept is None else self.answer(kept)


def count(column: str | None = None) -> Count:
    """Count the events, or the non-null values of a column."""
    return Count(column)


def sum(column: str) -> Sum:
    """Sum a column. The sum of integers or decimals is exact, and null if it does not fit in a column."""
    return Sum(column)


def mean(column: str) -> Mean:
    return Mean(column)


def min(column: str) -> Min:
    return Min(column)


def max(column: str) -> Max:
    return Max(column)


def first(column: str) -> First:
    """Take the value of the earliest event by event time."""
    return First(column)


def last(column: str) -> Last:
    """Take the value of the latest event by event time."""
    return Last(column)


def variance(column: str) -> Variance:
    """Compute the sample variance; null for fewer than two values."""
    return Variance(column)


def stddev(column: str) -> Variance:
    """Compute the sample standard deviation; null for fewer than two values."""
    return Variance(column, root=True)


def collect(column: str, most: int = 100) -> Collect:
    """Collect the latest `most` values in a list, in order of event time."""
    return Collect(column, most)


def summary(column: str, made: Callable[[], M], answer: Callable[[M], Any], gives: Any) -> Summary:
    """Aggregate with an object that has `add` and `merge` methods, such as a sketch: `summary("user", Hll, lambda
    users: users.count().value, float)`."""
    return Summary(column, made, answer, gives)
