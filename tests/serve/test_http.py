"""Pages, figures and refusals over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.cursor import stream_cursor, view_cursor
from penstock.core.errors import Damaged
from penstock.core.settings import Settings
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.deps import Deps
from tests.serve.fakes import QUICK, FakeLog, FakeView, application, make_deps, run


@asynccontextmanager
async def calling(deps: Deps) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the application itself, without a server."""
    transport = httpx.ASGITransport(application(deps), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def deps_of(log: FakeLog | None = None, view: FakeView | None = None, **changed: Any) -> Deps:
    settings = changed.get("settings", QUICK)
    return make_deps(
        streams={"s": StreamChannel("s", log or FakeLog(1), settings)},
        views={"v": ViewChannel("v", view or FakeView(), settings, key=["k"])},
        **changed,
    )


def get(path: str, deps: Deps | None = None, method: str = "GET", **params: str) -> httpx.Response:
    async def main() -> httpx.Response:
        async with calling(deps or deps_of()) as client:
            return await client.request(method, path, params=params or None)

    return run(main())


def test_a_stream_is_read_page_by_page() -> None:
    """Pages follow each other by `since` and `limit`; an answer is JSON that no cache may store."""
    log = FakeLog(1)
    log.write(0, 1, 2, 3)
    first = get("/v1/streams/s", deps_of(log), limit="2")
    assert first.status_code == 200
    assert first.headers["content-type"] == "application/json"
    assert first.headers["cache-control"] == "no-store"
    assert [event["n"] for event in first.json()["events"]] == [1, 2]
    second = get("/v1/streams/s", deps_of(log), since=first.json()["cursor"])
    assert [event["n"] for event in second.json()["events"]] == [3]


def test_a_view_gives_its_rows() -> None:
    """Without `since` it returns the current rows and their cursor."""

    async def main() -> None:
        view = FakeView()
        view.put({"a": 1})
        async with calling(deps_of(view=view)) as client:
            answer = (await client.get("/v1/views/v")).json()
            assert answer == {"rows": [{"k": "a", "v": 1}], "cursor": view_cursor(1, 1)}

    run(main())


def test_a_page_has_as_many_events_as_the_setting_says_if_the_request_does_not() -> None:
    """`page_events` is the default, never more than `page_events_max`."""
    log = FakeLog(1)
    log.write(0, *range(10))
    for settings, size in ((Settings(page_events=4), 4), (Settings(page_events=9, page_events_max=3), 3)):
        answer = get("/v1/streams/s", deps_of(log, settings=settings))
        assert len(answer.json()["events"]) == size


@pytest.mark.parametrize("limit", ["0", "-1", "", "x", "1.5", "10001", "9" * 5000, "\u0661", " 1", "1e3"])
def test_a_limit_out_of_range_is_refused_by_name(limit: str) -> None:
    """1 to `page_events_max`, in plain digits."""
    answer = get("/v1/streams/s", limit=limit)
    assert (answer.status_code, answer.json()["code"], answer.json()["parameter"]) == (400, "bad_parameter", "limit")


@pytest.mark.parametrize("path", ["/v1/streams/s", "/v1/views/v", "/v1/streams/s/live", "/v1/app"])
def test_a_parameter_that_does_not_exist_is_refused_by_name(path: str) -> None:
    """A misspelt parameter is not ignored."""
    answer = get(path, sinse="earliest")
    assert (answer.status_code, answer.json()["code"], answer.json()["parameter"]) == (400, "bad_parameter", "sinse")


def test_a_parameter_that_stands_twice_is_refused() -> None:
    """Nobody has to guess which one counts."""
    assert get("/v1/streams/s?since=earliest&since=latest").json()["parameter"] == "since"


REFUSED = [
    ("GET", "/v1/streams/nope", 404, "not_found"),
    ("GET", "/v1/views/s", 404, "not_found"),
    ("GET", "/v1/views/nope/live", 404, "not_found"),
    ("GET", "/v1/nothing", 404, "not_found"),
    ("GET", "/nothing/at/all", 404, "not_found"),
    ("GET", "/v1/streams/..%2fs", 404, "not_found"),
    ("DELETE", "/v1/streams/s", 405, "method_not_allowed"),
    ("GET", "/v1/live", 426, "upgrade_required"),
    ("POST", "/v1/views/v/live", 405, "method_not_allowed"),
    ("PUT", "/v1/health", 405, "method_not_allowed"),
    ("GET", "/v1/streams/s?since=x", 400, "bad_cursor"),
    ("GET", "/v1/views/v?since=x", 400, "bad_cursor"),
    ("GET", "/v1/streams/s/live?since=x", 400, "bad_cursor"),
    ("GET", f"/v1/streams/s?since={stream_cursor(1, {0: 5})}", 400, "bad_cursor"),
]


def test_a_method_that_is_not_allowed_is_answered_with_those_that_are() -> None:
    """This includes POST, which ingestion handles before it comes here."""
    allowed = get("/v1/streams/s", method="DELETE").headers["allow"]
    assert {method.strip() for method in allowed.split(",")} == {"GET", "HEAD", "POST"}


@pytest.mark.parametrize(("method", "path", "status", "code"), REFUSED)
def test_every_refusal_is_a_problem_with_a_code(method: str, path: str, status: int, code: str) -> None:
    """RFC 9457: a program reads the code, a user the detail."""
    answer = get(path, method=method)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["detail"]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_text_as_a_cursor_makes_the_server_fail(text: str) -> None:
    """On every route that takes one there is an answer or a 400, never a 500."""

    async def main() -> None:
        async with calling(deps_of()) as client:
            for path in ("/v1/streams/s", "/v1/views/v"):
                answer = await client.get(path, params={"since": text})
                assert answer.status_code in (200, 400)

    run(main())


def test_damage_is_told_without_its_details() -> None:
    """The caller gets the code; the file's name is in the log."""
    log = FakeLog(1)
    log.write(0, 1)
    log.error = Damaged("bytes are not what was written", file="/secret/path")
    answer = get("/v1/streams/s", deps_of(log))
    assert (answer.status_code, answer.json()["code"]) == (500, "damaged")
    assert "secret" not in answer.text


def test_a_bug_is_a_problem_too() -> None:
    """An unexpected error has the code `internal` and shows no details."""

    log = FakeLog(1)
    log.write(0, 1)
    log.error = ValueError("a secret")
    for path in ("/v1/streams/x", "/v1/streams/x/live?since=earliest"):
        answer = get(path, make_deps(streams={"x": StreamChannel("x", log, QUICK)}))
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "secret" not in answer.text


def test_health_says_ready_or_why_not() -> None:
    """200 when ready, 503 with the reasons when not."""
    assert get("/v1/health").status_code == 200
    health = {"ready": False, "reasons": ["the engine is starting"], "state": "starting"}
    answer = get("/v1/health", replace(deps_of(), health=lambda: health))
    assert (answer.status_code, answer.json()) == (503, health)


def test_the_app_is_described_as_it_is() -> None:
    """`/v1/app` is the description, as JSON."""
    deps = deps_of()
    assert get("/v1/app", deps).json() == json.loads(json.dumps(deps.describe()))
