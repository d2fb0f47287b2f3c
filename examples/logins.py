"""Login attempts: who tries more than ten times from one address in ten minutes.

The ten minutes slide, time is when an attempt was made and not when it came, and each burst is told once, at the
attempt that is one too many. That is a handler, and not a pattern: see `docs/examples/logins.md`. Run as a script, it
plays invented visitors and attackers into itself:

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
"""Times that are kept of an address; when there are more, the oldest go: eleven tell whether a burst goes on."""
REACH = 2 * (WINDOW + LATE_AFTER)
"""How far back a late attempt can matter: through the window of one that is itself in the window of another."""


class Attempt(Event, id="attempt_id", time="at"):
    attempt_id: str
    at: datetime
    address: str
    user: str
    success: bool


class Burst(Event, time="at"):
    """An address that has tried too often: `at` is the attempt that is one too many, `since` the first that counts."""

    address: str
    at: datetime
    since: datetime


class Address(State):
    """The times of the last attempts, in order; of each burst that was told, the last; and how many came too late."""

    times: list[datetime] = []  # noqa: RUF012  # msgspec gives each instance its own
    told: list[datetime] = []  # noqa: RUF012
    late: int = 0


app = App("logins")
attempts = app.stream("attempts", Attempt, key="address", late_after=LATE_AFTER, keep=timedelta(days=7))


@app.handler("bursts", reads=attempts, key="address", state=Address, emits=Burst)
def bursts(address: Address, attempt: Attempt, ctx: Context) -> Iterator[Burst]:
    """Take one attempt into account, in whatever order they come; tell the bursts that are new by it."""
    if address.times and attempt.at < address.times[-1] - LATE_AFTER:
        address.late += 1
        return
    insort(address.times, attempt.at)
    horizon = address.times[-1] - REACH
    address.times = [each for each in address.times if each >= horizon][-KEPT_MAX:]
    found = over(address.times)
    for first, last in found:
        at, end = address.times[first], address.times[last]
        if not any(at <= told <= end for told in address.told):
            yield Burst(address=attempt.address, at=at, since=address.times[first - ALLOWED])
    address.told = [address.times[last] for _, last in found]
    ctx.timer("forget", ctx.now + REACH)


@bursts.timer("forget")
def forget(address: Address, ctx: Context) -> None:
    """Nothing for so long that it could not matter: then nothing is kept of the address."""
    address.times, address.told, address.late = [], [], 0


def over(times: Sequence[datetime]) -> list[tuple[int, int]]:
    """The bursts in a list of times in order: the first and the last place of each run of attempts that are one too
    many, which is that the tenth before them was less than a window ago.

    An attempt that comes late can make a run longer or join two, but never break one. So what was told stays true.
    """
    found: list[tuple[int, int]] = []
    for place in range(ALLOWED, len(times)):
        if times[place] - times[place - ALLOWED] < WINDOW:
            joined = found.pop()[0] if found and found[-1][1] == place - 1 else place
            found.append((joined, place))
    return found


alerts = app.sql(
    "alerts",
    "SELECT at, address, round((unix_millis(at) - unix_millis(since)) / 1000, 1) AS seconds FROM bursts",
    key=["at", "address"],
    keep=timedelta(minutes=30),
)


@app.view("addresses", reads=attempts, key=["window", "address"], top=10, by="failures", keep=timedelta(minutes=20))
def addresses(attempts: DataFrame) -> DataFrame:
    """Who fails most, in these ten minutes by the clock, and for how many users."""
    failed = attempts.where(~F.col("success")).groupBy(F.window("at", "10 minutes"), "address")
    return failed.agg(F.count("*").alias("failures"), F.approx_count_distinct("user").alias("users"))


@app.view("minutes", reads=attempts, key="window", keep=timedelta(hours=1))
def minutes(attempts: DataFrame) -> DataFrame:
    """What came in each minute."""
    return attempts.groupBy(F.window("at", "1 minute")).agg(
        F.count("*").alias("attempts"),
        F.count_if(~F.col("success")).alias("failures"),
        F.approx_count_distinct("address").alias("addresses"),
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from examples.playing.demo import main

    sys.exit(main(__file__))
