"""The demo: a live view of what people around the world are meeting about, and where.

The app receives RSVPs over a WebSocket and keeps three views up to date, and the dashboard shows the views live. `make
run` starts the app with a simulated feed. Any feed in the same format works:

    RSVP_FEED=wss://host/rsvps penstock run examples/rsvps.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, EpochMillis, Event, Record, collect


class Venue(Record):
    venue_id: int
    venue_name: str
    lat: float
    lon: float


class Member(Record):
    member_id: int
    member_name: str
    photo: str | None = None


class Meetup(Record):
    event_id: str
    event_name: str
    time: int
    event_url: str | None = None


class Topic(Record):
    urlkey: str
    topic_name: str


class Group(Record):
    group_id: int
    group_name: str
    group_urlname: str
    group_city: str
    group_country: str
    group_lat: float
    group_lon: float
    group_topics: list[Topic]
    group_state: str | None = None


class Rsvp(Event, id="rsvp_id", time="mtime"):
    """A member's reply to an invitation. Because it has an id, it counts once even if it is sent twice."""

    rsvp_id: int
    mtime: EpochMillis
    response: Literal["yes", "no"]
    guests: int
    visibility: str
    member: Member
    event: Meetup
    group: Group
    venue: Venue | None = None


app = App("rsvps")

# The key decides which events keep their order. RSVPs do not depend on each other, so the id is the best key:
# it spreads them evenly. With the city as the key, a fifth of them would be in one partition.
rsvps = app.stream("rsvps", Rsvp, key="rsvp_id", late_after=timedelta(seconds=10))

app.source("meetup", collect.websocket(os.environ.get("RSVP_FEED", "ws://127.0.0.1:8090/rsvps")), into=rsvps)


@app.view(
    "top-topics",
    reads=rsvps,
    key=["window", "topic"],
    top=10,
    by="rsvps",
    emit="close",
    keep=timedelta(minutes=10),
)
def top_topics(rsvps: DataFrame) -> DataFrame:
    """The ten most popular topics of the last five minutes, updated every ten seconds."""
    topics = rsvps.select("mtime", F.explode("group.group_topics.topic_name").alias("topic"))
    return topics.groupBy(F.window("mtime", "5 minutes", "10 seconds"), "topic").agg(F.count("*").alias("rsvps"))


countries = app.sql(
    "countries",
    """
    SELECT `group`.group_country AS country, count(*) AS rsvps, count_if(response = 'yes') AS yes
    FROM rsvps
    GROUP BY `group`.group_country
    """,
    key="country",
)


@app.view("cities", reads=rsvps, key=["city", "country"])
def cities(rsvps: DataFrame) -> DataFrame:
    """The number of yes and no replies in each city. The ratio is the share of yes replies."""
    yes = F.count_if(F.col("response") == "yes")
    no = F.count_if(F.col("response") == "no")
    by_city = rsvps.groupBy(F.col("group.group_city").alias("city"), F.col("group.group_country").alias("country"))
    return by_city.agg(yes.alias("yes"), no.alias("no"), (yes / (yes + no)).alias("ratio"))


@contextmanager
def invented_feed() -> Iterator[str]:
    """Run the feed in a separate process, and yield its address. The feed exits when this process does, even if this
    process is killed."""
    command = [sys.executable, "-m", "examples.feed", "--port", "0", "--until-eof"]
    project = Path(__file__).parent.parent
    with subprocess.Popen(
        command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as feed:
        assert feed.stdin is not None
        assert feed.stdout is not None
        try:
            yield feed.stdout.readline().strip()
        finally:
            feed.stdin.close()


def demo() -> int:
    """Run this file as `penstock run` would, with the simulated feed unless RSVP_FEED is set."""
    from penstock.cli.main import main

    parser = argparse.ArgumentParser(prog="python examples/rsvps.py", epilog="accepts all options of penstock run")
    parser.add_argument("--data", default=".penstock/rsvps", metavar="DIR", help="data directory (.penstock/rsvps)")
    parser.add_argument("--port", default="8080", help="dashboard port (8080); 0 picks a free one")
    chosen, others = parser.parse_known_args()
    command = ["run", __file__, "--data", chosen.data, "--port", chosen.port, *others]
    if "RSVP_FEED" in os.environ:
        return main(command)
    with invented_feed() as address:
        os.environ["RSVP_FEED"] = address
        return main(command)


if __name__ == "__main__":
    sys.exit(demo())
