"""The cost of a page: what one reader asks for is bounded in memory, and does not hold up the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.columns import from_json_rows
from penstock.core.contracts import PageBody
from penstock.core.cursor import view_cursor
from penstock.core.errors import BadParameter
from penstock.core.filters.limits import SLICE_ROWS
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.serve.channels import row_filter as row_filter_module
from penstock.serve.channels import stream as stream_module
from penstock.serve.channels import view as view_module
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import following
from tests.serve.fakes import FakeLog, FakeView, Reading, make_deps, run
from tests.serve.test_http import calling

CALM = Settings(heartbeat_s=600)
GROWN = f"replace(text, 'x', '{'y' * 40}')"
"""Makes a string of 4000 bytes from one of 100."""


def view_of(count: int, length: int) -> tuple[FakeView, ViewChannel]:
    """Return a view with a string of this length in each row."""
    view = FakeView(schema=pa.schema([("k", pa.string()), ("text", pa.string())]))
    fill(view, count, length)
    return view, ViewChannel("v", view, CALM, key=["k"])


def fill(view: FakeView, count: int, length: int) -> None:
    view.put_rows({f"{k:05}": json.dumps({"k": f"{k:05}", "text": "x" * length}).encode() for k in range(count)})


def stream_of(count: int, length: int) -> StreamChannel:
    log = FakeLog(2)
    for number in range(count):
        log.write(number % 2, number, at_s=number, text="x" * length)
    return StreamChannel("s", log, CALM, lambda: event_schema(Reading))


def content(page: PageBody) -> Any:
    return json.loads(page.body + page.end)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[bool]]:
    """Record the calls of a module's function: whether each was in the event loop."""

    def record(module: Any, name: str) -> list[bool]:
        recorded: list[bool] = []
        function = getattr(module, name)

        def recording(*given: Any, **named: Any) -> Any:
            recorded.append(threading.current_thread() is threading.main_thread())
            return function(*given, **named)

        monkeypatch.setattr(module, name, recording)
        return recorded

    return record


Calls = Callable[[Any, str], list[bool]]


def test_a_page_with_a_limit_filters_no_more_rows_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    filtered: list[int] = []

    def recording(rows: Any, *given: Any) -> pa.RecordBatch:
        filtered.append(len(rows))
        return from_json_rows(rows, *given)

    monkeypatch.setattr(row_filter_module, "from_json_rows", recording)
    _, source = view_of(3 * SLICE_ROWS, 10)

    async def main() -> None:
        for where, select in (("k > '00001'", None), (None, "upper(text) AS u")):
            filtered.clear()
            page = content(await source.through(where, select).page(None, 3))
            assert len(page["rows"]) == 3
            assert page["truncated"]
            assert sum(filtered) <= SLICE_ROWS
        filtered.clear()
        page = content(await source.through("k > '00001'", None).page(None, 3, order="k DESC"))
        assert page["rows"][0]["k"] == f"{3 * SLICE_ROWS - 1:05}"
        assert sum(filtered) == 3 * SLICE_ROWS

    run(main())


@pytest.mark.parametrize("limit", [1, 4, 5, 6, None])
@pytest.mark.parametrize("order", [None, "k DESC"])
@pytest.mark.parametrize("first", [False, True], ids=["before all rows are filtered", "after"])
def test_a_page_has_the_first_rows_that_the_filter_shows(limit: int | None, order: str | None, first: bool) -> None:
    _, source = view_of(20, 10)
    seen = source.through("k < '00005'", "k")

    async def main() -> None:
        if first:
            await seen.page(None, None)
        page = content(await seen.page(None, limit, order=order))
        names = [f"{number:05}" for number in range(5)]
        assert [row["k"] for row in page["rows"]] == (names[::-1] if order else names)[:limit]
        assert ("truncated" in page) is (limit is not None and limit < 5)

    run(main())


def test_a_select_that_makes_too_much_of_a_view_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_filter_module, "SELECTED_BYTES_MAX", 100_000, raising=False)
    _, source = view_of(100, 100)

    async def main() -> None:
        deps = make_deps(views={"v": source}, settings=CALM)
        async with calling(deps) as client:
            given = {"select": f"{GROWN} AS grown", "limit": "all"}
            refused = await client.get("/v1/views/v", params=given)
            assert (refused.status_code, refused.json()["code"]) == (400, "bad_parameter")
            assert refused.json()["parameter"] == "select"
            assert "larger than 0 MiB; select fewer" in refused.json()["detail"]
            few = await client.get("/v1/views/v", params=given | {"limit": "10"})
            assert len(few.json()["rows"]) == 10
            plain = await client.get("/v1/views/v", params={"limit": "all"})
            assert len(plain.json()["rows"]) == 100

    run(main())


