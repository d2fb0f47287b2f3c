"""Requests that wait for what their events cause, and acknowledgements that tell of it later."""

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

from penstock.columns import event_rows
from penstock.queue import EmbeddedLog
from tests.e2e import decide
from tests.e2e.replies import Asker, Payer, Tipper
from tests.harness import RunningApp, running, wait_for
from tests.network import Proxy, listening

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """Its gateway may be killed as soon as it is back, and is back at once."""
    data = tmp_path_factory.mktemp("decide") / "data"
    with running(Path(decide.__file__), data, PENSTOCK_RESTART_BACKOFF_MAX_S="0.5") as app:
        yield app.ready()


def payment(name: str, card: str, amount: int) -> dict[str, Any]:
    return {"payment": name, "card": card, "amount": amount}


def paid(app: RunningApp, *payments: dict[str, Any], reply: str = "decisions", timeout: float = 30) -> httpx.Response:
    return app.post("payments", list(payments), params={"reply": reply, "timeout": timeout})


def told(app: RunningApp, ack: str) -> dict[str, Any]:
    answer = httpx.get(f"{app.url}/v1/acks/{ack}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_each_of_many_requests_at_once_gets_the_decision_on_its_own_payment(shop: RunningApp) -> None:
    """All for the same card, so that many are taken in one commit."""
    names = [f"many-{number}" for number in range(60)]
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda name: paid(shop, payment(name, "one", 5)), names))
    replies = [answer.json()["reply"]["events"] for answer in answers]
    assert [[each["payment"] for each in reply] for reply in replies] == [[name] for name in names]
    assert sum(reply[0]["approved"] for reply in replies) == 20


def test_a_payment_that_is_sent_again_gets_the_same_reply(shop: RunningApp) -> None:
    first, again = (paid(shop, payment("again", "two", 70)).json() for _ in range(2))
    assert (first["accepted"], again["duplicates"]) == (1, 1)
    assert first["reply"] == again["reply"] == {"events": [{"payment": "again", "card": "two", "approved": True}]}
    assert first["ack"] == again["ack"]


def test_several_events_have_several_replies(shop: RunningApp) -> None:
    given = [payment(f"several-{number}", f"card-{number}", 1) for number in range(8)]
    reply = paid(shop, *given).json()["reply"]
    assert sorted(each["payment"] for each in reply["events"]) == sorted(each["payment"] for each in given)


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
    assert [each["error"] for each in reply["failed"]] == ["ValueError: a payment of less than nothing"]


def test_a_reply_that_takes_too_long_can_be_fetched_later(shop: RunningApp) -> None:
    answer = paid(shop, payment("late", "six", 1), timeout=0.001)
    assert (answer.status_code, answer.json()["code"]) == (504, "no_reply_yet")
    ack = answer.json()["ack"]

    def decided() -> Any:
        handlers = [each for each in told(shop, ack)["processed"] if each.get("handler") == "decisions"]
        return handlers[0]["done"] and handlers[0]

    found = wait_for(decided, 30, "the decision")
    assert found["output"] == {"decisions": [{"payment": "late", "card": "six", "approved": True}]}


def test_an_acknowledgement_tells_who_has_taken_its_events_and_when(shop: RunningApp) -> None:
    ack = paid(shop, payment("trace", "seven", 500), reply="alarms").json()["ack"]
    wait_for(lambda: all(each["done"] for each in told(shop, ack)["processed"]), 30, "everyone to be done")
    found = told(shop, ack)
    assert (found["stream"], found["events"]) == ("payments", 1)
    nodes = {each.get("handler") or each["view"]: each for each in found["processed"]}
    assert {name: each["of"] for name, each in nodes.items()} == {
        "decisions": "payments",
        "offered": "payments",
        "sizes": "payments",
        "alarms": "decisions",
    }
    assert all(each["at"] > found["logged"] for each in nodes.values())
    assert nodes["alarms"]["output"] == {"alarms": [{"card": "seven", "refused": 1}]}
    assert "output" not in nodes["sizes"]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("nothing", "name a view that reads payments"),
        ("payments", "name a view that reads payments"),
        ("sizes", "is kept by size, which is no field of payments"),
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
    """Clients that ask again until they are answered, while the gateway is killed and the network is bad."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    proxy = Proxy(lambda: app.port, draw)
    async with listening(proxy):
        cards = [f"{seed}-{number}" for number in range(4)]
        askers: list[Asker] = [kind(card, proxy.port) for kind in (Payer, Tipper) for card in cards]
        asking = asyncio.gather(*(asker.run() for asker in askers))
        for _ in range(kills):
            goal = sum(each.answered for each in askers) + draw.randrange(1, 8)
            async with asyncio.timeout(60):
                while sum(each.answered for each in askers) < goal or not app.kill("gateway"):
                    await asyncio.sleep(draw.random() * 0.2)  # the moment of the kill is the random part of this test
        async with asyncio.timeout(60):
            while not proxy.cuts:
                await asyncio.sleep(0.05)
        proxy.calm = True
        for asker in askers:
            asker.finish = True
        async with asyncio.timeout(60):
            await asking
    print(f"{sum(each.answered for each in askers)} answers, {sum(each.tries for each in askers)} tries, {kills} kills")
    logged = logged_by_card(app, "payments") + logged_by_card(app, "tips")
    expected = sum((Counter({each.card: each.answered}) for each in askers), Counter[str]())
    assert {card: count for card, count in logged.items() if card in cards} == expected
    app.ready()


def logged_by_card(app: RunningApp, stream: str) -> Counter[str]:
    """How many events of a stream are in the log."""
    log, found = EmbeddedLog(app.data / "streams", read_only=True), Counter[str]()
    try:
        for partition, end in log.ends(stream).items():
            for batch in log.read(stream, partition, 0, end):
                found.update(json.loads(row)["card"] for row in event_rows(batch))
    finally:
        log.close()
    return found


def test_every_reply_is_the_right_one_though_the_gateway_is_killed(shop: RunningApp) -> None:
    """And every event is taken once: some are known by their id, others by the `Idempotency-Key` of their request."""
    asyncio.run(bad_day(shop, 4))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_every_reply_is_the_right_one_over_many_kills(shop: RunningApp) -> None:
    asyncio.run(bad_day(shop, 100))


def test_acknowledgements_outlive_a_restart(shop: RunningApp) -> None:
    ack = paid(shop, payment("before", "nine", 1)).json()["ack"]
    before = told(shop, ack)
    assert shop.stop() == 0
    shop.start()
    assert told(shop, ack)["processed"][0] == before["processed"][0]
    again = paid(shop, payment("before", "nine", 1)).json()
    assert (again["duplicates"], again["ack"]) == (1, ack)
    assert again["reply"]["events"][0]["payment"] == "before"
