"""The demo's app: valid as declared, and its views correct on small lists."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from examples import rsvps
from penstock.app.check import check
from penstock.collect.decode import BodyDecoder
from penstock.core.filters import compiled
from penstock.core.schema import event_schema

NOON_MS = 1_714_564_800_000  # 2024-05-01 12:00 UTC


def rsvp(
    number: int, *, city: str = "Berlin", country: str = "de", response: str = "yes", **more: Any
) -> dict[str, Any]:
    topics = more.get("topics", ("Chess",))
    return {
        "rsvp_id": number,
        "mtime": NOON_MS + more.get("after_s", 0) * 1000,
        "response": response,
        "guests": 0,
        "visibility": "public",
        "member": {"member_id": number, "member_name": "Bela B."},
        "event": {
            "event_id": "1",
            "event_name": "Open Evening",
            "event_url": "https://meetups.example/1",
            "time": NOON_MS,
        },
        "group": {
            "group_id": 1,
            "group_name": "Friends",
            "group_urlname": "Friends",
            "group_city": city,
            "group_country": country,
            "group_lat": 0.0,
            "group_lon": 0.0,
            "group_topics": [{"urlkey": name.lower(), "topic_name": name} for name in topics],
        },
    }


def rows(view: Any, events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row.asDict() for row in rsvps.app.preview(view, events).collect()]


def test_the_app_is_sound() -> None:
    assert check(rsvps.app) == []


def test_an_event_without_an_address_is_taken() -> None:
    """Feeds leave out `event_url` at times; no view needs it."""
    sent = rsvp(1)
    del sent["event"]["event_url"]
    decoded = BodyDecoder(rsvps.Rsvp, event_bytes_max=10_000, events_max=10).decode(json.dumps([sent]).encode())
    assert len(decoded.events) == 1
    assert not decoded.rejections


def test_the_rsvps_on_a_topic_are_found_by_a_filter() -> None:
    where = "exists(group.group_topics, t -> t.urlkey = 'go')"
    sent = [rsvp(1), rsvp(2, topics=("Chess", "Go"))]
    schema = event_schema(rsvps.Rsvp)
    group = pa.array([event["group"] for event in sent], schema.field("group").type)
    batch = pa.RecordBatch.from_arrays([group], names=["group"])
    assert compiled(schema, where, None).mask(batch).to_pylist() == [False, True]


@pytest.mark.spark
def test_a_topic_counts_in_every_window_that_covers_it() -> None:
    """Five minutes by ten seconds is thirty windows; each topic of a group counts."""
    top_topics = rows(rsvps.top_topics, [rsvp(1, topics=("Chess", "Go")), rsvp(2, topics=("Chess",), after_s=9)])
    assert {row["window"].end - row["window"].start for row in top_topics} == {timedelta(minutes=5)}
    by_topic = {name: [row["rsvps"] for row in top_topics if row["topic"] == name] for name in ("Chess", "Go")}
    assert by_topic == {"Chess": [2] * 30, "Go": [1] * 30}


@pytest.mark.spark
def test_countries_count_all_answers_and_those_that_are_yes() -> None:
    countries = rows(
        rsvps.countries,
        [rsvp(1), rsvp(2, response="no"), rsvp(3, city="Paris", country="fr")],
    )
    assert sorted(countries, key=lambda row: str(row["country"])) == [
        {"country": "de", "rsvps": 2, "yes": 1},
        {"country": "fr", "rsvps": 1, "yes": 1},
    ]


@pytest.mark.spark
def test_cities_of_the_same_name_in_two_countries_are_two() -> None:
    cities = rows(
        rsvps.cities,
        [
            rsvp(1, city="London", country="gb"),
            rsvp(2, city="London", country="gb", response="no"),
            rsvp(3, city="London", country="ca", response="no"),
        ],
    )
    assert sorted(cities, key=lambda row: str(row["country"])) == [
        {"city": "London", "country": "ca", "yes": 0, "no": 1, "ratio": 0.0},
        {"city": "London", "country": "gb", "yes": 1, "no": 1, "ratio": 0.5},
    ]
