"""Row rules of the access file, on every path by which rows can be read."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from penstock import App, Context, Event, cep, joins, rollups, windows
from penstock.control import HandlerStatus, NodeStatus, ViewStatus
from penstock.core.access import Policy
from penstock.core.clock import WallClock
from penstock.core.columns import to_batch
from penstock.core.contracts import Output, StreamSpec
from penstock.core.schema import Failed, Late, event_schema
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from penstock.runtime.changes import ChangePublisher
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.views import open_reader, view_spec
from tests.memory_log import DEADLINE_S
from tests.runtime.guarded import Reading, Running, Seen, SeenKey, running
from tests.runtime.statuses import engine_status, figures

RULES = {"a": "k = claim('sub') OR n IN (claim('numbers'))", "b*": "k = claim('nothing')"}

NOW = datetime.now(UTC)


class Order(Event, id="id"):
    id: str
    k: str


class Sample(Event, time="at"):
    at: datetime
    k: str
    n: int = 0


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, policy=Policy(rows=RULES)) as gateway:
        yield gateway


def get(gateway: Running, path: str, key: str, **params: Any) -> httpx.Response:
    with gateway.client(key) as client:
        return client.get(path, params=params)


def post(gateway: Running, stream: str, key: str, *events: Any) -> httpx.Response:
    return gateway.post(stream, key, list(events))


def test_each_sees_its_own_rows_and_an_admin_all(gateway: Running) -> None:
    """A reader's own filter shows nothing more, and `claim` is not available to readers."""
    ops = gateway.add("ops", "admin")
    ann, bob = gateway.add("ann", "consume:*"), gateway.add("bob", "consume:a")
    post(gateway, "a", ops, {"k": "ann"}, {"k": "bob"}, {"k": "bob", "n": 1})
    post(gateway, "b", ops, {"k": "ann"})

    def seen(key: str, **params: Any) -> list[str]:
        return [event["k"] for event in get(gateway, "/v1/streams/a", key, **params).json()["events"]]

    assert sorted(seen(ops)) == ["ann", "bob", "bob"]
    assert seen(ann) == ["ann"]
    assert seen(bob) == ["bob", "bob"]
    assert seen(ann, where="k = 'bob' OR TRUE") == ["ann"]
    assert seen(ann, last=10) == ["ann"]
    assert get(gateway, "/v1/streams/b", ann).json()["events"] == [], "a claim that nobody has is equal to nothing"
    refused = get(gateway, "/v1/streams/a", ann, where="k = claim('sub')")
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_expression")


def test_the_text_of_a_failure_is_for_those_who_see_all_rows(gateway: Running) -> None:
    """It may quote a value of any row; the class of the error does not."""
    ops, ann = gateway.add("ops", "admin"), gateway.add("ann", "consume:*")
    view = NodeStatus(state="failed", error="app.py:7: view v: [CAST_INVALID_INPUT] The value 'boom' is malformed")
    handler = NodeStatus(state="failed", error="app.py:9: handler h: ValueError: boom (retrying in 1 s)")
    views, handlers = {"v": ViewStatus(node=view)}, {"h": HandlerStatus(node=handler, figures=figures())}
    gateway.gateway.channel.publish(engine_status(views=views, handlers=handlers))
    gateway.do(gateway.gateway.control.look)
    gateway.do(lambda: gateway.gateway.status.note_rates(1.0))
    for path in ("/v1/health", "/v1/app"):
        assert "boom" in get(gateway, path, ops).text
        assert "boom" not in get(gateway, path, ann).text
    health, app = get(gateway, "/v1/health", ann).json(), get(gateway, "/v1/app", ann).json()
    assert health["reasons"] == ["view v failed (CAST_INVALID_INPUT)", "handler h failed (ValueError)"]
    assert app["views"][0]["error"] == "CAST_INVALID_INPUT"
    assert app["handlers"][0]["problem"]["message"] == "handler h failed (ValueError)"


