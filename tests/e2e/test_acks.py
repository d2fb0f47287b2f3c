"""Requests that wait for the results of their events, and acknowledgements by which results are looked up later."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.core.columns import event_rows
from penstock.queue import EmbeddedLog
from tests.e2e import decide
from tests.e2e.replies import Asker, Payer, Tipper
from tests.harness import RunningApp, running, wait_for
from tests.network import Proxy, listening

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """Run the app; its gateway may be killed as soon as it is back, and is back at once."""
    data = tmp_path_factory.mktemp("decide") / "data"
    with running(Path(decide.__file__), data, PENSTOCK_RESTART_BACKOFF_MAX_S="0.5") as app:
        yield app.ready()


def payment(name: str, card: str, amount: int) -> dict[str, Any]:
    return {"payment": name, "card": card, "amount": amount}


def paid(app: RunningApp, *payments: dict[str, Any], reply: str = "decisions", timeout: float = 30) -> httpx.Response:
    return app.post("payments", list(payments), params={"reply": reply, "timeout": timeout})


def ack_status(app: RunningApp, ack: str) -> dict[str, Any]:
    answer = httpx.get(f"{app.url}/v1/acks/{ack}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_each_of_many_requests_at_once_gets_the_decision_on_its_own_payment(shop: RunningApp) -> None:
    """All are for the same card, so that many are in one commit."""
    names = [f"many-{number}" for number in range(60)]
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda name: paid(shop, payment(name, "one", 5)), names))
    replies = [answer.json()["reply"]["events"] for answer in answers]
    assert [[event["payment"] for event in reply] for reply in replies] == [[name] for name in names]
    assert sum(reply[0]["approved"] for reply in replies) == 20


def test_a_payment_that_is_sent_again_gets_the_same_reply(shop: RunningApp) -> None:
    first, again = (paid(shop, payment("again", "two", 70)).json() for _ in range(2))
    assert (first["accepted"], again["duplicates"]) == (1, 1)
    assert first["reply"] == again["reply"] == {"events": [{"payment": "again", "card": "two", "approved": True}]}
    assert first["ack"] == again["ack"]


def test_several_events_have_several_replies(shop: RunningApp) -> None:
    given = [payment(f"several-{number}", f"card-{number}", 1) for number in range(8)]
    reply = paid(shop, *given).json()["reply"]
    assert sorted(event["payment"] for event in reply["events"]) == sorted(event["payment"] for event in given)


def test_a_reply_may_be_the_row_of_a_view(shop: RunningApp) -> None:
    assert paid(shop, payment("view-1", "three", 10), reply="offered").json()["reply"] == {
        "rows": [{"card": "three", "amount": 10}]
    }
    assert paid(shop, payment("view-2", "three", 7), reply="offered").json()["reply"] == {
        "rows": [{"card": "three", "amount": 17}]
    }


def test_a_reply_may_come_from_a_handler_behind_a_handler(shop: RunningApp) -> None:
    fine = paid(shop, payment("chain-1", "four", 90), reply="alarms").json()["reply"]
    refused = paid(shop, payment("chain-2", "four", 90), reply="alarms").json()["reply"]
    assert fine == {"events": []}
    assert refused == {"events": [{"card": "four", "refused": 1}]}


def test_an_event_that_the_handler_fails_on_is_answered_with_that(shop: RunningApp) -> None:
    reply = paid(shop, payment("bad", "five", -1)).json()["reply"]
    assert reply["events"] == []
    assert [failure["error"] for failure in reply["failed"]] == ["ValueError: a payment of less than nothing"]


def test_a_reply_that_takes_too_long_can_be_fetched_later(shop: RunningApp) -> None:
    answer = paid(shop, payment("late", "six", 1), timeout=0.001)
    assert (answer.status_code, answer.json()["code"]) == (504, "no_reply_yet")
    ack = answer.json()["ack"]

    def decided() -> Any:
        handlers = [node for node in ack_status(shop, ack)["processed"] if node.get("handler") == "decisions"]
        return handlers[0]["done"] and handlers[0]

    processed = wait_for(decided, 30, "the decision")
    assert processed["output"] == {"decisions": [{"payment": "late", "card": "six", "approved": True}]}


def test_an_acknowledgement_tells_who_has_taken_its_events_and_when(shop: RunningApp) -> None:
    ack = paid(shop, payment("trace", "seven", 500), reply="alarms").json()["ack"]
    wait_for(lambda: all(node["done"] for node in ack_status(shop, ack)["processed"]), 30, "everyone to be done")
    status = ack_status(shop, ack)
    assert (status["stream"], status["events"]) == ("payments", 1)
    nodes = {node.get("handler") or node["view"]: node for node in status["processed"]}
    assert {name: node["of"] for name, node in nodes.items()} == {
        "decisions": "payments",
        "offered": "payments",
        "sizes": "payments",
        "alarms": "decisions",
    }
    assert all(node["at"] > status["logged"] for node in nodes.values())
    assert nodes["alarms"]["output"] == {"alarms": [{"card": "seven", "refused": 1}]}
    assert "output" not in nodes["sizes"]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("nothing", "use a view that reads payments"),
        ("payments", "use a view that reads payments"),
        ("sizes", "has the key size, but payments has no such field"),
    ],
)
def test_what_no_event_can_cause_is_refused(shop: RunningApp, reply: str, problem: str) -> None:
    answer = paid(shop, payment("refused", "eight", 1), reply=reply)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_parameter")
    assert problem in answer.json()["detail"]


def test_an_acknowledgement_of_elsewhere_is_not_found(shop: RunningApp) -> None:
    assert httpx.get(f"{shop.url}/v1/acks/rubbish").json()["code"] == "not_found"
    assert httpx.get(f"{shop.url}/v1/acks/lKFhpWZpeGVzB5GTAAAB").json()["code"] == "not_found"


async def bad_day(app: RunningApp, kills: int) -> None:
    """Run clients that retry until they are answered, while the gateway is killed and the network is bad."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    proxy = Proxy(lambda: app.port, draw)
    async with listening(proxy):
        cards = [f"{seed}-{number}" for number in range(4)]
        askers: list[Asker] = [kind(card, proxy.port) for kind in (Payer, Tipper) for card in cards]
        asking = asyncio.gather(*(asker.run() for asker in askers))
        for _ in range(kills):
            goal = sum(asker.answered for asker in askers) + draw.randrange(1, 8)
            async with asyncio.timeout(60):
                while sum(asker.answered for asker in askers) < goal or not app.kill("gateway"):
                    await asyncio.sleep(draw.random() * 0.2)  # the moment of the kill is the random part of this test
        async with asyncio.timeout(60):
            while not proxy.cuts:
                await asyncio.sleep(0.05)
        proxy.calm = True
        for asker in askers:
            asker.finish = True
        async with asyncio.timeout(60):
            await asking
    answers, tries = sum(asker.answered for asker in askers), sum(asker.tries for asker in askers)
    print(f"{answers} answers, {tries} tries, {kills} kills")
    logged = logged_by_card(app, "payments") + logged_by_card(app, "tips")
    expected = sum((Counter({asker.card: asker.answered}) for asker in askers), Counter[str]())
    assert {card: count for card, count in logged.items() if card in cards} == expected
    app.ready()


