"""Messages reach a receiver that fails in every way, each at least once, in the order of each key, under one id."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.core.access import ANYONE
from penstock.serve.webhooks import delivery_worker
from tests.clocks import until
from tests.serve.fakes import run
from tests.serve.webhooks.receiver import OK, Received, Receiver, receiving, status
from tests.serve.webhooks.rig import replaced, rigged, settled


def test_events_reach_the_receiver_signed_and_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving() as receiver, rigged(tmp_path) as rig:
            id = await rig.add(receiver)
            rig.write(*range(5))
            await until(lambda: len(receiver.taken) == 5)
            await settled(rig, id)
        assert [event["n"] for event in receiver.events()] == [0, 1, 2, 3, 4]
        first = receiver.requests[0]
        assert first.line == "POST /hook HTTP/1.1"
        assert first.headers["host"] == f"127.0.0.1:{receiver.port}"
        assert first.headers["content-type"] == "application/json"
        assert {"type", "timestamp", "stream", "cursor", "data"} == set(first.json)
        assert (first.json["type"], first.json["stream"]) == ("stream.change", "x")

    run(main())


def by_key(receiver: Receiver) -> dict[str, list[int]]:
    numbers = defaultdict(list)
    for event in receiver.events():
        numbers[event["text"]].append(event["n"])
    return numbers


@pytest.mark.parametrize("seed", random.sample(range(10**6), 3))
def test_a_receiver_that_fails_at_random_ends_with_each_keys_sequence(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def bad(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        fault = chance.choice(["none"] * 6 + ["500", "302", "429", "cut", "half", "rubbish"])
        if fault == "cut":
            return None
        if fault == "half":
            return b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nonly this"
        await asyncio.sleep(chance.random() * 0.01)
        if fault == "rubbish":
            return b"what?\r\n\r\n"
        return status(int(fault), "location: /") if fault.isdigit() else OK

    async def main() -> None:
        keys = [f"key {number}" for number in range(7)]
        wanted: dict[str, list[int]] = {key: [] for key in keys}
        async with receiving(bad) as receiver, rigged(tmp_path) as rig:
            id = await rig.add(receiver)
            for number in range(150):
                key = chance.choice(keys)
                wanted[key].append(number)
                rig.write(number, key=key)
                if chance.random() < 0.2:
                    await asyncio.sleep(0.003)  # some are sent while others are written, at random
                if chance.random() < 0.03:
                    await rig.registry.pause(ANYONE, id)
                    await rig.registry.resume(ANYONE, id)
            await until(lambda: sum(map(len, by_key(receiver).values())) >= 150)
            await settled(rig, id)
            assert rig.get(id)["failures"] > 0
            assert rig.get(id)["delivered"] == 150
        assert by_key(receiver) == wanted
        assert len({received.id for received in receiver.requests}) == 150
        bodies = {received.id: received.body for received in receiver.requests}
        assert all(bodies[received.id] == received.body for received in receiver.requests)

    run(main())


def test_a_half_answer_is_none_though_it_began_with_200(tmp_path: Path) -> None:
    async def half(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        if len(receiver.requests) > 1:
            return OK
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nonly this")
        return None

    async def main() -> None:
        async with receiving(half) as receiver, rigged(tmp_path) as rig:
            await rig.add(receiver)
            rig.write(1)
            await until(lambda: len(receiver.taken) == 1)
        assert receiver.requests[0].id == receiver.requests[1].id

    run(main())


def test_keys_go_side_by_side_and_one_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    async def picky(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        return status(500) if received.data["events"][0]["text"] == "bad" else OK

    async def main() -> None:
        async with receiving(picky) as receiver, rigged(tmp_path) as rig:
            id = await rig.add(receiver)
            rig.write(1, 2, key="bad")
            for number in range(10, 40):
                rig.write(number, key=f"good {number % 3}")
            await until(lambda: len(receiver.taken) == 30)
            assert rig.get(id)["retrying"] == 1
        assert {event["text"] for event in receiver.events()} == {"good 0", "good 1", "good 2"}
        assert {received.data["events"][0]["n"] for received in receiver.requests} >= {1}
        assert 2 not in {received.data["events"][0]["n"] for received in receiver.requests}

    run(main())


def test_messages_of_several_keys_are_away_at_once_within_the_bounds(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def slow(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        await gate.wait()
        return OK

    async def main() -> None:
        settings = replaced(webhook_host_requests_max=4)
        async with receiving(slow) as receiver, rigged(tmp_path, settings) as rig:
            one, other = await rig.add(receiver), await rig.add(receiver)
            for number in range(20):
                rig.write(number, key=f"key {number}")
            await until(lambda: receiver.open == 4)
            await until(lambda: rig.get(one)["pending"] == rig.get(other)["pending"] == 20)
            gate.set()
            await until(lambda: len(receiver.taken) == 40)
            assert receiver.most_open == 4

    run(main())


def test_a_message_that_is_never_taken_becomes_a_dead_letter_and_its_key_goes_on(tmp_path: Path) -> None:
    healthy = False

    async def picky(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        return status(500) if received.data["events"][0]["n"] == 1 and not healthy else OK

    async def main() -> None:
        nonlocal healthy
        async with receiving(picky) as receiver, rigged(tmp_path, replaced(webhook_tries_max=3)) as rig:
            id = await rig.add(receiver)
            rig.write(1, 2)
            await until(lambda: len(receiver.taken) == 1)
            assert [event["n"] for event in receiver.events()] == [2]
            assert rig.get(id)["dead"] == 1
            [dead] = await rig.registry.dead(ANYONE, id, 0, 10)
            tried = [received.id for received in receiver.requests if received.data["events"][0]["n"] == 1]
            assert tried == [dead["id"]] * 3
            assert (dead["tries"], dead["error"]) == (3, "the receiver returned 500")
            healthy = True
            assert await rig.registry.revive(ANYONE, id, None) == 1
            await until(lambda: len(receiver.taken) == 2)
            await settled(rig, id)
            assert dead["id"] in receiver.taken
            assert (rig.get(id)["dead"], rig.get(id)["delivered"]) == (0, 2)

    run(main())


def test_only_so_many_dead_letters_are_kept_and_those_that_went_are_counted(tmp_path: Path) -> None:
    async def never(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        return status(400)

    async def main() -> None:
        settings = replaced(webhook_tries_max=1, webhook_dead_max=3)
        async with receiving(never) as receiver, rigged(tmp_path, settings) as rig:
            id = await rig.add(receiver)
            rig.write(*range(8))
            await until(lambda: rig.get(id)["forgotten"] == 5)
            dead = await rig.registry.dead(ANYONE, id, 0, 10)
            assert [letter["number"] for letter in dead] == [6, 7, 8]
            assert [letter["number"] for letter in await rig.registry.dead(ANYONE, id, 6, 1)] == [7]
            assert rig.get(id)["dead"] == 3

    run(main())


def test_410_disables_and_after_resume_the_same_message_comes_once_the_challenge_is_answered(tmp_path: Path) -> None:
    gone = True

    async def leaving(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        return status(410) if gone else OK

    async def main() -> None:
        nonlocal gone
        async with receiving(leaving) as receiver, rigged(tmp_path) as rig:
            id = await rig.add(receiver)
            rig.write(1)
            await until(lambda: rig.get(id)["state"] == "disabled")
            assert "410" in rig.get(id)["reason"]
            rig.write(2)
            gone = False
            challenges = len(receiver.challenges)
            await rig.registry.resume(ANYONE, id)
            await until(lambda: len(receiver.taken) == 2)
            assert len(receiver.challenges) > challenges
        assert [event["n"] for event in receiver.events()] == [1, 2]
        assert receiver.requests[0].id == receiver.requests[1].id

    run(main())


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving() as target:

            async def redirect(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
                return status(302, f"location: {target.url}")

            async with receiving(redirect) as receiver, rigged(tmp_path, replaced(webhook_tries_max=2)) as rig:
                id = await rig.add(receiver)
                rig.write(1)
                await until(lambda: rig.get(id)["dead"] == 1)
                assert "302" in rig.get(id)["last_error"]
        assert target.connections == 0

    run(main())


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_receiver_that_answers_too_slowly_is_given_up_for_this_try(tmp_path: Path, where: str) -> None:
    async def slow(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        if len(receiver.requests) > 1:
            return OK
        if where == "body":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)  # the fault: bytes without end
        await asyncio.sleep(5)  # the fault: far beyond the time for an answer
        return None

    async def main() -> None:
        async with receiving(slow) as receiver, rigged(tmp_path, replaced(webhook_timeout_s=0.2)) as rig:
            id = await rig.add(receiver)
            rig.write(1)
            await until(lambda: len(receiver.taken) == 1)
            assert "0.2 seconds" in rig.get(id)["last_error"]

    run(main())


def test_of_a_long_answer_the_beginning_is_enough(tmp_path: Path) -> None:
    async def endless(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        sent = 0
        while True:
            writer.write(b"x" * 65536)
            sent += 65536
            assert sent < 100_000_000
            await writer.drain()

    async def main() -> None:
        async with receiving(endless) as receiver, rigged(tmp_path) as rig:
            id = await rig.add(receiver)
            rig.write(1)
            await until(lambda: rig.get(id)["delivered"] == 1)
            assert len(receiver.requests) == 1

    run(main())


def test_what_a_receiver_asks_for_in_retry_after_is_waited_for_within_bounds(tmp_path: Path) -> None:
    times: list[float] = []

    async def later(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        times.append(asyncio.get_running_loop().time())
        asked = {1: "1", 2: "100000"}.get(len(times))
        return status(503, f"retry-after: {asked}") if asked else OK

    async def main() -> None:
        async with receiving(later) as receiver, rigged(tmp_path, replaced(webhook_backoff_s_max=1.5)) as rig:
            await rig.add(receiver)
            rig.write(1)
            await until(lambda: len(receiver.taken) == 1)
        assert times[1] - times[0] >= 1.0
        assert times[2] - times[1] >= 1.5

    run(main())


def test_while_a_receiver_is_down_it_is_tried_one_message_at_a_time(tmp_path: Path) -> None:
    down = True

    async def failing(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        await asyncio.sleep(0.005)
        return status(503) if down else OK

    async def main() -> None:
        nonlocal down
        async with receiving(failing) as receiver, rigged(tmp_path) as rig:
            id = await rig.add(receiver)
            for number in range(30):
                rig.write(number, key=f"key {number}")
            await until(lambda: rig.get(id)["failures"] >= 20)
            receiver.most_open = 0
            await until(lambda: rig.get(id)["failures"] >= 25)
            assert receiver.most_open == 1
            down = False
            await until(lambda: len(receiver.taken) == 30)

    run(main())


def test_a_stream_is_not_read_on_while_too_much_waits(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def slow(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        await gate.wait()
        return OK

    async def main() -> None:
        settings = replaced(webhook_pending_max=10, page_events=5)
        async with receiving(slow) as receiver, receiving() as witness, rigged(tmp_path, settings) as rig:
            id = await rig.add(receiver, since="earliest")
            rig.write(*range(100))
            await until(lambda: rig.get(id)["pending"] >= 10)
            cursor = rig.get(id)["cursor"]
            await rig.add(witness, since="earliest")
            await until(lambda: len(witness.taken) == 100)  # in this time the other could have read all
            assert 10 <= rig.get(id)["pending"] < 10 + 5
            assert rig.get(id)["cursor"] == cursor
            gate.set()
            await until(lambda: len(receiver.taken) == 100)
            await until(lambda: rig.get(id)["cursor"] != cursor)
        assert [event["n"] for event in receiver.events()] == list(range(100))

    run(main())


def test_a_batch_carries_several_events_in_the_order_of_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving() as receiver, rigged(tmp_path) as rig:
            await rig.add(receiver, batch=10)
            for number in range(100):
                rig.write(number, key=f"key {number % 7}")
            await until(lambda: len(receiver.events()) == 100)
            assert receiver.most_open == 1
        assert max(len(received.data["events"]) for received in receiver.requests) > 1
        assert max(len(received.data["events"]) for received in receiver.requests) <= 10
        assert {key: sorted(numbers) for key, numbers in by_key(receiver).items()} == by_key(receiver)

    run(main())


def test_a_webhook_whose_receiver_hangs_keeps_no_other_waiting(tmp_path: Path) -> None:
    hanging = asyncio.Event()

    async def hang(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        await hanging.wait()
        return OK

    async def main() -> None:
        settings = replaced(webhook_requests_max=1, webhook_host_requests_max=100, webhook_timeout_s=60.0)
        async with receiving(hang) as stuck, receiving() as receiver, rigged(tmp_path, settings) as rig:
            ids = [await rig.add(stuck) for _ in range(3)]
            id = await rig.add(receiver)
            for number in range(50):
                rig.write(number, key=f"key {number}")
            await until(lambda: len(receiver.taken) == 50)
            await settled(rig, id)
            assert all(rig.get(webhook_id)["pending"] == 50 for webhook_id in ids)
            assert stuck.open <= 4
            hanging.set()
            await until(lambda: len(stuck.taken) == 150)

    run(main())


def test_what_comes_due_between_two_looks_at_the_clock_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock has advanced far each time it is read: whatever was not due a moment ago is due now."""
    looks = 0

    def leaping() -> float:
        nonlocal looks
        looks += 1
        return time.monotonic() + looks * 0.05

    monkeypatch.setattr(delivery_worker, "time", SimpleNamespace(monotonic=leaping, time=time.time))

    async def twice(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        seen = sum(request.id == received.id for request in receiver.requests)
        return OK if seen > 2 else status(500)

    async def main() -> None:
        settings = replaced(webhook_backoff_s=0.1, webhook_backoff_s_max=0.1)  # more than one look, less than two
        async with receiving(twice) as receiver, rigged(tmp_path, settings) as rig:
            await rig.add(receiver)
            rig.write(*range(10))
            await until(lambda: len(receiver.taken) == 10)

    run(main())
