"""Login attempts: reports addresses with more than ten attempts within ten minutes.

The ten minutes are a sliding window in event time, and each burst is reported once, at the first attempt over the
limit. This needs a handler rather than a pattern: see `docs/examples/logins.md`. When run as a script, this file
generates its own visitors and attackers:

    python examples/logins.py --rate 10 --seed 1
"""

from __future__ import annotations

import sys
from bisect import insort
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Context, Event, State

ALLOWED = 10
WINDOW = timedelta(minutes=10)
LATE_AFTER = timedelta(seconds=30)
KEPT_MAX = 100
"""The maximum number of attempts whose times are kept for an address. When there are more, the oldest are dropped;
eleven are enough to know whether a burst continues."""
REACH = 2 * (WINDOW + LATE_AFTER)
"""The age up to which a late attempt can still matter. An attempt can be in the window of a second one, which is in the
window of a third."""


class Attempt(Event, id="attempt_id", time="at"):
    attempt_id: str
    at: datetime
    address: str
    user: str
    success: bool


class Burst(Event, time="at"):
    """An address with too many attempts. `at` is the time of the first attempt over the limit, and `since` the time of
    the earliest attempt in its window."""

    address: str
    at: datetime
    since: datetime


class Address(State):
    """The recent attempts from one address.

    `times` is sorted, `reported` contains the last attempt of each reported burst, and `late` is the number of attempts
    that arrived too late."""

    times: list[datetime] = []  # noqa: RUF012  # msgspec gives each instance its own
    reported: list[datetime] = []  # noqa: RUF012
    late: int = 0


app = App("logins")
attempts = app.stream("attempts", Attempt, key="address", late_after=LATE_AFTER, keep=timedelta(days=7))


@app.handler("bursts", reads=attempts, key="address", state=Address, emits=Burst)
def bursts(address: Address, attempt: Attempt, ctx: Context) -> Iterator[Burst]:
    """Count one attempt, and emit the bursts that it completes. Attempts can arrive in any order."""
    if address.times and attempt.at < address.times[-1] - LATE_AFTER:
        address.late += 1
        return
    insort(address.times, attempt.at)
    horizon = address.times[-1] - REACH
    address.times = [time for time in address.times if time >= horizon][-KEPT_MAX:]
    spans = over(address.times)
    for first, last in spans:
        at, end = address.times[first], address.times[last]
        if not any(at <= time <= end for time in address.reported):
            yield Burst(address=attempt.address, at=at, since=address.times[first - ALLOWED])
    address.reported = [address.times[last] for _, last in spans]
    ctx.timer("forget", ctx.now + REACH)


@bursts.timer("forget")
def forget(address: Address, ctx: Context) -> None:
    """Clear an address's state once its attempts are too old to matter."""
    address.times, address.reported, address.late = [], [], 0


def over(times: Sequence[datetime]) -> list[tuple[int, int]]:
    """Find the bursts in a sorted list of times. Return the first and last index of each run of attempts over the
    limit. An attempt is over the limit if the tenth attempt before it is less than one window older.

    A late attempt can extend a run or join two runs, but it never splits one, so a burst that has been reported remains
    a burst.
    """
    spans: list[tuple[int, int]] = []
    for place in range(ALLOWED, len(times)):
        if times[place] - times[place - ALLOWED] < WINDOW:
            joined = spans.pop()[0] if spans and spans[-1][1] == place - 1 else place
            spans.append((joined, place))
    return spans


alerts = app.sql(
    "alerts",
    "SELECT at, address, round((unix_millis(at) - unix_millis(since)) / 1000, 1) AS seconds FROM bursts",
    key=["at", "address"],
    keep=timedelta(minutes=30),
)


@app.view("addresses", reads=attempts, key=["window", "address"], top=10, by="failures", keep=timedelta(minutes=20))
def addresses(attempts: DataFrame) -> DataFrame:
    """The addresses with the most failed attempts in each ten-minute period, and how many users each of them tried."""
    failed = attempts.where(~F.col("success")).groupBy(F.window("at", "10 minutes"), "address")
    return failed.agg(F.count("*").alias("failures"), F.approx_count_distinct("user").alias("users"))


@app.view("minutes", reads=attempts, key="window", keep=timedelta(hours=1))
def minutes(attempts: DataFrame) -> DataFrame:
    """The number of attempts in each minute."""
    return attempts.groupBy(F.window("at", "1 minute")).agg(
        F.count("*").alias("attempts"),
        F.count_if(~F.col("success")).alias("failures"),
        F.approx_count_distinct("address").alias("addresses"),
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from examples.playing.demo import main

    sys.exit(main(__file__))