def logged_by_card(app: RunningApp, stream: str) -> Counter[str]:
    """Return how many events of a stream are in the log."""
    log, count = EmbeddedLog(app.data / "streams", read_only=True), Counter[str]()
    try:
        for partition, end in log.ends(stream).items():
            for batch in log.read(stream, partition, 0, end):
                count.update(json.loads(row)["card"] for row in event_rows(batch))
    finally:
        log.close()
    return count


def test_every_reply_is_the_right_one_though_the_gateway_is_killed(shop: RunningApp) -> None:
    """And every event is stored once: some are identified by their id, others by the `Idempotency-Key` of their
    request."""
    asyncio.run(bad_day(shop, 4))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_every_reply_is_the_right_one_over_many_kills(shop: RunningApp) -> None:
    asyncio.run(bad_day(shop, 100))


def test_acknowledgements_outlive_a_restart(shop: RunningApp) -> None:
    ack = paid(shop, payment("before", "nine", 1)).json()["ack"]
    before = ack_status(shop, ack)
    assert shop.stop() == 0
    shop.start()
    assert ack_status(shop, ack)["processed"][0] == before["processed"][0]
    again = paid(shop, payment("before", "nine", 1)).json()
    assert (again["duplicates"], again["ack"]) == (1, ack)
    assert again["reply"]["events"][0]["payment"] == "before"
