"""Pages with filters, long polling, the latest events, and answers that say nothing has changed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pyarrow as pa
import pytest

from penstock.core.access import Caller
from penstock.core.access.caller import Sight
from penstock.core.access.grants import grants
from penstock.core.contracts import Channel
from penstock.core.errors import Busy
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.serve.channels.feed import FeedChannel
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import Connections, following
from penstock.serve.deps import Deps
from tests.clocks import until
from tests.serve.fakes import FakeLog, FakeView, Reading, application, make_deps, run
from tests.serve.test_http import calling

SMALL = Settings(heartbeat_s=600, page_events=5, page_events_max=20)


def deps_of(log: FakeLog | None = None, view: FakeView | None = None, **changed: Any) -> Deps:
    stream = StreamChannel("s", log or FakeLog(1), SMALL, lambda: event_schema(Reading))
    rows = ViewChannel("v", view or FakeView(), SMALL, key=["k"])
    streams: dict[str, Channel] = {
        "s": stream,
        "odd": FeedChannel(stream, "n % 2 = 1", "n, n * 2 AS twice", source="s"),
    }
    views: dict[str, Channel] = {"v": rows, "large": FeedChannel(rows, "v > 5", None, source="v")}
    return make_deps(streams=streams, views=views, settings=SMALL, **changed)


def got(deps: Deps, path: str, **params: Any) -> Any:
    async def main() -> Any:
        async with calling(deps) as client:
            return (await client.get(path, params=params)).json()

    return run(main())


def numbers(page: Any) -> list[int]:
    return [event["n"] for event in page["events"]]


def filled(count: int) -> FakeLog:
    log = FakeLog(2)
    for number in range(count):
        log.write(number % 2, number, at_s=number)
    return log


def test_a_filtered_page_has_as_many_events_as_were_asked_for() -> None:
    """However few events match, a page reads on; the next one continues it."""
    deps = deps_of(filled(40))
    first = got(deps, "/v1/streams/s", where="n % 10 = 0", limit=3)
    assert numbers(first) == [0, 10, 20]
    second = got(deps, "/v1/streams/s", where="n % 10 = 0", since=first["cursor"])
    assert numbers(second) == [30]
    assert "more" not in second
    assert first["more"] is True


def test_a_page_that_has_looked_at_enough_says_that_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that matches few events does not hold a thread for long: the page ends, with a cursor to continue
    from."""
    monkeypatch.setattr("penstock.serve.channels.stream.SCAN_EVENTS_MAX", 10)
    deps, cursor, matches, pages = deps_of(filled(40)), "earliest", list[int](), 0
    while True:
        page = got(deps, "/v1/streams/s", where="n = 39", since=cursor, limit=3)
        matches, cursor, pages = matches + numbers(page), page["cursor"], pages + 1
        if "more" not in page:
            break
    assert matches == [39]
    assert pages >= 4


def test_the_latest_events_come_in_their_order() -> None:
    """`last` counts matching events."""
    deps = deps_of(filled(40))
    assert numbers(got(deps, "/v1/streams/s", last=3)) == [37, 38, 39]
    page = got(deps, "/v1/streams/s", last=2, where="n < 38 AND n % 2 = 0")
    assert numbers(page) == [34, 36]
    assert numbers(got(deps, "/v1/streams/s", since=page["cursor"])) == []
    assert numbers(got(deps_of(FakeLog(1)), "/v1/streams/s", last=3)) == []


def test_a_request_that_waits_is_answered_when_something_comes() -> None:
    """An event that does not match wakes nobody; the answer has the events that came, up to the limit."""

    async def main() -> None:
        log = filled(3)
        deps = deps_of(log)
        source = deps.streams["s"]
        assert isinstance(source, StreamChannel)
        async with calling(deps) as client:
            cursor = (await client.get("/v1/streams/s", params={"since": "latest"})).json()["cursor"]
            given: dict[str, Any] = {"since": cursor, "wait": 15, "where": "n >= 50", "limit": 2}
            waiting = asyncio.create_task(client.get("/v1/streams/s", params=given))
            await until(lambda: source._tail.row_filters.readers == 1)
            log.write(0, 3, at_s=10)
            source.wake()
            await until(lambda: source._tail.position == log.ends("s"))
            assert not waiting.done()
            log.write(1, 50, 51, 52, at_s=11)
            source.wake()
            answer = (await waiting).json()
            assert numbers(answer) == [50, 51]
            rest = await client.get("/v1/streams/s", params=given | {"since": answer["cursor"]})
            assert numbers(rest.json()) == [52]

    run(main())