def test_an_id_that_was_used_before_gives_no_acknowledgement_to_those_with_a_rule(tmp_path: Path) -> None:
    """It would reveal when the hidden event was logged. This includes the fast path, but not the caller's own
    events."""
    app = App("orders")
    app.stream("a", Order, key="k")
    with running(tmp_path, policy=Policy(rows={"a": "k = claim('sub')"}), app=app) as gateway:
        ops, ann = gateway.add("ops", "admin"), gateway.add("ann", "produce:a")
        hidden, own = {"id": "1", "k": "bob"}, {"id": "2", "k": "ann"}

        def posted(key: str, *events: dict[str, str]) -> dict[str, Any]:
            content = json.dumps(events).encode()
            head = f"POST /v1/streams/a HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
            with socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S) as connection:
                connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
                with HTTPResponse(connection) as answer:
                    answer.begin()
                    receipt: dict[str, Any] = json.loads(answer.read())
                    return receipt

        assert posted(ops, hidden)["ack"] is not None
        assert posted(ops, hidden)["ack"] is not None, "who sees all is told"
        assert posted(ann, own)["ack"] is not None
        for events in ([hidden], [hidden, {"id": "3", "k": "ann"}]):
            receipt = posted(ann, *events)
            assert (receipt["duplicates"], receipt["ack"]) == (1, None)


def test_a_cursor_of_another_shows_no_row_of_theirs(gateway: Running) -> None:
    """A cursor is a position and not a permission."""
    ops, ann = gateway.add("ops", "admin"), gateway.add("ann", "consume:a")
    start = get(gateway, "/v1/streams/a", ops, since="latest").json()["cursor"]
    post(gateway, "a", ops, {"k": "bob"}, {"k": "ann"})
    page = get(gateway, "/v1/streams/a", ann, since=start).json()
    assert [event["k"] for event in page["events"]] == ["ann"]


def test_what_cannot_be_shown_in_part_is_refused(gateway: Running) -> None:
    """Replies and states cannot be used to see the rows of a limited stream."""
    ann = gateway.add("ann", "consume:*", "produce:a")
    ack = post(gateway, "a", ann, {"k": "ann"}).json()["ack"]
    response = get(gateway, f"/v1/acks/{ack}", ann)
    assert response.status_code == 200
    assert "ann" not in json.dumps(response.json()["processed"])


def test_followers_see_no_more_than_pages_do(gateway: Running) -> None:
    """This holds for server-sent events and WebSockets."""
    ops, ann = gateway.add("ops", "admin"), gateway.add("ann", "consume:a")
    post(gateway, "a", ops, {"k": "bob"}, {"k": "ann"}, {"k": "bob"}, {"k": "ann", "n": 7})
    keys = list[str]()
    with gateway.client(ann) as client, client.stream("GET", "/v1/streams/a/live?since=earliest") as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                keys += [event["k"] for event in json.loads(line.removeprefix("data: ")).get("events", ())]
            if len(keys) == 2:
                break
    assert keys == ["ann", "ann"]
    with gateway.socket("/v1/live", ann) as connection:
        connection.send(json.dumps({"op": "subscribe", "id": "1", "stream": "a", "since": "earliest"}))
        messages = [json.loads(connection.recv(60)) for _ in range(2)]
    assert [event["n"] for event in messages[1]["data"]["events"]] == [0, 7]


