"""Wrong clocks: if a stream declares it, an event too far ahead is a dead letter, on every ingestion path."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.app.app import App
from penstock.collect.decode import BodyDecoder
from penstock.collect.http import PostEndpoint
from penstock.collect.ingress import Ingress
from penstock.collect.validation import Ahead
from penstock.core.schema import EpochMillis, Event
from penstock.core.settings import Settings
from tests.clocks import ManualClock
from tests.collect.served import Client, request, serving
from tests.collect.support import Fix, answered, body, fix, in_loop, opened
from tests.memory_log import MemoryLog

MINUTE = timedelta(minutes=1)
MOMENT = timedelta(microseconds=1)
NOW = ManualClock().now()
REASON = "The time is more than 0:01:00 ahead of the server's clock"
BYTES_MAX = 400


class Beat(Event, time="at"):
    at: EpochMillis


class Sometimes(Event, time="at"):
    at: datetime | None = None


def decoder(cls: type[Event], clock: ManualClock) -> BodyDecoder:
    return BodyDecoder(cls, event_bytes_max=BYTES_MAX, events_max=50, ahead=Ahead(cls, MINUTE, clock))


def dated(number: int, at: datetime) -> dict[str, Any]:
    return fix(number) | {"at": at.isoformat()}


def content(form: str, events: list[dict[str, Any]]) -> bytes:
    """Return a body with the events. Padded beyond the limit of one event, they are decoded one by one from the
    start."""
    if form == "lines":
        return b"\n".join(map(body, events))
    return msgspec.json.encode(events) + (b" " * BYTES_MAX if form == "taken apart" else b"")


@pytest.mark.parametrize("form", ["array", "lines", "taken apart"])
def test_at_the_bound_an_event_is_taken_and_past_it_rejected_in_every_form_of_a_body(form: str) -> None:
    events = [dated(0, NOW + MINUTE), dated(1, NOW + MINUTE + MOMENT), dated(2, NOW - timedelta(days=9_999))]
    decoded = decoder(Fix, ManualClock()).decode(content(form, events), lines=form == "lines")
    assert [event.fix_id for event in decoded.events] == ["f0", "f2"]
    [rejection] = decoded.rejections
    assert (rejection.index, rejection.reason, rejection.path) == (1, REASON, "$.at")
    assert rejection.raw == body(events[1])
    assert decoded.indexes == [0, 2]


def test_a_single_event_is_held_to_the_bound() -> None:
    fix_decoder = decoder(Fix, ManualClock())
    assert len(fix_decoder.decode(body(dated(1, NOW + MINUTE))).events) == 1
    decoded = fix_decoder.decode(body(dated(1, NOW + MINUTE + MOMENT)))
    assert (decoded.events, [rejection.reason for rejection in decoded.rejections], decoded.malformed) == (
        (),
        [REASON],
        False,
    )


def test_a_time_is_compared_as_the_moment_that_it_is_whatever_its_offset() -> None:
    """One time is an hour ahead by its clock face but at the bound in truth; the other the reverse."""
    fix_decoder, east = decoder(Fix, ManualClock()), "2026-01-01T01:01:00+01:00"
    assert len(fix_decoder.decode(body(fix(1) | {"at": east})).events) == 1
    assert len(fix_decoder.decode(body(fix(1) | {"at": "2025-12-31T23:01:01-01:00"})).rejections) == 1


def test_whole_milliseconds_since_1970_are_held_to_the_bound() -> None:
    clock = ManualClock()
    clock.move(0.0007)  # less than a millisecond makes no difference
    last = int((NOW + MINUTE).timestamp() * 1_000)
    decoded = decoder(Beat, clock).decode(body({"at": last}, {"at": last + 1}))
    assert [event.at for event in decoded.events] == [last]
    assert [rejection.index for rejection in decoded.rejections] == [1]


def test_an_event_without_a_time_is_not_ahead() -> None:
    assert len(decoder(Sometimes, ManualClock()).decode(b'[{}, {"at": null}]').events) == 2


def test_each_body_is_held_against_the_time_at_which_it_comes() -> None:
    clock = ManualClock()
    fix_decoder, sent = decoder(Fix, clock), body(dated(1, NOW + 2 * MINUTE))
    assert fix_decoder.decode(sent).rejections
    clock.move(60)
    assert fix_decoder.decode(sent).events


@pytest.mark.parametrize("short", [True, False], ids=["short way", "long way"])
def test_of_a_mixed_batch_what_is_too_far_ahead_is_a_dead_letter_and_the_rest_is_taken(short: bool) -> None:
    good, bad = dated(1, NOW + MINUTE), dated(2, datetime(2100, 1, 1, tzinfo=UTC))
    with serving(short=short, ahead=MINUTE) as served, Client(served) as client:
        answers = []
        for sent in (body(good), body(good, bad), body(bad)):
            client.send(request(sent, "Content-Type: application/json"))
            answers.append(client.answer().split(b"\r\n\r\n")[1])
        alone, mixed, refused = map(msgspec.json.decode, answers)
        assert (alone["accepted"], alone["rejected"]) == (1, 0)
        assert (mixed["duplicates"], mixed["rejected"]) == (1, 1)
        assert mixed["errors"] == [{"index": 1, "reason": REASON, "path": "$.at"}]
        assert (refused["status"], refused["errors"][0]["reason"]) == (422, REASON)
        assert [row["fix_id"] for row in served.log.events("fixes")] == ["f1"]
        letters = served.log.events("fixes.rejected")
        assert [(row["reason"], row["path"], row["raw"]) for row in letters] == [(REASON, "$.at", body(bad))] * 2
        assert len(served.asgi) == (2 if short else 3), "what is good still goes the short way"


def test_without_it_any_time_is_taken() -> None:
    with serving() as served, Client(served) as client:
        client.send(request(body(dated(1, datetime(9999, 1, 1, tzinfo=UTC)))))
        assert client.answer().startswith(b"HTTP/1.1 200")


@in_loop
async def test_what_a_source_puts_is_held_to_the_bound_and_its_mark_goes_on() -> None:
    log = MemoryLog()
    async with opened(log, ahead=MINUTE) as rig:
        group_commit = rig.ingress.writer_for_source("feed", "fixes")
        await group_commit.put(body(dated(1, NOW)), "1")
        await group_commit.put(body(dated(2, NOW + 2 * MINUTE)), "2")
        await group_commit.settle()
        assert [row["fix_id"] for row in log.events("fixes")] == ["f1"]
        assert [row["reason"] for row in log.events("fixes.rejected")] == [REASON]
        assert group_commit.mark == "2"


@in_loop
async def test_a_request_sent_again_once_more_of_it_is_taken_has_each_event_once() -> None:
    """Events without an id are identified by the key of their request, and by their index in it."""
    app, clock, log = App("test"), ManualClock(), MemoryLog()
    app.stream("beats", Beat, ahead=MINUTE)
    ingress = Ingress(app.streams, log, Settings(), clock, lambda error: None, lambda name: None)
    now = int(NOW.timestamp() * 1_000)
    sent = body(*({"at": now + seconds * 1_000} for seconds in (90, 0, 30)))
    try:
        endpoint = PostEndpoint(ingress, Settings())
        first = (await answered(endpoint, "beats", sent, idempotency_key="k")).json
        clock.move(60)
        second = (await answered(endpoint, "beats", sent, idempotency_key="k")).json
    finally:
        await ingress.close()
    assert [(answer["accepted"], answer["duplicates"], answer["rejected"]) for answer in (first, second)] == [
        (2, 0, 1),
        (1, 2, 0),
    ]
    kept = {row["_id"]: (row["at"] - NOW).total_seconds() for row in log.events("beats")}
    assert kept == {"k/0": 90, "k/1": 0, "k/2": 30}