def test_a_select_may_be_as_large_as_the_rows_it_is_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_filter_module, "SELECTED_BYTES_MAX", 1, raising=False)
    _, source = view_of(100, 100)

    async def main() -> None:
        assert len(content(await source.through(None, "text").page(None, None))["rows"]) == 100

    run(main())


def test_a_select_that_makes_too_much_of_a_stream_has_more_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "PAGE_BYTES_MAX", 50_000)
    seen = stream_of(100, 100).through(None, f"n, {GROWN} AS grown")

    async def main() -> None:
        cursor, numbers, more = "earliest", list[int](), True
        while more:
            page = content(await seen.page(cursor, 1_000))
            assert sum(len(event["grown"]) for event in page["events"]) < 55_000
            numbers += [event["n"] for event in page["events"]]
            cursor, more = page["cursor"], page.get("more", False)
        assert numbers == list(range(100))

    run(main())


def test_the_last_events_are_refused_if_they_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "LAST_BYTES_MAX", 50_000, raising=False)
    source = stream_of(100, 100)

    async def main() -> None:
        seen = source.through(None, f"n, {GROWN} AS grown")
        with pytest.raises(BadParameter, match="the last 50 events are larger than 0 MiB") as refused:
            await seen.last(50)
        assert refused.value.fields["parameter"] == "last"
        assert [event["n"] for event in content(await seen.last(10))["events"]] == list(range(90, 100))
        assert len(content(await source.last(100))["events"]) == 100

    run(main())


def test_few_large_rows_of_a_view_are_filtered_in_a_thread(calls: Calls) -> None:
    filtering = calls(row_filter_module, "from_json_rows")

    async def main() -> None:
        for count, length, inline in ((3, 100_000, False), (3, 10, True)):
            _, source = view_of(count, length)
            for number, limit in enumerate((1, 1_000, None)):
                filtering.clear()
                await source.through(f"text LIKE '%z%{number}%'", None).page(None, limit)
                assert filtering == [inline]

    run(main())


def test_a_large_page_of_a_view_is_encoded_once_and_in_a_thread(calls: Calls) -> None:
    """Repeated requests, most of which are answered with 304, do not encode it again."""
    joining, hashing = calls(view_module, "join"), calls(view_module, "blake2b")
    view, source = view_of(10, 100_000)

    async def main() -> None:
        asked: list[dict[str, str]] = [{}, {"limit": "5"}, {"limit": "5", "order": "k DESC"}, {"limit": "all"}]
        async with calling(make_deps(views={"v": source}, settings=CALM)) as client:
            for given in asked:
                joining.clear()
                hashing.clear()
                first = await client.get("/v1/views/v", params=given)
                tag = {"If-None-Match": first.headers["etag"]}
                for _ in range(3):
                    assert (await client.get("/v1/views/v", params=given, headers=tag)).status_code == 304
                assert joining == hashing == [False]
            view.put_rows({"new": b'{"k":"new","text":""}'})
            assert (await client.get("/v1/views/v", headers=tag)).status_code == 200

    run(main())


def test_a_small_page_of_a_view_is_encoded_once_and_without_a_thread(calls: Calls) -> None:
    joining = calls(view_module, "join")
    _, source = view_of(1_000, 50)

    async def main() -> None:
        pages = [await source.asked_by(f"reader {number}").page(None, 1_000) for number in range(3)]
        assert joining == [True]
        assert len({page.tag for page in pages}) == 1

    run(main())


def test_readers_that_ask_for_a_large_page_at_once_share_it(calls: Calls) -> None:
    joining = calls(view_module, "join")
    _, source = view_of(10, 100_000)

    async def main() -> None:
        pages = await asyncio.gather(*(source.asked_by(f"reader {number}").page(None, 5) for number in range(5)))
        assert len({id(page.body) for page in pages}) == 1
        assert joining == [False]

    run(main())


def test_large_changes_and_snapshots_of_a_view_are_encoded_in_a_thread(calls: Calls) -> None:
    joining = calls(view_module, "join")
    view, source = view_of(10, 100_000)

    async def main() -> None:
        await source.page(view_cursor(1, 0), 10)
        for _ in range(2):
            async with following(source, None) as deliveries:
                assert len(json.loads((await anext(deliveries)).data)["rows"]) == 10
        assert joining == [False, False]
        fill(view, 1, 10)
        await source.page(view_cursor(1, 1), 10)
        assert joining == [False, False, True]

    run(main())


def test_a_page_of_a_stream_is_encoded_in_a_thread(calls: Calls) -> None:
    hashing = calls(stream_module, "blake2b")
    source = stream_of(10, 10)

    async def main() -> None:
        await source.page(None, 5)
        await source.last(5)
        assert hashing == [False, False]

    run(main())
