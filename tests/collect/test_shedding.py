"""Load shedding: which events are shed, the weights of the kept ones, reports and counts, and when it begins and
ends."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.shed import Shed
from penstock.collect.audit import IngressTally
from penstock.collect.group_commit import Hold, IngressRequest
from penstock.collect.http import PostEndpoint
from penstock.collect.ingress import Ingress
from penstock.collect.shedding import SheddingGroupCommit, Sieve
from penstock.core.errors import DiskFull, Overloaded
from penstock.core.schema import Event, wire_class
from penstock.core.settings import Settings
from tests.clocks import ManualClock, until
from tests.collect.support import answered, body, in_loop
from tests.memory_log import MemoryLog

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
    """An ingress with a stream of each kind, over a log in memory."""

    def __init__(self, log: MemoryLog, settings: Settings) -> None:
        app = App("test")
        for name, shed in SHED.items():
            app.stream(name, Ping if name == "pings" else Click, shed=shed)
        self.log = log
        self.clock = ManualClock()
        self.ingress = Ingress(app.streams, log, settings, self.clock, lambda error: None, lambda name: None)
        self.endpoint = PostEndpoint(self.ingress, settings)

    def strain(self, *names: str, reason: str | None = "is 11 events ahead of till") -> None:
        for name in names:
            self.ingress.shed(name, reason)

    def group_commit(self, name: str) -> SheddingGroupCommit:
        group_commit = self.ingress.stream_ingress(name).group_commit
        assert isinstance(group_commit, SheddingGroupCommit)
        return group_commit

    def tally(self, name: str, source: str = "POST") -> IngressTally:
        return self.ingress.audits()[name].of(source)


@asynccontextmanager
async def opened(settings: Settings | None = None) -> AsyncIterator[Rig]:
    rig = Rig(MemoryLog(), settings or Settings())
    try:
        yield rig
    finally:
        rig.log.gate.set()
        await rig.ingress.close()


def clicks(numbers: range, **more: Any) -> bytes:
    return body([{"click": f"c{number}", **more} for number in numbers])


def pings(numbers: range) -> bytes:
    return body([{"number": number} for number in numbers])


def spread(count: int) -> float:
    """Return five standard deviations of the number of kept events: exceeded by chance once in two million runs."""
    return 5 * math.sqrt(count * KEEP * (1 - KEEP))


def sifted(shed: Shed, cls: type[Event], events: list[dict[str, Any]], key: str | None = None) -> IngressRequest:
    wire: Any = wire_class(cls)
    request = IngressRequest([wire(**event) for event in events], 1000, key=key)
    Sieve(shed, cls, random.Random(SEED)).sift(request)
    return request


def test_what_is_left_of_a_request_is_known_by_the_places_that_it_had_as_it_came() -> None:
    """This holds if some of it were rejected before: the first of three, here."""
    wire: Any = wire_class(Click)
    request = IngressRequest([wire(click="a", severity=1), wire(click="b", severity=3)], 1_000, key="k", indexes=[1, 2])
    Sieve(Shed(unless="severity >= 3"), Click, random.Random(SEED)).sift(request)
    assert (request.indexes, request.shed, request.sifted) == ([2], 1, True)


@pytest.mark.parametrize("cls", [Click, Ping])
def test_about_the_fraction_is_kept_and_the_weights_estimate_how_many_came(cls: type[Event]) -> None:
    count = 20_000
    events = [{"click": f"job-{number}"} if cls is Click else {"number": number} for number in range(count)]
    request = sifted(SHED["clicks"] or Shed(), cls, events)
    assert abs(len(request.events) - KEEP * count) < spread(count)
    assert request.shed + len(request.events) == count
    assert abs(sum(event.weight for event in request.events) - count) < spread(count) / KEEP
    assert {event.weight for event in request.events} == {1 / KEEP}
    assert request.size == 1000 * len(request.events) // count


def test_the_estimate_is_right_on_average_for_every_group() -> None:
    """Over many draws the mean of the estimates comes close to the truth, even for a small group."""
    draw, wire, rounds, counts = random.Random(SEED), wire_class(Ping), 400, {0: 30, 1: 3}
    sieve = Sieve(Shed(keep=KEEP, weight="weight"), Ping, draw)
    sums = dict.fromkeys(counts, 0.0)
    for _ in range(rounds):
        request = IngressRequest([wire(number=group) for group, count in counts.items() for _ in range(count)], 0)
        sieve.sift(request)
        for event in request.events:
            sums[event.number] += event.weight
    for group, count in counts.items():
        assert abs(sums[group] - rounds * count) < spread(rounds * count) / KEEP


def test_an_event_with_an_id_fares_the_same_whenever_and_wherever_it_comes() -> None:
    events = [{"click": f"c{number}"} for number in range(1000)]
    shed = Shed(keep=KEEP)
    first = {event.click for event in sifted(shed, Click, events).events}
    again = {event.click for part in range(10) for event in sifted(shed, Click, events[part::10]).events}
    assert first == again
    more = {event.click for event in sifted(Shed(keep=0.5), Click, events).events}
    assert first < more, "a larger fraction keeps what a smaller one keeps"
    known = [name for name in (f"c{number}" for number in range(21)) if name in first]
    assert known == ["c2", "c4", "c12", "c18", "c20"], "the hash must not change: it is promised over restarts"


def test_events_without_an_id_fare_by_the_key_of_their_request() -> None:
    events = [{"number": number} for number in range(1000)]
    kept_numbers = [
        [event.number for event in sifted(Shed(keep=KEEP), Ping, events, key).events] for key in ("a", "a", "b")
    ]
    assert kept_numbers[0] == kept_numbers[1] != kept_numbers[2]


def test_what_is_important_is_never_shed_and_weighs_one() -> None:
    events = [{"click": f"c{number}", "severity": (None, 0, 3, 4)[number % 4]} for number in range(2000)]
    shed = Shed(keep=KEEP, unless="severity >= 3", weight="weight")
    kept = sifted(shed, Click, events).events
    important = [event for event in kept if event.severity is not None and event.severity >= 3]
    assert len(important) == 1000
    assert {event.weight for event in important} == {1.0}
    others = [event for event in kept if event not in important]
    assert {event.weight for event in others} == {1 / KEEP}
    assert {event.severity for event in others} == {None, 0}
    assert abs(len(others) - 1000 * KEEP) < spread(1000)
    alone = sifted(Shed(unless="severity >= 3"), Click, events)
    assert [event.click for event in alone.events] == [event.click for event in important]


def test_a_weight_that_the_sender_gave_counts_on() -> None:
    events = [{"click": f"c{number}", "weight": 2.0} for number in range(200)]
    assert {event.weight for event in sifted(SHED["clicks"] or Shed(), Click, events).events} == {2.0 / KEEP}


@in_loop
async def test_nothing_is_shed_while_nothing_is_too_much() -> None:
    async with opened() as rig:
        for name in ("clicks", "all"):
            answer = await answered(rig.endpoint, name, clicks(range(100)))
            assert answer.json["accepted"] == 100
            assert "shed" not in answer.json
        assert {row["weight"] for row in rig.log.events("clicks")} == {1.0}
        assert rig.ingress.shedding() == {}
        assert rig.ingress.may_shed == ["clicks", "alarms", "urgent", "pings"]


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
        assert rig.tally("clicks").figures()["shed"] == 1000 - kept
        again = (await answered(rig.endpoint, "clicks", sent)).json
        assert (again["accepted"], again["duplicates"], again["shed"]) == (0, kept, 1000 - kept)
        one_way = await answered(rig.endpoint, "clicks", clicks(range(1000, 2000)), query=b"ack=none")
        assert one_way.status == 202
        assert one_way.json["accepted"] + one_way.json["shed"] == 1000
        await rig.ingress.drain()
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
        assert rig.group_commit("urgent").pending_events == 0
        rig.log.gate.set()
        assert (await answered(rig.endpoint, "urgent", clicks(range(10), severity=3))).json["accepted"] == 10
        assert rig.tally("urgent").shed == 10


@in_loop
async def test_rejected_events_are_dead_letters_and_the_others_may_be_shed() -> None:
    async with opened() as rig:
        rig.strain("urgent")
        sent = body({"click": "a"}, {"click": 7}, {"click": "b", "severity": 9})
        answer = (await answered(rig.endpoint, "urgent", sent)).json
        assert [answer[field] for field in ("accepted", "rejected", "shed")] == [1, 1, 1]
        assert len(rig.log.events("urgent.rejected")) == 1
        tally = rig.tally("urgent")
        assert tally.received == tally.accepted + tally.rejected + tally.shed == 3


@in_loop
async def test_an_idempotency_key_names_the_events_as_they_were_sent() -> None:
    """After the shedding, a retried request has the events that were kept the first time as duplicates, and only
    those."""
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
            group_commit = rig.ingress.writer_for_source("feed", name)
            for number in range(200):
                durable = await group_commit.put(body({"click": f"c{number}"}), str(number))
            await group_commit.settle()
            assert durable.done()
            assert group_commit.mark == "199"
            tally = rig.tally(name, "feed")
            assert tally.received == tally.accepted + tally.shed == 200
        assert rig.log.events("urgent") == []


@in_loop
async def test_a_source_that_must_try_again_sheds_once_and_weighs_once() -> None:
    async with opened() as rig:
        rig.strain("clicks")
        rig.log.faults.append(DiskFull("the disk is full", retry_after_s=0))
        group_commit = rig.ingress.writer_for_source("feed", "clicks")
        for number in range(200):
            await group_commit.put(body({"click": f"c{number}"}), str(number))
        await group_commit.settle()
        rows = rig.log.events("clicks")
        assert {row["weight"] for row in rows} == {1 / KEEP}
        tally = rig.tally("clicks", "feed")
        assert (tally.accepted, tally.shed, tally.failed) == (len(rows), 200 - len(rows), 200)
        assert tally.received == 400, "what failed is counted anew when it is offered again"


@in_loop
async def test_the_queue_makes_it_shed_over_a_half_and_stop_at_a_quarter() -> None:
    async with opened(Settings(pending_events_max=100, group_events_max=30)) as rig:
        group_commit = rig.group_commit("clicks")
        rig.log.gate.clear()
        waits = [asyncio.create_task(rig.ingress.post("clicks", clicks(range(at, at + 25)))) for at in (0, 25)]
        await until(lambda: group_commit.pending_events == 50)
        assert group_commit.shedding is None
        waits.append(asyncio.create_task(rig.ingress.post("clicks", clicks(range(50, 51)))))
        await until(lambda: group_commit.pending_events == 51)
        began = group_commit.shedding
        assert began is not None
        assert began.reason == "has 51 events waiting to be written to disk"
        assert (began.since, began.lags) == (rig.clock.now(), False)
        rig.clock.move(60)
        waits.append(asyncio.create_task(rig.ingress.post("clicks", clicks(range(100, 300)))))
        await until(lambda: group_commit.pending_events > 51)
        assert group_commit.shedding is not None
        assert group_commit.shedding.since == began.since
        rig.log.gate.set()
        receipts = await asyncio.gather(*waits)
        assert [bool(receipt.shed) for receipt in receipts] == [False, False, False, True]
        assert group_commit.shedding is None
        assert (await rig.ingress.post("clicks", clicks(range(300, 310)))).accepted == 10


@in_loop
async def test_shedding_that_has_begun_goes_on_between_a_quarter_and_a_half() -> None:
    async with opened(Settings(pending_events_max=100)) as rig:
        group_commit = rig.group_commit("clicks")
        seen = []
        for pending in (50, 51, 50, 26, 25, 26, 50, 51):
            group_commit._pending_events = pending
            seen.append(group_commit.shedding is not None)
        group_commit._pending_events = 0
        assert seen == [False, True, True, True, False, False, False, True]


@in_loop
async def test_a_large_request_finds_room_for_what_is_kept_of_it() -> None:
    async with opened(Settings(pending_events_max=100)) as rig:
        rig.log.gate.clear()
        first = asyncio.create_task(rig.ingress.post("clicks", clicks(range(60))))
        await until(lambda: rig.group_commit("clicks").pending_events == 60)
        second = asyncio.create_task(rig.ingress.post("clicks", clicks(range(100, 300))))
        await until(lambda: rig.group_commit("clicks").pending_events > 60)
        with pytest.raises(Overloaded):
            await rig.ingress.post("clicks", clicks(range(1000, 2000)))
        assert rig.tally("clicks").refused == 1000
        rig.log.gate.set()
        await asyncio.gather(first, second)


@in_loop
async def test_a_full_queue_refuses_before_it_draws() -> None:
    """Otherwise requests that drew many events would be drawn again, and the weights would not add up."""
    async with opened(Settings(pending_events_max=10)) as rig:
        rig.log.gate.clear()
        first = asyncio.create_task(rig.ingress.post("pings", pings(range(10))))
        await until(lambda: rig.group_commit("pings").pending_events == 10)
        for number in range(100):
            with pytest.raises(Overloaded):
                await rig.ingress.post("pings", pings(range(number, number + 1)))
        assert (rig.tally("pings").refused, rig.tally("pings").shed) == (100, 0)
        rig.log.gate.set()
        await first


@in_loop
async def test_a_stream_that_is_held_sheds_nothing_and_refuses_all() -> None:
    async with opened() as rig:
        rig.strain("pings", "urgent")
        for name, sent in (("pings", pings(range(50))), ("urgent", clicks(range(50)))):
            rig.ingress.hold(name, Hold("is too far ahead", 3))
            answer = await answered(rig.endpoint, name, sent)
            assert answer.status == 429
            assert (rig.tally(name).refused, rig.tally(name).shed) == (50, 0)
            assert set(rig.ingress.held()) & set(rig.ingress.shedding())


@in_loop
async def test_ticks_are_never_shed() -> None:
    async with opened() as rig:
        rig.strain("urgent")
        await rig.ingress.tick("urgent")
        assert len(rig.log.admits) == 1
        assert rig.tally("urgent").shed == 0
