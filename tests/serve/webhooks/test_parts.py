"""Unit tests of webhooks: the times of retries, the splitting of a delivery, and the limits on sending."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from penstock.core.contracts import Delivery
from penstock.serve.webhooks.messages import ONE_LANE, Splitter, lane_key
from penstock.serve.webhooks.model import DeliveryAttempts, Hook, Signing
from penstock.serve.webhooks.retry import Patience
from penstock.serve.webhooks.slots import Slots
from tests.clocks import until
from tests.serve.fakes import run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE = Patience(tries_max=20, lasts=timedelta(hours=24), first_s=1.0, longest_s=3600.0)


def test_delays_double_up_to_the_longest_with_up_to_a_half_left_to_chance() -> None:
    chance = Random(1)
    for failures, whole in ((1, 1), (2, 2), (3, 4), (12, 2048), (13, 3600), (1000, 3600)):
        delays = [PATIENCE.delay_s(failures, chance) for _ in range(50)]
        assert whole / 2 <= min(delays) < max(delays) <= whole
        assert len(set(delays)) == 50


def test_a_message_is_given_up_after_so_many_tries() -> None:
    tries: DeliveryAttempts | None = None
    for count in range(1, 20):
        tries = PATIENCE.after(tries, "x", NOW, Random(1))
        assert tries is not None
        assert tries.count == count
    assert PATIENCE.after(tries, "x", NOW, Random(1)) is None


def test_a_message_is_given_up_after_so_long() -> None:
    first = PATIENCE.after(None, "x", NOW, Random(1))
    assert PATIENCE.after(first, "x", NOW + timedelta(hours=23), Random(1)) is not None
    assert PATIENCE.after(first, "x", NOW + timedelta(hours=24), Random(1)) is None


@pytest.mark.parametrize(("asked", "least", "most"), [(0.0, 0.5, 1.0), (30.0, 30.0, 30.0), (1e9, 3600.0, 3600.0)])
def test_what_is_asked_for_is_waited_for_and_never_less_than_the_delay(asked: float, least: float, most: float) -> None:
    tries = PATIENCE.after(None, "x", NOW, Random(1), asked)
    assert tries is not None
    assert least <= (tries.due - NOW).total_seconds() <= most


def change(**data: Any) -> Delivery:
    return Delivery("change", json.dumps(data).encode(), "there")


def split(splitter: Splitter, delivery: Delivery) -> list[tuple[bytes | None, Any]]:
    messages = splitter.split(delivery, 5, NOW, "before")
    assert [message.number for message, _ in messages] == list(range(5, 5 + len(messages)))
    assert all(message.size == len(body) for message, body in messages)
    return [(message.lane, json.loads(body)) for message, body in messages]


def test_each_event_is_a_message_in_the_lane_of_its_key() -> None:
    events = [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"n": 3, "k": "a"}, {"k": None, "n": 4}, {"n": 5}]
    messages = split(Splitter("stream", "s", ("k",)), change(events=events))
    assert [body["data"] for _, body in messages] == [{"events": [event]} for event in events]
    lanes = [lane for lane, _ in messages]
    assert lanes[0] == lanes[2] != lanes[1]
    assert lanes[3] not in (lanes[0], lanes[1], ONE_LANE)
    assert lanes[4] == ONE_LANE
    envelope = messages[0][1] | {"data": None}
    assert envelope == {
        "type": "stream.change", "timestamp": "2026-01-01T00:00:00Z", "stream": "s", "cursor": "before", "data": None,
    }  # fmt: skip
    assert [body["cursor"] for _, body in messages] == ["before"] * 4 + ["there"]


def test_the_same_bytes_have_the_same_id_and_others_another() -> None:
    splitter = Splitter("stream", "s")
    one = splitter.split(change(events=[{"n": 1}]), 5, NOW, "before")[0][0].id("wh")
    same = splitter.split(change(events=[{"n": 1}]), 5, NOW, "before")[0][0].id("wh")
    other = splitter.split(change(events=[{"n": 2}]), 5, NOW, "before")[0][0].id("wh")
    assert one == same != other
    assert "." not in one


def test_a_large_batch_is_cut_by_number_and_by_bytes() -> None:
    events = [{"n": number, "text": "x" * 50_000} for number in range(20)]
    messages = split(Splitter("stream", "s", ("n",), batch=10), change(events=events))
    assert [len(body["data"]["events"]) for _, body in messages] == [6, 6, 6, 2]
    assert {lane for lane, _ in messages} == {ONE_LANE}
    messages = split(Splitter("stream", "s", ("n",), batch=4), change(events=events))
    assert [len(body["data"]["events"]) for _, body in messages] == [4] * 5


def test_a_row_and_the_delete_of_its_key_are_in_one_lane() -> None:
    splitter = Splitter("view", "v", ("a", "b"))
    [(one, body)] = split(splitter, change(upserts=[{"b": 2, "x": 9, "a": 1}], deletes=[]))
    [(other, gone)] = split(splitter, change(upserts=[], deletes=[{"a": 1, "b": 2}]))
    assert one == other
    assert body["data"] == {"upserts": [{"b": 2, "x": 9, "a": 1}], "deletes": []}
    assert gone["data"] == {"upserts": [], "deletes": [{"a": 1, "b": 2}]}


def test_marks_give_no_message_and_an_empty_view_is_a_snapshot_of_no_rows() -> None:
    splitter = Splitter("view", "v", ("k",))
    assert splitter.split(Delivery("progress", b"{}", "c"), 1, NOW, "before") == []
    assert splitter.split(Delivery("stall", b'{"behind": 9}', "c"), 1, NOW, "before") == []
    [(lane, body)] = split(splitter, Delivery("snapshot", b'{"rows": []}', "c"))
    assert (lane, body["data"]) == (None, {"rows": [], "part": 1, "parts": 1})


@pytest.mark.parametrize(
    ("select", "kept"),
    [
        (None, True),
        ("k, n", True),
        ("n, `k`", True),
        ('n, "k"', True),
        ("n", False),
        ("n AS k", False),
        ("upper(k) AS k", False),
        ("coalesce(n, k, n) AS k", False),
        ("concat(',', k, ',') AS k", False),
        ("', k, ' AS k", False),
        ("k AS other", False),
    ],
)
def test_the_key_makes_lanes_only_if_it_comes_through_as_it_is(select: str | None, kept: bool) -> None:
    assert lane_key("stream", ("k",), select) == (("k",) if kept else ())
    assert lane_key("view", ("k",), select) == ("k",)


def test_a_replaced_secret_signs_until_its_time_and_the_newest_comes_first() -> None:
    secrets = (Signing("new"), Signing("old", NOW + timedelta(hours=1)), Signing("older", NOW))
    hook = Hook("i", "u", "stream", "s", "o", NOW, secrets=secrets)
    assert hook.signing(NOW) == ["new", "old"]
    assert hook.signing(NOW + timedelta(hours=1)) == ["new"]
    assert "new" not in repr(hook)


def test_a_webhook_that_holds_every_place_keeps_no_other_from_one() -> None:
    async def main() -> None:
        slots, inside = Slots(2, 10), list[str]()
        leave = asyncio.Event()

        async def hold(webhook: str, host: str) -> None:
            async with slots.one(webhook, host):
                inside.append(webhook)
                await leave.wait()

        tasks = [asyncio.create_task(hold("greedy", "a")) for _ in range(9)]
        await until(lambda: len(inside) == 3)
        tasks += [asyncio.create_task(hold(f"other {number}", "b")) for number in range(5)]
        await until(lambda: len(inside) == 8)
        assert inside.count("greedy") == 3
        leave.set()
        await asyncio.gather(*tasks)
        assert (slots._hosts, slots._own, slots._free, slots._waiting) == ({}, set(), 2, [])

    run(main())


@pytest.mark.parametrize("seed", range(5))
def test_places_are_not_lost_when_those_who_wait_for_them_are_cancelled(seed: int) -> None:
    chance = Random(seed)

    async def main() -> None:
        slots, most, inside = Slots(3, 4), 0, 0

        async def hold(webhook: str) -> None:
            nonlocal most, inside
            async with slots.one(webhook, f"host {webhook}"):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(chance.random() * 0.002)
                inside -= 1

        async def cancelled(webhook: str) -> None:
            task = asyncio.create_task(slots_held(webhook))
            await asyncio.sleep(chance.random() * 0.003)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def slots_held(webhook: str) -> None:
            async with slots.one(webhook, f"host {webhook}"):
                await asyncio.sleep(chance.random() * 0.003)

        names = ["a", "b", "c"]
        work = [hold if chance.random() < 0.5 else cancelled for _ in range(300)]
        await asyncio.gather(*(job(chance.choice(names)) for job in work))
        assert most <= 3 + len(names)
        assert (slots._hosts, slots._own, slots._free, slots._waiting) == ({}, set(), 3, [])

    run(main())


def test_a_host_has_only_so_many_places_and_whoever_waits_is_served_in_order() -> None:
    async def main() -> None:
        slots, served = Slots(100, 1), list[int]()

        async def visit(number: int) -> None:
            async with slots.one(f"webhook {number}", "host"):
                served.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(visit(number) for number in range(20)))
        assert served == list(range(20))

    run(main())
