"""`per=`, `from=` and `to=`: the buckets of a rollup by their unit and by when they begin.

The rows of a rollup begin with their unit and their start, and stand in the order of both. So a range of them is found
by comparing texts, without looking at the others. Buckets begin with whole seconds, which all texts say alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.errors import BadParameter

PARAMETERS = ("per", "from", "to")
TIME_CHARS_MAX = 40
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Range:
    """Buckets of a unit that begin at or after one time and before another, as the API writes them; None is any."""

    per: str
    first: str | None = None
    before: str | None = None

    @property
    def condition(self) -> str:
        """The same as a condition on the columns of a row."""
        bounds = ((">=", self.first), ("<", self.before))
        return f"per = '{self.per}'" + "".join(f" AND start {sign} '{time}'" for sign, time in bounds if time)

    def of(self, rows: Sequence[bytes]) -> Sequence[bytes]:
        """Those of a rollup's rows, which are in order, that are in the range."""
        unit = f'{{"per":"{self.per}","start":"'
        low, high = unit + (self.first or ""), unit + (self.before or "~")
        begin = bisect_left(rows, low.encode())
        return rows[begin : bisect_left(rows, high.encode(), begin)]


def asked(given: dict[str, str], units: Sequence[str]) -> Range | None:
    """The range that is asked for, taken out of the parameters; None if there is none. `BadParameter` if it is none of
    a rollup that has these units."""
    per, first, before = (given.pop(name, None) for name in PARAMETERS)
    if per is None:
        for name, value in (("from", first), ("to", before)):
            if value is not None:
                raise BadParameter(f"{name} goes with per, one of {', '.join(units)}", parameter=name)
        return None
    if per not in units:
        raise BadParameter(f"per must be one of {', '.join(units)}", parameter="per")
    return Range(per, _time("from", first), _time("to", before))


def _time(name: str, text: str | None) -> str | None:
    """A time as rows say it. One within a second becomes the next second: no bucket begins between the two."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text[:TIME_CHARS_MAX])
        if moment.tzinfo is None or len(text) > TIME_CHARS_MAX:
            raise ValueError
        whole = (moment + _SECOND - timedelta(microseconds=1)).astimezone(UTC)
    except (ValueError, OverflowError):
        said = "must be a time with its zone, as in 2026-05-01T12:00:00Z (a + in an address is written %2B)"
        raise BadParameter(f"{name} {said}", parameter=name) from None
    return f"{whole.year:04}-{whole:%m-%dT%H:%M:%SZ}"
