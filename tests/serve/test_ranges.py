"""`per`, `from` and `to`: a rollup's buckets by unit and time, found by binary search."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.cursor import view_cursor
from penstock.core.errors import BadParameter
from penstock.core.settings import Settings
from penstock.serve.channels.ranges import BucketRange, asked
from penstock.serve.channels.row_filter import RowFilter
from penstock.serve.channels.view import ViewChannel
from penstock.serve.deps import Deps
from penstock.serve.openapi import document
from tests.serve.fakes import FakeView, make_deps, run
from tests.serve.test_http import calling

UNITS = ("minute", "hour")
TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("per", pa.string()), ("start", TIME), ("end", TIME), ("shop", pa.string()), ("n", pa.int64())])
SMALL = Settings(heartbeat_s=600, page_events=100, page_events_max=100)


def row(per: str, start: str, shop: str = "a", n: int = 1) -> bytes:
    fields = {"per": per, "start": start, "end": "2030-01-01T00:00:00Z", "shop": shop, "n": n}
    return json.dumps(fields, separators=(",", ":")).encode()


ROWS = [
    row("hour", "2024-05-01T09:00:00Z"),
    row("hour", "2024-05-01T10:00:00Z", "a", 2),
    row("hour", "2024-05-01T10:00:00Z", "b", 3),
    row("hour", "2024-05-01T11:00:00Z", "a", 4),
    row("minute", "2024-05-01T10:00:00Z", "a", 5),
    row("minute", "2024-05-01T10:01:00Z", "b", 6),
]


class Sales(FakeView):
    """The rows of a rollup, in order; of its changes only the last is kept, which has all of them."""

    schema = SCHEMA

    def __init__(self) -> None:
        super().__init__(kept=1)
        for _ in range(6):
            self.put({})
        self.put_rows({str(number): row for number, row in enumerate(ROWS)})


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
    return [row["n"] for row in get("/v1/views/sales", **params).json()["rows"]]


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
    assert [[row["n"] for row in change["upserts"]] for change in page["changes"]] == [[2, 3, 4]]


def test_an_answer_about_a_range_that_is_the_same_is_not_sent_again() -> None:
    first = get("/v1/views/sales", per="hour")
    assert get("/v1/views/sales", {"If-None-Match": first.headers["etag"]}, per="hour").status_code == 304
    assert get("/v1/views/sales", {"If-None-Match": first.headers["etag"]}, per="minute").status_code == 200


@pytest.mark.parametrize(
    ("params", "parameter", "detail"),
    [
        ({"per": "week"}, "per", "per must be one of minute, hour"),
        ({"from": "2024-05-01T10:00:00Z"}, "from", "from can be used only with per, which must be one of minute, hour"),
        ({"to": "2024-05-01T10:00:00Z"}, "to", "to can be used only with per, which must be one of minute, hour"),
        ({"per": "hour", "from": "yesterday"}, "from", "from must be a time with a time zone"),
        ({"per": "hour", "to": "2024-05-01T10:00:00"}, "to", "to must be a time with a time zone"),
        ({"per": "hour", "to": "9999-12-31T23:59:59.9-23:00"}, "to", "to must be a time with a time zone"),
        ({"per": "hour", "to": "2024-05-01T10:00:00Z" + " " * 40}, "to", "to must be a time with a time zone"),
    ],
)
def test_what_is_no_range_is_refused(params: dict[str, Any], parameter: str, detail: str) -> None:
    answer = get("/v1/views/sales", **params)
    assert (answer.status_code, answer.json()["code"], answer.json()["parameter"]) == (400, "bad_parameter", parameter)
    assert answer.json()["detail"].startswith(detail)


def test_a_view_that_is_no_rollup_knows_no_units() -> None:
    answer = get("/v1/views/plain", per="hour")
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("there is no parameter 'per'")


def test_the_document_has_ranges_if_there_is_a_rollup() -> None:
    def named(app: dict[str, Any]) -> set[str]:
        operation = document(app, {}, Settings())["paths"]["/v1/views/{name}"]["get"]
        return {parameter["name"] for parameter in operation["parameters"]}

    plain = {"views": [{"name": "v", "units": ()}]}
    assert named({"views": [{"name": "v", "units": UNITS}]}) - named(plain) == {"per", "from", "to"}


times = st.datetimes().map(lambda time: time.replace(microsecond=0).isoformat() + "Z")


@settings(max_examples=50, deadline=None)
@given(
    keys=st.lists(st.tuples(st.sampled_from(UNITS), times, st.sampled_from("ab")), unique=True, max_size=20),
    per=st.sampled_from(UNITS),
    first=st.none() | times,
    before=st.none() | times,
)
def test_the_place_of_rows_says_the_same_as_a_filter(
    keys: list[tuple[str, str, str]], per: str, first: str | None, before: str | None
) -> None:
    rows = [row(*key) for key in sorted(keys)]
    given = {"per": per} | ({"from": first} if first else {}) | ({"to": before} if before else {})
    wanted = asked(given, UNITS)
    assert wanted is not None
    seen = RowFilter(SCHEMA).through(wanted.condition, None).json_rows(rows)
    assert list(wanted.of(rows)) == [line for line in seen if line is not None]


def test_a_range_of_the_whole_of_time() -> None:
    assert BucketRange("hour").of(ROWS) == ROWS[:4]
    with pytest.raises(BadParameter):
        asked({"per": "hour", "from": ""}, UNITS)