def test_events_that_failed_or_came_late_are_not_shown_in_another_stream(tmp_path: Path) -> None:
    """`h.failed` and `v.late` have whole events of `a`, as text to which its rule cannot be applied: nothing of them is
    shown to callers with a rule on `a`, unless there is a rule on the stream itself."""
    app = timed_app()
    failed = Failed(
        stream="a", partition=0, offset=0, key="bob", error="ValueError", traceback="", event='{"k": "bob"}'
    )
    late = Late(
        stream="a", partition=0, offset=0, id=None, at=NOW, watermark=NOW, late_s=1.0, windows=[], event='{"k": "bob"}'
    )
    for rules, seen in ((RULES, 0), (RULES | {"h.failed": "key = 'bob'", "v.late": "TRUE"}, 1)):
        with running(tmp_path / str(seen), policy=Policy(rows=rules), app=app) as gateway:
            for name, event in (("h.failed", failed), ("v.late", late)):
                batch = to_batch(type(event), [event], ids=["1"], keys=["k"], now=NOW)
                gateway.gateway.log.declare(StreamSpec(name, event_schema(type(event)), 1))
                gateway.gateway.log.admit(name, {0: batch})
            ops, ann = gateway.add("ops", "admin"), gateway.add("ann", "consume:*")
            for name in ("h.failed", "v.late"):
                path = f"/v1/streams/{name}"
                assert len(get(gateway, path, ops, since="earliest").json()["events"]) == 1
                shown = get(gateway, path, ann, since="earliest")
                assert (shown.status_code, len(shown.json()["events"])) == (200, seen)
                with gateway.client(ann) as client:
                    asked = client.post("/v1/query", json={"sql": f'SELECT * FROM "{name}"'})
                assert (asked.status_code, len(asked.json()["rows"])) == (200, seen)


def test_events_that_a_pattern_a_join_or_a_rollup_missed_are_not_shown_in_another_stream(tmp_path: Path) -> None:
    """They have whole events of `a` as text, as `h.failed` does."""
    text = '{"k": "bob"}'
    missed: dict[str, Event] = {
        "m.missed": cep.Missed(key="bob", reason="late", at=NOW, events=text),
        "j.missed": joins.Missed(key="bob", stream="a", reason="late", at=NOW, event=text),
        "r.missed": rollups.Missed(key="bob", reason="late", at=NOW, by_s=1.0, event=text),
    }
    for rules, seen in ((RULES, 0), (RULES | dict.fromkeys(missed, "key = 'bob'"), 1)):
        with running(tmp_path / str(seen), policy=Policy(rows=rules), app=missing_app()) as gateway:
            ops, ann = gateway.add("ops", "admin"), gateway.add("ann", "consume:*")
            for name, event in missed.items():
                batch = to_batch(type(event), [event], ids=["1"], keys=["k"], now=NOW)
                gateway.gateway.log.declare(StreamSpec(name, event_schema(type(event)), 1))
                gateway.gateway.log.admit(name, {0: batch})
                path = f"/v1/streams/{name}"
                assert len(get(gateway, path, ops, since="earliest").json()["events"]) == 1
                shown = get(gateway, path, ann, since="earliest")
                assert (shown.status_code, len(shown.json()["events"])) == (200, seen)
                with gateway.client(ann) as client:
                    asked = client.post("/v1/query", json={"sql": f'SELECT * FROM "{name}"'})
                assert (asked.status_code, len(asked.json()["rows"])) == (200, seen)


@pytest.mark.parametrize(("rules", "status"), [({}, 404), (RULES, 403), ({"h": "TRUE"}, 403), ({"b": "FALSE"}, 404)])
@pytest.mark.parametrize("words", [("consume:*",), ("consume:h",)])
def test_the_state_of_a_handler_is_refused_to_those_with_a_rule_on_what_it_reads(
    tmp_path: Path, rules: dict[str, str], status: int, words: tuple[str, ...]
) -> None:
    """A key's state is computed from all of its events. 404: there is none, since no engine has run here."""
    with running(tmp_path, policy=Policy(rows=rules)) as gateway:
        ops, ann = gateway.add("ops", "admin"), gateway.add("ann", *words)
        assert get(gateway, "/v1/handlers/h/state/bob", ann).status_code == status
        assert get(gateway, "/v1/handlers/h/state/bob", ops).status_code == 404


class Hit(Event):
    path: str
    ms: int