def test_a_request_that_waits_in_vain_is_answered_with_an_empty_page() -> None:
    """The cursor has moved past the events that the filter hides."""

    async def main() -> None:
        log, view = filled(3), FakeView()
        deps = deps_of(log, view)
        async with calling(deps) as client:
            empty = await client.get("/v1/streams/s", params={"since": "earliest", "wait": 0.05, "where": "n > 100"})
            assert empty.json()["events"] == []
            assert numbers((await client.get("/v1/streams/s", params={"since": empty.json()["cursor"]})).json()) == []
            none = await client.get("/v1/views/v", params={"since": "latest", "wait": 0.05})
            assert none.json()["changes"] == []

    run(main())


def test_a_view_that_is_waited_for_tells_its_changes() -> None:
    """A change that the filter hides does not end the wait."""

    async def main() -> None:
        view = FakeView()
        deps = deps_of(view=view)
        async with calling(deps) as client:
            given: dict[str, Any] = {"since": "latest", "wait": 15, "where": "v > 10"}
            waiting = asyncio.create_task(client.get("/v1/views/v", params=given))
            await until(lambda: deps.connections.open == 1)
            view.put({"a": 1})
            view.put({"b": 11})
            assert (await waiting).json()["changes"] == [{"upserts": [{"k": "b", "v": 11}], "deletes": []}]

    run(main())


def test_those_who_wait_are_told_that_the_app_stops() -> None:
    """503, and the client's cursor stays valid."""

    async def main() -> None:
        deps = deps_of()
        async with calling(deps) as client:
            waiting = asyncio.create_task(client.get("/v1/streams/s", params={"since": "latest", "wait": 15}))
            await until(lambda: deps.connections.open == 1)
            deps.closing.set()
            answer = await waiting
            assert (answer.status_code, answer.json()["code"]) == (503, "stopping")

    run(main())


@pytest.mark.parametrize("path", ["/v1/streams/s", "/v1/views/v"])
def test_one_who_waits_gets_nothing_once_its_key_is_revoked(path: str) -> None:
    """As with connections that stay open, it gets nothing that comes after that."""

    async def main() -> None:
        log, view = FakeLog(1), FakeView()
        deps = deps_of(log, view)
        caller = Caller("key:ann", grants(["consume:*"]))
        transport = httpx.ASGITransport(application(deps, caller))
        async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
            waiting = asyncio.create_task(client.get(path, params={"since": "latest", "wait": 15}))
            await until(lambda: deps.connections.open == 1)
            caller.limit(0.0)
            answer = await waiting
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
            assert deps.connections.open == 0

    run(main())


def test_an_answer_that_would_be_the_same_is_not_sent_again() -> None:
    """304 for the same rows, even if rows changed that the filter hides; 200 as soon as one differs."""

    async def main() -> None:
        view = FakeView()
        view.put({"a": 1, "b": 20})
        async with calling(deps_of(view=view)) as client:
            given = {"where": "v > 10"}
            first = await client.get("/v1/views/v", params=given)
            tag = {"If-None-Match": first.headers["etag"]}
            again = await client.get("/v1/views/v", params=given, headers=tag)
            assert (again.status_code, again.content) == (304, b"")
            view.put({"a": 2})
            assert (await client.get("/v1/views/v", params=given, headers=tag)).status_code == 304
            view.put({"b": 21})
            changed = await client.get("/v1/views/v", params=given, headers=tag)
            assert (changed.status_code, changed.json()["rows"]) == (200, [{"k": "b", "v": 21}])
            both = f'"x", {first.headers["etag"]}, {changed.headers["etag"].removeprefix("W/")}'
            assert (await client.get("/v1/views/v", params=given, headers={"If-None-Match": both})).status_code == 304
            any_tag = {"If-None-Match": "*"}
            assert (await client.get("/v1/views/v", params=given, headers=any_tag)).status_code == 304
            strangers = await client.get("/v1/views/v", headers=tag)
            assert strangers.status_code == 200

    run(main())


def test_rows_come_in_the_order_that_is_asked_for() -> None:
    """Several columns are sorted, ascending or descending; a limit takes the first in that order."""
    view = FakeView()
    view.put({"a": 2, "b": 1, "c": 2, "d": 3})
    deps = deps_of(view=view)
    view.put({"e": None})
    assert [row["k"] for row in got(deps, "/v1/views/v", order="v")["rows"]] == ["b", "a", "c", "d", "e"]
    assert [row["k"] for row in got(deps, "/v1/views/v", order="v desc")["rows"]][-1] == "e"
    assert got(deps, "/v1/views/v", order="-v, k") == got(deps, "/v1/views/v", order="v DESC, k")
    ordered = got(deps, "/v1/views/v", order="v DESC, k", limit=3)
    assert [row["k"] for row in ordered["rows"]] == ["d", "a", "c"]
    assert ordered["truncated"] is True
    assert [row["k"] for row in got(deps, "/v1/views/v", order="v", where="v < 3")["rows"]] == ["b", "a", "c"]
    selected = got(deps, "/v1/views/v", select="v * -1 AS below", order="below")
    assert selected["rows"][0] == {"k": "d", "below": -3}


