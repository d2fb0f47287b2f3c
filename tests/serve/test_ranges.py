"""`per`, `from` and `to`: a rollup's buckets by unit and time, found by their place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.contracts import Change, Snapshot
from penstock.cursor import view_cursor
from penstock.errors import BadParameter
from penstock.serve.channels.lens import Lens
from penstock.serve.channels.ranges import Range, asked
from penstock.serve.channels.view import ViewChannel
from penstock.serve.deps import Deps
from penstock.serve.openapi import document
from penstock.settings import Settings
from tests.serve.fakes import make_deps, run
from tests.serve.test_http import calling

UNITS = ("minute", "hour")
TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("per", pa.string()), ("start", TIME), ("end", TIME), ("shop", pa.string()), ("n", pa.int64())])
SMALL = Settings(heartbeat_s=600, page_events=100, page_events_max=100)


def row(per: str, start: str, shop: str = "a", n: int = 1) -> bytes:
    made = {"per": per, "start": start, "end": "2030-01-01T00:00:00Z", "shop": shop, "n": n}
    return json.dumps(made, separators=(",", ":")).encode()


ROWS = [
    row("hour", "2024-05-01T09:00:00Z"),
    row("hour", "2024-05-01T10:00:00Z", "a", 2),
    row("hour", "2024-05-01T10:00:00Z", "b", 3),
    row("hour", "2024-05-01T11:00:00Z", "a", 4),
    row("minute", "2024-05-01T10:00:00Z", "a", 5),
    row("minute", "2024-05-01T10:01:00Z", "b", 6),
]


class Sales:
    """A `LiveView` with the rows of a rollup, in order, and one change."""

    generation, version, schema = 1, 7, SCHEMA

    def snapshot(self) -> Snapshot:
        return Snapshot(self.version, ROWS)

    def changes(self, after: int, limit: int) -> Sequence[Change] | None:
        data = b'{"upserts":[' + b",".join(ROWS) + b'],"deletes":[]}'
        return [Change(7, data, (None,) * len(ROWS))] if after == 6 else [] if after == 7 else None

    async def wait(self, after: int, timeout_s: float) -> bool:
        return False


def deps() -> Deps:
    views: dict[str, Any] = {
        name: ViewChannel(name, Sales(), SMALL, key=["per", "start", "shop"]) for name in ("sales", "plain")
    }
    return make_deps(views=views, settings=SMALL, rollups={"sales": UNITS})


def get(path: str, headers: dict[str, str] | None = None, **params: Any) -> Any:
    async def main() -> Any:
        async with calling(deps()) as client:
            return await client.get(path, params=params, headers=headers)

    return run(main())


def numbers(**params: Any) -> list[int]:
    return [each["n"] for each in get("/v1/views/sales", **params).json()["rows"]]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"per": "hour"}, [1, 2, 3, 4]),
        ({"per": "minute"}, [5, 6]),
        ({"per": "hour", "from": "2024-05-01T10:00:00Z"}, [2, 3, 4]),
        ({"per": "hour", "to": "2024-05-01T10:00:00Z"}, [1]),
        ({"per": "hour", "from": "2024-05-01T10:00:00Z", "to": "2024-05-01T11:00:00Z"}, [2, 3]),
        ({"per": "hour", "from": "2024-05-01T09:00:00.000001Z", "to": "2024-05-01T11:00:00.5Z"}, [2, 3, 4]),
        ({"per": "hour", "from": "2024-05-01T12:00:00+02:00", "to": "2024-05-01T12:30:00+02:00"}, [2, 3]),
        ({"per": "hour", "from": "2025-05-01T12:00:00Z"}, []),
        ({"per": "hour", "from": "2024-05-01T11:00:00Z", "to": "2024-05-01T10:00:00Z"}, []),
        ({"per": "hour", "where": "shop = 'b'"}, [3]),
        ({"per": "hour", "order": "n DESC", "limit": 2}, [4, 3]),
    ],
)  # fmt: skip
def test_the_buckets_of_a_range(params: dict[str, Any], expected: list[int]) -> None:
    assert numbers(**params) == expected


def test_changes_are_of_the_range_too() -> None:
    params: dict[str, Any] = {"since": view_cursor(1, 6), "per": "hour", "from": "2024-05-01T10:00:00Z"}
    page = get("/v1/views/sales", **params).json()
    assert [[each["n"] for each in change["upserts"]] for change in page["changes"]] == [[2, 3, 4]]


def test_an_answer_about_a_range_that_is_the_same_is_not_sent_again() -> None:
    first = get("/v1/views/sales", per="hour")
    assert get("/v1/views/sales", {"If-None-Match": first.headers["etag"]}, per="hour").status_code == 304
    assert get("/v1/views/sales", {"If-None-Match": first.headers["etag"]}, per="minute").status_code == 200


@pytest.mark.parametrize(
    ("params", "parameter", "told"),
    [
        ({"per": "week"}, "per", "per must be one of minute, hour"),
        ({"from": "2024-05-01T10:00:00Z"}, "from", "from goes with per, one of minute, hour"),
        ({"to": "2024-05-01T10:00:00Z"}, "to", "to goes with per, one of minute, hour"),
        ({"per": "hour", "from": "yesterday"}, "from", "from must be a time with its zone"),
        ({"per": "hour", "to": "2024-05-01T10:00:00"}, "to", "to must be a time with its zone"),
        ({"per": "hour", "to": "9999-12-31T23:59:59.9-23:00"}, "to", "to must be a time with its zone"),
        ({"per": "hour", "to": "2024-05-01T10:00:00Z" + " " * 40}, "to", "to must be a time with its zone"),
    ],
)
def test_what_is_no_range_is_refused(params: dict[str, Any], parameter: str, told: str) -> None:
    answer = get("/v1/views/sales", **params)
    assert (answer.status_code, answer.json()["code"], answer.json()["parameter"]) == (400, "bad_parameter", parameter)
    assert answer.json()["detail"].startswith(told)


def test_a_view_that_is_no_rollup_knows_no_units() -> None:
    answer = get("/v1/views/plain", per="hour")
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("there is no parameter 'per'")


def test_the_document_has_ranges_if_there_is_a_rollup() -> None:
    def named(app: dict[str, Any]) -> set[str]:
        operation = document(app, {}, Settings())["paths"]["/v1/views/{name}"]["get"]
        return {each["name"] for each in operation["parameters"]}

    plain = {"views": [{"name": "v", "units": ()}]}
    assert named({"views": [{"name": "v", "units": UNITS}]}) - named(plain) == {"per", "from", "to"}


times = st.datetimes().map(lambda time: time.replace(microsecond=0).isoformat() + "Z")


@settings(max_examples=50, deadline=None)
@given(
    found=st.lists(st.tuples(st.sampled_from(UNITS), times, st.sampled_from("ab")), unique=True, max_size=20),
    per=st.sampled_from(UNITS),
    first=st.none() | times,
    before=st.none() | times,
)
def test_the_place_of_rows_says_the_same_as_a_filter(
    found: list[tuple[str, str, str]], per: str, first: str | None, before: str | None
) -> None:
    rows = [row(*each) for each in sorted(found)]
    given = {"per": per} | ({"from": first} if first else {}) | ({"to": before} if before else {})
    wanted = asked(given, UNITS)
    assert wanted is not None
    seen = Lens(SCHEMA).through(wanted.condition, None).json_rows(rows)
    assert list(wanted.of(rows)) == [each for each in seen if each is not None]


def test_a_range_of_the_whole_of_time() -> None:
    assert Range("hour").of(ROWS) == ROWS[:4]
    with pytest.raises(BadParameter):
        asked({"per": "hour", "from": ""}, UNITS)