@pytest.mark.parametrize(
    ("rules", "seen"),
    [
        ({}, 1),
        ({"hits": "path NOT LIKE '/internal/%'"}, 0),
        ({"hits": "ms = 1"}, 0),
        ({"hits*": "path NOT LIKE '/internal/%'"}, 0),
        ({"hits": "ms = 1", "*": "TRUE"}, 0),
        ({"hits": "ms = 1", "hits.rejected": "path = '/other'"}, 0),
        ({"hits": "ms = 1", "hits.rejected": "reason IS NOT NULL"}, 1),
        ({"other": "FALSE"}, 1),
    ],
)
def test_dead_letters_are_not_shown_to_those_with_a_rule_on_their_stream(
    tmp_path: Path, rules: dict[str, str], seen: int
) -> None:
    """They have the bytes of whole events. Their `path` is not the event's, although it has the same name."""
    app = App("site")
    app.stream("hits", Hit)
    with running(tmp_path, policy=Policy(rows=rules), app=app) as gateway:
        ops, ann = gateway.add("ops", "admin"), gateway.add("ann", "consume:*")
        post(gateway, "hits", ops, {"path": "/internal/payroll?name=bob", "ms": "slow"})
        path = "/v1/streams/hits.rejected"
        assert len(get(gateway, path, ops, since="earliest").json()["events"]) == 1
        shown = get(gateway, path, ann, since="earliest")
        assert (shown.status_code, len(shown.json()["events"])) == (200, seen)
        with gateway.client(ann) as client:
            asked = client.post("/v1/query", json={"sql": 'SELECT * FROM "hits.rejected"'})
        assert (asked.status_code, len(asked.json()["rows"])) == (200, seen)


def write_changes(root: Path, app: App) -> None:
    """Set the rows `ann`, `bob` and `eve` of the view `v`, and delete `bob`, which is private, and `eve`."""
    directory = DataDirectory(root)
    directory.make()
    columns = pa.schema([("k", pa.string()), ("private", pa.bool_())])
    view, storage = next(view for view in app.views if view.name == "v"), EmbeddedStorage(directory)
    table = storage.view_table(view_spec(view, Settings()), WallClock())
    table.describe(columns)
    reader, log = open_reader(view, storage, Settings()), EmbeddedLog(directory.streams)
    assert reader is not None
    publisher = ChangePublisher(view, columns, reader, log)
    publisher.publish()
    rows = [{"k": "ann", "private": False}, {"k": "bob", "private": True}, {"k": "eve", "private": False}]
    table.commit(Output(0, "[]", "[]", 1, pa.Table.from_pylist(rows, schema=columns)))
    keys = pa.table({"k": ["bob", "eve"]})
    table.commit(Output(1, "[]", "[]", 1, columns.empty_table(), keys))
    publisher.publish()
    publisher.close()
    table.close()
    log.close()


def changes_app() -> App:
    app = App("accounts")
    app.stream("a", Reading, key="k")
    app.sql("v", "SELECT k, max(n > 0) AS private FROM a GROUP BY k", key="k")
    app.sql("moves", "SELECT k, count(*) AS n FROM `v.changes` GROUP BY k", key="k")
    return app


ALL_CHANGES = [("upsert", "ann"), ("upsert", "bob"), ("upsert", "eve"), ("delete", "bob"), ("delete", "eve")]
EVE = [("upsert", "eve"), ("delete", "eve")]


@pytest.mark.parametrize(
    ("rules", "seen"),
    [
        ({}, ALL_CHANGES),
        ({"v": "k = claim('sub')"}, EVE),
        ({"v*": "k IN (claim('sub'), 'other')"}, EVE),
        ({"v.*": "k = claim('sub')"}, EVE),
        ({"v": "private = FALSE", "v.changes": "k = claim('sub')"}, EVE),
        ({"v": "private = FALSE", "v.changes": "TRUE"}, ALL_CHANGES),
        ({"v": "FALSE"}, []),
    ],
)
def test_a_rule_on_the_key_also_applies_to_the_changes_of_a_view(
    tmp_path: Path, rules: dict[str, str], seen: list[tuple[str, str]]
) -> None:
    """A caller gets the delete of each row that it has seen, and of no other row."""
    app = changes_app()
    write_changes(tmp_path, app)
    with running(tmp_path, policy=Policy(rows=rules), app=app) as gateway:
        eve = gateway.add("eve", "consume:v", "consume:v.changes")
        page = get(gateway, "/v1/streams/v.changes", eve, since="earliest").json()
        assert [(event["_change"], event["k"]) for event in page["events"]] == seen
        with gateway.client(eve) as client:
            asked = client.post("/v1/query", json={"sql": 'SELECT _change, k FROM "v.changes"'})
        assert [(row["_change"], row["k"]) for row in asked.json()["rows"]] == seen