def test_a_view_comes_as_a_whole_if_that_is_asked_for() -> None:
    """This holds for any number of rows, after a reset, and through a filter; later changes are not missed."""
    view = FakeView()
    view.put({f"{number:02}": number for number in range(50)})
    deps = deps_of(view=view)
    whole = got(deps, "/v1/views/v", limit="all")
    assert [row["v"] for row in whole["rows"]] == list(range(50))
    assert "truncated" not in whole
    assert got(deps, "/v1/views/v", limit="all", order="v DESC")["rows"] == whole["rows"][::-1]
    assert len(got(deps, "/v1/views/v", limit="all", where="v >= 10")["rows"]) == 40
    assert len(got(deps, "/v1/views/large", limit="all")["rows"]) == 44
    for number in range(30):
        view.put({"00": -number})
    later = got(deps, "/v1/views/v", limit="all", since=whole["cursor"])
    assert [change["upserts"][0]["v"] for change in later["changes"]] == [0, -1, -2, -3, -4]  # in pages, as always
    view.remake()
    view.put({f"{number:02}": number for number in range(30)})
    anew = got(deps, "/v1/views/v", limit="all", since=later["cursor"])
    assert (anew["reset"], len(anew["rows"])) == (True, 30)
    assert got(deps, "/v1/views/v", limit="all", since=anew["cursor"])["changes"] == []


def test_a_long_answer_is_whole_and_has_its_length_and_its_tag() -> None:
    async def main() -> None:
        view = FakeView()
        view.put({str(number): "x" * 1_000 for number in range(300)})
        async with calling(deps_of(view=view)) as client:
            answer = await client.get("/v1/views/v", params={"limit": "all"})
            assert int(answer.headers["content-length"]) == len(answer.content) > 300_000
            assert len(answer.json()["rows"]) == 300
            tag = {"If-None-Match": answer.headers["etag"]}
            assert (await client.get("/v1/views/v", params={"limit": "all"}, headers=tag)).status_code == 304
            view.put({"0": "y"})
            assert (await client.get("/v1/views/v", params={"limit": "all"}, headers=tag)).status_code == 200

    run(main())


def test_a_long_answer_is_refused_while_all_live_connections_are_taken() -> None:
    view = FakeView()
    view.put({"a": "x" * 100_000})
    connections = Connections(0)
    deps = deps_of(view=view, connections=connections)
    assert got(deps, "/v1/views/v", limit="all")["code"] == "busy"
    assert got(deps, "/v1/views/v", select="k")["rows"] == [{"k": "a"}]
    assert connections.open == 0


@pytest.mark.parametrize("path", ["/v1/streams/s", "/v1/streams/odd"])
def test_a_stream_never_comes_as_a_whole(path: str) -> None:
    refused = got(deps_of(filled(3)), path, limit="all")
    assert (refused["code"], refused["parameter"]) == ("bad_parameter", "limit")


def test_a_feed_is_a_stream_or_view_of_its_own() -> None:
    """It shows the events or rows that its filter lets pass, and a reader's filter sees nothing else."""
    view = FakeView()
    view.put({"a": 2, "b": 7, "c": 9})
    deps = deps_of(filled(6), view)
    assert got(deps, "/v1/streams/odd")["events"] == [{"n": n, "twice": 2 * n} for n in (1, 3, 5)]
    assert got(deps, "/v1/streams/odd", where="twice > 4", select="n")["events"] == [{"n": 3}, {"n": 5}]
    assert got(deps, "/v1/streams/odd", where="text = ''")["code"] == "bad_expression"
    assert [row["k"] for row in got(deps, "/v1/views/large")["rows"]] == ["b", "c"]
    assert [row["k"] for row in got(deps, "/v1/views/large", where="v < 8")["rows"]] == ["b"]


@pytest.mark.parametrize(
    ("rules", "seen"),
    [
        ({}, [1, 3, 5]),
        ({"s": "n > 2 AND text = ''"}, [3, 5]),
        ({"s": "n > 2", "odd": "twice < 6"}, [1]),
        ({"other": "FALSE"}, [1, 3, 5]),
    ],
)
def test_a_feed_shows_nothing_that_its_reader_may_not_see_of_the_stream(rules: dict[str, str], seen: list[int]) -> None:
    """The exception is a rule for the feed itself. Otherwise a caller of the feed would find hidden events in it."""

    async def main() -> None:
        reader = Caller("key:ann", grants(["consume:*"]), sight=Sight(rules))
        channel = deps_of(filled(6)).channel("stream", "odd", reader)
        assert numbers(json.loads((await channel.page(None, 10)).body)) == seen

    run(main())


