"""The vectors of the written protocol, against the parts of the Python client that implement it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from penstock.client.asking import FollowTarget
from penstock.client.errors import ClientError, ConnectionLost, ServerError, from_answer, from_problem, retry_helps
from penstock.client.flight import Flight
from penstock.client.hub import Hub, HubSubscription
from penstock.client.messages import RawMessage
from penstock.client.pages import deliveries_of
from penstock.client.table import LocalRows
from penstock.client.timing import Retries, Timing
from penstock.core.sse import SseParser
from tests.harness import ROOT

FOLDER = ROOT / "docs/vectors"
Case = dict[str, Any]


def cases(name: str) -> pytest.MarkDecorator:
    listed = json.loads((FOLDER / f"{name}.json").read_text())["cases"]
    assert len({case["name"] for case in listed}) == len(listed)
    return pytest.mark.parametrize("case", listed, ids=[case["name"] for case in listed])


def target_of(case: Case) -> FollowTarget:
    kind = "stream" if "stream" in case else "view"
    return FollowTarget(kind, case[kind], case.get("where"), case.get("select"))  # type: ignore[arg-type]


def as_delivery(message: Case) -> RawMessage:
    return RawMessage(message["kind"], message["data"], message["cursor"])


def least() -> Retries:
    """Return retries whose random draws are always 0."""
    return Retries(Timing(draw=lambda: 0.0))


def test_every_file_of_vectors_is_tested_here_and_listed_on_its_page() -> None:
    files = {path.stem for path in FOLDER.glob("*.json")}
    assert files == {
        "positions", "table", "backoff", "errors", "requests", "sse", "pages", "socket", "publish",
    }  # fmt: skip
    listed, page = (FOLDER / "README.md").read_text(), (ROOT / "docs/protocol.md").read_text()
    for name in files:
        assert f"`{name}.json`" in listed
        assert f"(vectors/{name}.json)" in page


@cases("positions")
def test_a_connection_begins_where_the_last_whole_message_stands(case: Case) -> None:
    hub = Hub(100)
    since = case["since"]
    name = {"stream": "x"} if case["kind"] == "stream" else {"view": "x"}
    for count, expected in enumerate(case["positions"]):
        given: list[Any] = []
        subscription = HubSubscription(target_of(name), since, given.append, least())
        hub.opened()
        hub.add(subscription)
        for message in case["messages"][:count]:
            if "broken" in message:
                with pytest.raises((ConnectionLost, json.JSONDecodeError)):
                    hub.hear({"id": subscription.id, **json.loads(message["broken"])})
            else:
                heard = {"id": subscription.id, "event": message["kind"], **message}
                hub.hear(heard)
        hub.lost()
        [said] = hub.opened()
        assert said.get("since") == expected
        hub.remove(subscription)


@cases("table")
def test_a_table_has_these_rows_after_each_message(case: Case) -> None:
    table = LocalRows(case["key"], lambda rows: rows)
    for message, expected in zip(case["messages"], case["after"], strict=True):
        table.apply(as_delivery(message))
        assert sorted(map(json.dumps, table.rows)) == sorted(map(json.dumps, expected))


def test_a_row_that_lacks_a_column_of_its_key_is_an_error_that_names_it() -> None:
    table = LocalRows(["shop", "product"], lambda rows: rows)
    with pytest.raises(ClientError, match="no column 'shop'"):
        table.apply(RawMessage("snapshot", {"rows": [{"product": "tea"}]}, "v1"))
    with pytest.raises(ClientError, match="no column 'product'"):
        table.apply(RawMessage("change", {"upserts": [], "deletes": [{"shop": 1}]}, "v2"))


@cases("backoff")
def test_the_wait_after_each_failure_is_this(case: Case) -> None:
    drawn = [0.0]
    retries = Retries(Timing(base_s=case["base_s"], cap_s=case["cap_s"], draw=lambda: drawn[0]))
    for step in case["steps"]:
        if "message" in step:
            retries.succeeded()
        elif "retry_ms" in step:
            retries.retry(step["retry_ms"])
        else:
            drawn[0] = step["random"]
            retry_after_s = (
                from_problem(step["problem"]).retry_after_s if "problem" in step else step.get("retry_after_s")
            )
            assert retries.failed(retry_after_s) == pytest.approx(step["delay_s"], abs=1e-6)


def test_thousands_of_failures_do_not_overflow() -> None:
    retries = Retries(Timing(cap_s=30))
    assert all(retries.failed() <= 30 for _ in range(5000))


@cases("errors")
def test_an_error_is_tried_again_or_not(case: Case) -> None:
    assert retry_helps(case["status"], case["code"]) is case["retry"]
    problem = json.dumps({"status": case["status"], "code": case["code"], "detail": "x"}).encode()
    media_type = "application/problem+json" if case["code"] else "text/html"
    error = from_answer(case["status"], media_type, problem, "3")
    assert (error.retry, error.code, error.retry_after_s) == (case["retry"], case["code"], 3)


@cases("requests")
def test_this_is_asked(case: Case) -> None:
    target, request = target_of(case["target"]), case["request"]
    if case["transport"] == "websocket":
        said = target.subscription("7", case["since"], 9)
        assert (said.pop("id"), said.pop("window")) == ("7", 9)
        assert said == request["say"]
        return
    path, query = target.live(case["since"]) if case["transport"] == "sse" else target.page(case["since"], 30)
    assert (path, query) == (request["path"], request["query"])
    assert httpx.URL("http://x" + path).raw_path.decode() == path, "nobody encodes it twice"


@cases("sse")
def test_these_bytes_have_these_events(case: Case) -> None:
    raw = bytes.fromhex(case["hex"]) if "hex" in case else case["text"].encode()
    expected = [(event["type"], event["data"], event["id"]) for event in case["events"]]
    ways = [[raw[:cut], raw[cut:]] for cut in range(len(raw) + 1)] + [[bytes([byte]) for byte in raw]]
    for pieces in ways:
        parser = SseParser(10_000)
        events = [event for piece in pieces for event in parser.feed(piece)]
        texts = [
            (event.type, event.data.decode(errors="replace"), event.id) for event in events if event.data is not None
        ]
        assert texts == expected, pieces
        assert (parser.last_id, parser.retry_ms) == (case["last_id"], case["retry_ms"])


@cases("pages")
def test_a_page_is_these_messages(case: Case) -> None:
    if case.get("broken"):
        with pytest.raises(ConnectionLost):
            deliveries_of(case["page"], case["asked"])
    elif case["error"]:
        with pytest.raises(ServerError) as raised:
            deliveries_of(case["page"], case["asked"])
        assert raised.value.code == case["error"]
    else:
        assert deliveries_of(case["page"], case["asked"]) == [as_delivery(message) for message in case["messages"]]


class Listener:
    """One user of a hub, which receives messages in order and processes them one at a time."""

    def __init__(self, since: str | None, target: FollowTarget) -> None:
        self.given: list[Any] = []
        self.subscription = HubSubscription(target, since, self.given.append, least())

    def news(self) -> list[str | None]:
        news = [delivery.code if isinstance(delivery, ServerError) else delivery.cursor for delivery in self.given]
        self.given.clear()
        return news


@cases("socket")
def test_this_is_said_and_given_on_a_websocket(case: Case) -> None:
    hub, by_id, listeners = Hub(case["window"]), dict[str, Listener](), list[Listener]()
    assert hub.opened() == []
    for step in case["steps"]:
        said = play(hub, step, by_id, listeners)
        by_id |= {listener.subscription.id: listener for listener in listeners if listener.subscription.id is not None}
        assert said == step["say"], step
        news = [(listener, code) for listener in listeners for code in listener.news()]
        assert news == ([(by_id[step["given"][0]], step["given"][1])] if "given" in step else []), step


def play(hub: Hub, step: Case, by_id: dict[str, Listener], listeners: list[Listener]) -> list[Case]:
    if "subscribe" in step:
        listeners.append(Listener(step["since"], target_of(step["subscribe"])))
        return hub.add(listeners[-1].subscription)
    if "hear" in step:
        ended = hub.hear(step["hear"])
        assert [delay_s for _, delay_s in ended] == step.get("waited_s", [delay_s for _, delay_s in ended])
        return [said for subscription, _ in ended for said in hub.again(subscription)]
    if "take" in step:
        return hub.take(by_id[step["take"]].subscription)
    if "lost" in step:
        hub.lost()
        return []
    return hub.opened()


@cases("publish")
def test_these_messages_of_a_publisher_go_out_and_these_are_held(case: Case) -> None:
    flight = Flight()
    for step in case["steps"]:
        heard = step.get("hear", {}).get("event")
        sent: list[int] = []
        if "add" in step:
            sent = flight.add(step["add"])
        elif heard == "open":
            sent = flight.opened(step["hear"]["window"])
        elif heard == "ack":
            sent = flight.acknowledged(step["hear"]["seq"])
        elif "lost" in step:
            flight.lost()
        assert (sent, flight.held) == (step["sent"], step["held"]), step


def test_messages_of_an_earlier_connection_are_not_acknowledged_on_a_later_one() -> None:
    hub, subscription = Hub(4), HubSubscription(FollowTarget("stream", "x"), None, lambda _: None, least())
    hub.add(subscription)
    for id, cursors in (("1", "ab"), ("2", "cd")):
        hub.opened()
        for cursor in cursors:
            hub.hear({"id": id, "event": "change", "cursor": cursor, "data": {"events": []}})
        if id == "1":
            hub.lost()
    said = [hub.take(subscription) for _ in "abcd"]
    assert said == [[], [], [], [{"op": "ack", "id": "2", "cursor": "d"}]]


def test_heartbeats_do_not_pile_up_for_a_user_who_takes_nothing() -> None:
    given: list[Any] = []
    hub, subscription = Hub(4), HubSubscription(FollowTarget("stream", "x"), None, given.append, least())
    hub.opened()
    hub.add(subscription)
    hub.hear({"id": "1", "event": "change", "cursor": "a", "data": {"events": []}})
    for number in range(1000):
        hub.hear({"id": "1", "event": "progress", "cursor": f"p{number}", "data": {}})
    assert len(given) == 1
    assert subscription.position == "p999"
    hub.take(subscription)
    hub.hear({"id": "1", "event": "progress", "cursor": "q", "data": {}})
    assert given[-1].cursor == "q"