@pytest.mark.parametrize(
    "rules",
    [
        {"v": "coalesce(private, FALSE) = FALSE"},
        {"v": "private = FALSE"},
        {"v": "k = claim('sub') OR private IS NULL"},
        {"v*": "NOT coalesce(private, FALSE)"},
        {"v": "TRUE", "v.changes": "private IS NULL"},
        {"v.changes": "_change = 'delete'"},
        {"v": "private = FALSE", "*": "TRUE"},
        {"v": "k = claim('sub')", "*": "TRUE"},
        {"v": "k ="},
    ],
)
def test_changes_are_refused_to_those_with_a_rule_on_more_than_the_key(tmp_path: Path, rules: dict[str, str]) -> None:
    """A delete has only the key, so such a rule would show the keys of hidden rows, or no deletes at all. A pattern
    that also covers other names does not open them."""
    app = changes_app()
    write_changes(tmp_path, app)
    with running(tmp_path, policy=Policy(rows=rules), app=app) as gateway:
        ops, eve = gateway.add("ops", "admin"), gateway.add("eve", "consume:*")
        assert len(get(gateway, "/v1/streams/v.changes", ops, since="earliest").json()["events"]) == len(ALL_CHANGES)
        sql = 'SELECT * FROM "v.changes"'
        requests: list[tuple[str, str, dict[str, Any]]] = [
            ("GET", "/v1/streams/v.changes", {}),
            ("GET", "/v1/streams/v.changes/live", {}),
            ("POST", "/v1/query", {"json": {"sql": sql}}),
            ("GET", "/v1/query/live", {"params": {"sql": sql}}),
            ("POST", "/v1/webhooks", {"json": {"url": "https://hook.example/", "stream": "v.changes"}}),
        ]
        with gateway.client(eve) as client:
            for method, path, content in requests:
                refused = client.request(method, path, **content)
                assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
                assert "read the view v" in refused.json()["detail"], path
        with gateway.socket("/v1/live", eve) as connection:
            for asked in ({"stream": "v.changes"}, {"query": sql}):
                connection.send(json.dumps({"op": "subscribe", "id": "1", **asked}))
                answer = json.loads(connection.recv(60))
                assert (answer["event"], answer["data"]["code"]) == ("error", "forbidden")


def timed_app() -> App:
    app = App("guarded")
    first = app.stream("a", Reading, key="k", late_after=timedelta(minutes=1))
    app.sql("v", "SELECT k, count(*) AS n FROM a GROUP BY k", key="k")

    @app.handler("h", reads=first, key="k", state=Seen, emits=SeenKey)
    def h(seen: Seen, event: Reading, ctx: Context) -> None:
        seen.count += 1

    return app


def missing_app() -> App:
    app, minute = App("guarded"), timedelta(minutes=1)
    first = app.stream("a", Sample, key="k", late_after=minute)
    second = app.stream("b", Sample, key="k", late_after=minute)
    pattern = cep.on("one", Sample).then(cep.on("two", Sample))
    app.match("m", reads=first, key="k", pattern=pattern, within=minute, emits=Sample)(lambda match: match["one"])
    app.join("j", left=first, right=second, key="k", within=minute, emits=Sample)(lambda one, two: one)
    app.rollup("r", reads=first, key="k", by=["hour"], aggregate={"count": windows.count()})
    return app