@pytest.mark.parametrize(
    ("path", "given", "code"),
    [
        ("/v1/streams/s", {"wait": "1"}, "bad_parameter"),
        ("/v1/streams/s", {"wait": "x", "since": "latest"}, "bad_parameter"),
        ("/v1/streams/s", {"wait": "nan", "since": "latest"}, "bad_parameter"),
        ("/v1/streams/s", {"wait": "-1", "since": "latest"}, "bad_parameter"),
        ("/v1/streams/s", {"wait": "61", "since": "latest"}, "bad_parameter"),
        ("/v1/streams/s", {"last": "0"}, "bad_parameter"),
        ("/v1/streams/s", {"last": "21"}, "bad_parameter"),
        ("/v1/streams/s", {"last": "1", "since": "latest"}, "bad_parameter"),
        ("/v1/streams/s", {"last": "1", "limit": "1"}, "bad_parameter"),
        ("/v1/streams/s", {"order": "n"}, "bad_parameter"),
        ("/v1/streams/s", {"where": ""}, "bad_expression"),
        ("/v1/streams/s", {"where": "n ="}, "bad_expression"),
        ("/v1/streams/s", {"where": "_id = 'x'"}, "bad_expression"),
        ("/v1/streams/s", {"select": "n, n"}, "bad_expression"),
        ("/v1/views/v", {"last": "1"}, "bad_parameter"),
        ("/v1/views/v", {"order": "nothing"}, "bad_parameter"),
        ("/v1/views/v", {"order": "v; k"}, "bad_parameter"),
        ("/v1/views/v", {"order": "v", "since": "latest"}, "bad_parameter"),
        ("/v1/views/v", {"order": "v", "wait": "1"}, "bad_parameter"),
        ("/v1/views/v", {"order": ",".join(["v"] * 9)}, "bad_parameter"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(path: str, given: dict[str, str], code: str) -> None:
    """The answer names the wrong parameter."""
    assert got(deps_of(), path, **given)["code"] == code


def test_a_view_whose_columns_are_not_known_yet_cannot_be_filtered() -> None:
    """503, since the same request can be answered once its query has started."""

    class Unbuilt(FakeView):
        @property
        def schema(self) -> None:
            return None

    deps = make_deps(views={"v": ViewChannel("v", Unbuilt(), SMALL, key=["k"])})
    assert got(deps, "/v1/views/v", where="v > 1")["code"] == "busy"
    assert got(deps, "/v1/views/v")["rows"] == []


def test_a_view_made_anew_with_other_columns_is_not_shown_through_a_filter_of_before() -> None:
    """A waiting reader asks again, and then its filter fits or is refused."""

    class Changing(FakeView):
        columns = pa.schema([("k", pa.string()), ("v", pa.int64())])

        @property
        def schema(self) -> pa.Schema | None:
            return self.columns

    async def main() -> None:
        view = Changing()
        async with calling(deps_of(view=view)) as client:
            given: dict[str, Any] = {"since": "latest", "wait": 20, "where": "v IS NULL OR v > 0"}
            waiting = asyncio.create_task(client.get("/v1/views/v", params=given))
            await until(lambda: view.waiting > 0)
            view.columns = pa.schema([("k", pa.string()), ("secret", pa.int64())])
            view.remake()
            view.put({"a": 1})
            answer = await waiting
            assert (answer.status_code, answer.json()["code"]) == (503, "busy")
            assert (await client.get("/v1/views/v", params=given)).json()["code"] == "bad_expression"

    run(main())


def test_so_many_filters_at_once_and_no_more() -> None:
    """Readers with the same filter count once; a new one is refused while all slots are taken."""

    async def main() -> None:
        source = StreamChannel("s", FakeLog(1), Settings(filters_max=2), lambda: event_schema(Reading))

        async def begin(seen: StreamChannel) -> str:
            async with following(seen, "latest") as deliveries:
                return (await anext(deliveries)).kind

        with source._tail.attached(source.through("n = 1", None)._row_filter):
            with source._tail.attached(source.through("n = 2", None)._row_filter):
                assert await begin(source.through("n = 2", None)) == "progress"
                assert await begin(source) == "progress"
                with pytest.raises(Busy):
                    await begin(source.through("n = 3", None))
            assert await begin(source.through("n = 3", None)) == "progress"

    run(main())
