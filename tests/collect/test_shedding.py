"""Load shedding: which events go, what those weigh that stay, what is told and counted, and when it begins and ends."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.app import App
from penstock.collect.audit import Tally
from penstock.collect.door import FrontDoor
from penstock.collect.http import PostEndpoint
from penstock.collect.intake import Hold, Request
from penstock.collect.shedding import SheddingIntake, Sieve
from penstock.errors import DiskFull, Overloaded
from penstock.schema import Event, wire_class
from penstock.settings import Settings
from penstock.shed import Shed
from tests.collect.fakes import ManualClock, MemoryLog
from tests.collect.support import answered, body, in_loop, until

SEED = 20
KEEP = 0.1


class Click(Event, id="click"):
    click: str
    user: str = "u"
    severity: int | None = None
    weight: float = 1.0


class Ping(Event):
    number: int
    weight: float = 1.0


SHED = {
    "clicks": Shed(keep=KEEP, weight="weight"),
    "alarms": Shed(keep=KEEP, unless="severity >= 3", weight="weight"),
    "urgent": Shed(unless="severity >= 3"),
    "pings": Shed(keep=KEEP, weight="weight"),
    "all": None,
}


class Rig:
    """A door with a stream of each sort, over a log in memory."""

    def __init__(self, log: MemoryLog, settings: Settings) -> None:
        app = App("test")
        for name, shed in SHED.items():
            app.stream(name, Ping if name == "pings" else Click, shed=shed)
        self.log = log
        self.clock = ManualClock()
        self.door = FrontDoor(app.streams, log, settings, self.clock, lambda error: None, lambda name: None)
        self.endpoint = PostEndpoint(self.door, settings)

    def strain(self, *names: str, reason: str | None = "is 11 events ahead of till") -> None:
        for name in names:
            self.door.shed(name, reason)

    def intake(self, name: str) -> SheddingIntake:
        found = self.door.entrance(name).intake
        assert isinstance(found, SheddingIntake)
        return found

    def tally(self, name: str, source: str = "POST") -> Tally:
        return self.door.audits()[name].of(source)


@asynccontextmanager
async def opened(settings: Settings | None = None) -> AsyncIterator[Rig]:
    rig = Rig(MemoryLog(), settings or Settings())
    try:
        yield rig
    finally:
        rig.log.gate.set()
        await rig.door.close()


def clicks(numbers: range, **more: Any) -> bytes:
    return body([{"click": f"c{number}", **more} for number in numbers])


def pings(numbers: range) -> bytes:
    return body([{"number": number} for number in numbers])


def spread(count: int) -> float:
    """Five times the standard deviation of how many of so many are kept: by chance further off once in two million."""
    return 5 * math.sqrt(count * KEEP * (1 - KEEP))


def sifted(shed: Shed, cls: type[Event], events: list[dict[str, Any]], key: str | None = None) -> Request:
    wire: Any = wire_class(cls)
    request = Request([wire(**each) for each in events], 1000, key=key)
    Sieve(shed, cls, random.Random(SEED)).sift(request)
    return request


def test_what_is_left_of_a_request_is_known_by_the_places_that_it_had_as_it_came() -> None:
    """Also if some of it were rejected before: the first of three, here."""
    wire: Any = wire_class(Click)
    request = Request([wire(click="a", severity=1), wire(click="b", severity=3)], 1_000, key="k", places=[1, 2])
    Sieve(Shed(unless="severity >= 3"), Click, random.Random(SEED)).sift(request)
    assert (request.places, request.shed, request.sifted) == ([2], 1, True)


@pytest.mark.parametrize("cls", [Click, Ping])
def test_about_the_fraction_is_kept_and_the_weights_estimate_how_many_came(cls: type[Event]) -> None:
    count = 20_000
    events = [{"click": f"job-{number}"} if cls is Click else {"number": number} for number in range(count)]
    request = sifted(SHED["clicks"] or Shed(), cls, events)
    assert abs(len(request.events) - KEEP * count) < spread(count)
    assert request.shed + len(request.events) == count
    assert abs(sum(each.weight for each in request.events) - count) < spread(count) / KEEP
    assert {each.weight for each in request.events} == {1 / KEEP}
    assert request.size == 1000 * len(request.events) // count


def test_the_estimate_is_right_on_average_for_every_group() -> None:
    """Over many draws the mean of the estimates comes near the truth, also of a group that is a small part."""
    draw, wire, rounds, counts = random.Random(SEED), wire_class(Ping), 400, {0: 30, 1: 3}
    sieve = Sieve(Shed(keep=KEEP, weight="weight"), Ping, draw)
    sums = dict.fromkeys(counts, 0.0)
    for _ in range(rounds):
        request = Request([wire(number=group) for group, count in counts.items() for _ in range(count)], 0)
        sieve.sift(request)
        for event in request.events:
            sums[event.number] += event.weight
    for group, count in counts.items():
        assert abs(sums[group] - rounds * count) < spread(rounds * count) / KEEP


def test_an_event_with_an_id_fares_the_same_whenever_and_wherever_it_comes() -> None:
    events = [{"click": f"c{number}"} for number in range(1000)]
    shed = Shed(keep=KEEP)
    first = {each.click for each in sifted(shed, Click, events).events}
    again = {each.click for part in range(10) for each in sifted(shed, Click, events[part::10]).events}
    assert first == again
    more = {each.click for each in sifted(Shed(keep=0.5), Click, events).events}
    assert first < more, "a larger fraction keeps what a smaller one keeps"
    known = [name for name in (f"c{number}" for number in range(21)) if name in first]
    assert known == ["c2", "c4", "c12", "c18", "c20"], "the hash must not change: it is promised over restarts"


def test_events_without_an_id_fare_by_the_key_of_their_request() -> None:
    events = [{"number": number} for number in range(1000)]
    found = [[each.number for each in sifted(Shed(keep=KEEP), Ping, events, key).events] for key in ("a", "a", "b")]
    assert found[0] == found[1] != found[2]


def test_what_is_important_is_never_shed_and_weighs_one() -> None:
    events = [{"click": f"c{number}", "severity": (None, 0, 3, 4)[number % 4]} for number in range(2000)]
    shed = Shed(keep=KEEP, unless="severity >= 3", weight="weight")
    kept = sifted(shed, Click, events).events
    important = [each for each in kept if each.severity is not None and each.severity >= 3]
    assert len(important) == 1000
    assert {each.weight for each in important} == {1.0}
    others = [each for each in kept if each not in important]
    assert {each.weight for each in others} == {1 / KEEP}
    assert {each.severity for each in others} == {None, 0}
    assert abs(len(others) - 1000 * KEEP) < spread(1000)
    alone = sifted(Shed(unless="severity >= 3"), Click, events)
    assert [each.click for each in alone.events] == [each.click for each in important]


def test_a_weight_that_the_sender_gave_counts_on() -> None:
    events = [{"click": f"c{number}", "weight": 2.0} for number in range(200)]
    assert {each.weight for each in sifted(SHED["clicks"] or Shed(), Click, events).events} == {2.0 / KEEP}


@in_loop
async def test_nothing_is_shed_while_nothing_is_too_much() -> None:
    async with opened() as rig:
        for name in ("clicks", "all"):
            answer = await answered(rig.endpoint, name, clicks(range(100)))
            assert answer.json["accepted"] == 100
            assert "shed" not in answer.json
        assert {row["weight"] for row in rig.log.events("clicks")} == {1.0}
        assert rig.door.shedding() == {}
        assert rig.door.may_shed == ["clicks", "alarms", "urgent", "pings"]


@in_loop
async def test_the_answer_and_the_audit_tell_what_was_shed() -> None:
    async with opened() as rig:
        rig.strain("clicks")
        sent = clicks(range(1000))
        answer = (await answered(rig.endpoint, "clicks", sent)).json
        kept = len(rig.log.events("clicks"))
        assert (answer["accepted"], answer["shed"]) == (kept, 1000 - kept)
        assert abs(kept - 100) < spread(1000)
        assert answer["ack"] is not None
        assert {row["weight"] for row in rig.log.events("clicks")} == {1 / KEEP}
        tally = rig.tally("clicks")
        assert (tally.received, tally.accepted, tally.shed, tally.bytes) == (1000, kept, 1000 - kept, len(sent))
        assert rig.tally("clicks").told()["shed"] == 1000 - kept
        again = (await answered(rig.endpoint, "clicks", sent)).json
        assert (again["accepted"], again["duplicates"], again["shed"]) == (0, kept, 1000 - kept)
        one_way = await answered(rig.endpoint, "clicks", clicks(range(1000, 2000)), query=b"ack=none")
        assert one_way.status == 202
        assert one_way.json["accepted"] + one_way.json["shed"] == 1000
        await rig.door.drain()
        assert rig.tally("clicks", "POST ack=none").shed == one_way.json["shed"]


@in_loop
async def test_a_request_of_which_nothing_is_left_does_not_wait_for_the_disk() -> None:
    async with opened() as rig:
        rig.strain("urgent")
        rig.log.gate.clear()
        answer = (await answered(rig.endpoint, "urgent", clicks(range(10)))).json
        assert answer == {
            "accepted": 0, "duplicates": 0, "rejected": 0, "cursor": None, "errors": [], "ack": None, "shed": 10,
        }  # fmt: skip
        assert rig.intake("urgent").pending_events == 0
        rig.log.gate.set()
        assert (await answered(rig.endpoint, "urgent", clicks(range(10), severity=3))).json["accepted"] == 10
        assert rig.tally("urgent").shed == 10


@in_loop
async def test_rejected_events_are_dead_letters_and_the_others_may_be_shed() -> None:
    async with opened() as rig:
        rig.strain("urgent")
        sent = body({"click": "a"}, {"click": 7}, {"click": "b", "severity": 9})
        answer = (await answered(rig.endpoint, "urgent", sent)).json
        assert [answer[each] for each in ("accepted", "rejected", "shed")] == [1, 1, 1]
        assert len(rig.log.events("urgent.rejected")) == 1
        tally = rig.tally("urgent")
        assert tally.received == tally.accepted + tally.rejected + tally.shed == 3


@in_loop
async def test_an_idempotency_key_names_the_events_as_they_were_sent() -> None:
    """Sent again after the shedding, what was kept the first time is known, and only that."""
    async with opened() as rig:
        rig.strain("pings")
        first = (await answered(rig.endpoint, "pings", pings(range(100)), idempotency_key="k")).json
        assert first["accepted"] > 0
        rig.strain("pings", reason=None)
        again = (await answered(rig.endpoint, "pings", pings(range(100)), idempotency_key="k")).json
        assert (again["accepted"], again["duplicates"]) == (first["shed"], first["accepted"])
        assert sorted(row["number"] for row in rig.log.events("pings")) == list(range(100))


@in_loop
async def test_a_source_goes_on_past_what_was_shed() -> None:
    async with opened() as rig:
        rig.strain("clicks", "urgent")
        for name in ("clicks", "urgent"):
            intake = rig.door.intake_for_source("feed", name)
            for number in range(200):
                durable = await intake.put(body({"click": f"c{number}"}), str(number))
            await intake.settle()
            assert durable.done()
            assert intake.mark == "199"
            tally = rig.tally(name, "feed")
            assert tally.received == tally.accepted + tally.shed == 200
        assert rig.log.events("urgent") == []


@in_loop
async def test_a_source_that_must_try_again_sheds_once_and_weighs_once() -> None:
    async with opened() as rig:
        rig.strain("clicks")
        rig.log.faults.append(DiskFull("the disk is full", retry_after_s=0))
        intake = rig.door.intake_for_source("feed", "clicks")
        for number in range(200):
            await intake.put(body({"click": f"c{number}"}), str(number))
        await intake.settle()
        rows = rig.log.events("clicks")
        assert {row["weight"] for row in rows} == {1 / KEEP}
        tally = rig.tally("clicks", "feed")
        assert (tally.accepted, tally.shed, tally.failed) == (len(rows), 200 - len(rows), 200)
        assert tally.received == 400, "what failed is counted anew when it is offered again"


@in_loop
async def test_the_queue_makes_it_shed_over_a_half_and_stop_at_a_quarter() -> None:
    async with opened(Settings(pending_events_max=100, group_events_max=30)) as rig:
        intake = rig.intake("clicks")
        rig.log.gate.clear()
        waits = [asyncio.create_task(rig.door.post("clicks", clicks(range(at, at + 25)))) for at in (0, 25)]
        await until(lambda: intake.pending_events == 50)
        assert intake.shedding is None
        waits.append(asyncio.create_task(rig.door.post("clicks", clicks(range(50, 51)))))
        await until(lambda: intake.pending_events == 51)
        began = intake.shedding
        assert began is not None
        assert began.reason == "has 51 events waiting for the disk"
        assert (began.since, began.lags) == (rig.clock.now(), False)
        rig.clock.move(60)
        waits.append(asyncio.create_task(rig.door.post("clicks", clicks(range(100, 300)))))
        await until(lambda: intake.pending_events > 51)
        assert intake.shedding is not None
        assert intake.shedding.since == began.since
        rig.log.gate.set()
        receipts = await asyncio.gather(*waits)
        assert [bool(each.shed) for each in receipts] == [False, False, False, True]
        assert intake.shedding is None
        assert (await rig.door.post("clicks", clicks(range(300, 310)))).accepted == 10


@in_loop
async def test_shedding_that_has_begun_goes_on_between_a_quarter_and_a_half() -> None:
    async with opened(Settings(pending_events_max=100)) as rig:
        intake = rig.intake("clicks")
        seen = []
        for pending in (50, 51, 50, 26, 25, 26, 50, 51):
            intake._pending_events = pending
            seen.append(intake.shedding is not None)
        intake._pending_events = 0
        assert seen == [False, True, True, True, False, False, False, True]


@in_loop
async def test_a_large_request_finds_room_for_what_is_kept_of_it() -> None:
    async with opened(Settings(pending_events_max=100)) as rig:
        rig.log.gate.clear()
        first = asyncio.create_task(rig.door.post("clicks", clicks(range(60))))
        await until(lambda: rig.intake("clicks").pending_events == 60)
        second = asyncio.create_task(rig.door.post("clicks", clicks(range(100, 300))))
        await until(lambda: rig.intake("clicks").pending_events > 60)
        with pytest.raises(Overloaded):
            await rig.door.post("clicks", clicks(range(1000, 2000)))
        assert rig.tally("clicks").refused == 1000
        rig.log.gate.set()
        await asyncio.gather(first, second)


@in_loop
async def test_a_full_queue_refuses_before_it_draws() -> None:
    """Otherwise those that drew well would be drawn again, and the weights would not add up."""
    async with opened(Settings(pending_events_max=10)) as rig:
        rig.log.gate.clear()
        first = asyncio.create_task(rig.door.post("pings", pings(range(10))))
        await until(lambda: rig.intake("pings").pending_events == 10)
        for number in range(100):
            with pytest.raises(Overloaded):
                await rig.door.post("pings", pings(range(number, number + 1)))
        assert (rig.tally("pings").refused, rig.tally("pings").shed) == (100, 0)
        rig.log.gate.set()
        await first


@in_loop
async def test_a_stream_that_is_held_sheds_nothing_and_refuses_all() -> None:
    async with opened() as rig:
        rig.strain("pings", "urgent")
        for name, sent in (("pings", pings(range(50))), ("urgent", clicks(range(50)))):
            rig.door.hold(name, Hold("is too far ahead", 3))
            answer = await answered(rig.endpoint, name, sent)
            assert answer.status == 429
            assert (rig.tally(name).refused, rig.tally(name).shed) == (50, 0)
            assert set(rig.door.held()) & set(rig.door.shedding())


@in_loop
async def test_ticks_are_never_shed() -> None:
    async with opened() as rig:
        rig.strain("urgent")
        await rig.door.tick("urgent")
        assert len(rig.log.admits) == 1
        assert rig.tally("urgent").shed == 0
