"""The `per`, `from` and `to` parameters, which select a rollup's buckets by unit and start.

A rollup's rows begin with their unit and start, and are sorted by both. A range is therefore found by comparing
strings, without reading the other rows. Buckets start on whole seconds, and a whole second has only one string form.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.core.errors import BadParameter

PARAMETERS = ("per", "from", "to")
TIME_CHARS_MAX = 40
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class BucketRange:
    """A rollup's buckets of one unit that start at or after `first` and before `before`.

    Both are strings in the API's format; None means no limit.
    """

    per: str
    first: str | None = None
    before: str | None = None

    @property
    def condition(self) -> str:
        """The bucket range as a SQL condition on a row's columns."""
        bounds = ((">=", self.first), ("<", self.before))
        return f"per = '{self.per}'" + "".join(f" AND start {sign} '{time}'" for sign, time in bounds if time)

    def of(self, rows: Sequence[bytes]) -> Sequence[bytes]:
        """Return the rows in the bucket range. `rows` are the sorted rows of a rollup."""
        unit = f'{{"per":"{self.per}","start":"'
        low, high = unit + (self.first or ""), unit + (self.before or "~")
        begin = bisect_left(rows, low.encode())
        return rows[begin : bisect_left(rows, high.encode(), begin)]


def asked(given: dict[str, str], units: Sequence[str]) -> BucketRange | None:
    """Remove the bucket range from the parameters and return it, or None if there is none.

    Raises `BadParameter` if the range is invalid for a rollup with these units.
    """
    per, first, before = (given.pop(name, None) for name in PARAMETERS)
    if per is None:
        for name, value in (("from", first), ("to", before)):
            if value is not None:
                message = f"{name} can be used only with per, which must be one of {', '.join(units)}"
                raise BadParameter(message, parameter=name)
        return None
    if per not in units:
        raise BadParameter(f"per must be one of {', '.join(units)}", parameter="per")
    return BucketRange(per, _bucket_time("from", first), _bucket_time("to", before))


def _bucket_time(name: str, text: str | None) -> str | None:
    """Format a time as in rows. A fraction of a second is rounded up, because buckets start on whole seconds."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text[:TIME_CHARS_MAX])
        if moment.tzinfo is None or len(text) > TIME_CHARS_MAX:
            raise ValueError
        whole = (moment + _SECOND - timedelta(microseconds=1)).astimezone(UTC)
    except (ValueError, OverflowError):
        said = "must be a time with a time zone, as in 2026-05-01T12:00:00Z (write + as %2B in a URL)"
        raise BadParameter(f"{name} {said}", parameter=name) from None
    return f"{whole.year:04}-{whole:%m-%dT%H:%M:%SZ}"
