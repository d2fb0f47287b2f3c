"""Acknowledgements: the positions of a request's events, and their results."""

from __future__ import annotations

import asyncio
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.collect.http import PostEndpoint
from penstock.collect.writer import SPANS_MAX, Writer, WriteTarget
from penstock.core.contracts import StreamSpec
from penstock.core.cursor import MAC_BYTES, Ack, AckSigner, Span
from penstock.core.errors import BadParameter, NotFound
from penstock.core.schema import Event, event_schema
from penstock.core.settings import Settings
from tests.clocks import ManualClock
from tests.collect.support import Answer, Posted, answered, body, fix, in_loop, opened
from tests.contracts.replies import OpenReplies, RepliesContract
from tests.memory_log import MemoryLog


class Sale(Event, id="sale"):
    sale: str
    shop: str


KEY = b"the key of this test"
SIGNER = AckSigner(KEY)


def sold(log: MemoryLog, ack: str | None) -> list[str]:
    """Return the sales that an acknowledgement leads to."""
    if ack is None:
        return []
    acknowledgement = SIGNER.read(ack)
    assert (acknowledgement.stream, acknowledgement.generation) == ("sales", log.generation("sales"))
    rows = [
        row
        for span in acknowledgement.spans
        for row in log.rows["sales"][span.partition][span.first : span.first + span.count]
    ]
    return sorted(row["sale"] for row in rows)


SALES = st.builds(lambda sale, shop: Sale(sale=str(sale), shop=shop), st.integers(0, 30), st.sampled_from("abcd"))


@settings(deadline=None)
@given(st.lists(st.lists(st.lists(SALES, max_size=6), min_size=1, max_size=5), max_size=5))
def test_an_acknowledgement_leads_to_the_events_of_its_request_and_no_others(groups: list[list[list[Sale]]]) -> None:
    """This includes the events that it repeats, wherever they were stored before."""
    log = MemoryLog()
    log.declare(StreamSpec("sales", event_schema(Sale), 3, unique_ids=100))
    writer = Writer(WriteTarget("sales", Sale, "shop", 3, SIGNER), log, ManualClock())
    for group in groups:
        commit = writer.commit([Posted(list(request)) for request in group])
        for request, ack, duplicates in zip(group, commit.acks, commit.duplicates, strict=True):
            named = sold(log, ack)
            assert set(named) == {sale.sale for sale in request}
            assert len(set(named)) >= len(request) - duplicates


def test_an_acknowledgement_of_events_from_all_over_the_log_is_bounded() -> None:
    log = MemoryLog()
    log.declare(StreamSpec("sales", event_schema(Sale), 1, unique_ids=1000))
    writer = Writer(WriteTarget("sales", Sale, "shop", 1, SIGNER), log, ManualClock())
    writer.commit([Posted([Sale(sale=str(number), shop="a") for number in range(400)])])
    commit = writer.commit([Posted([Sale(sale=str(number), shop="a") for number in range(0, 400, 2)])])
    assert commit.duplicates == [200]
    assert len(sold(log, commit.acks[0])) == SPANS_MAX


@in_loop
async def test_a_request_that_is_sent_again_gets_the_same_acknowledgement() -> None:
    async with opened(MemoryLog()) as rig:
        first, again = [await answered(rig.endpoint, "fixes", body(fix(1))) for _ in range(2)]
        assert (first.json["accepted"], again.json["duplicates"]) == (1, 1)
        assert first.json["ack"] == again.json["ack"]
        assert rig.signer.read(first.json["ack"]).spans[0].count == 1
        assert (await answered(rig.endpoint, "fixes", body(fix(2)), query=b"ack=none")).json["ack"] is None


@in_loop
async def test_events_without_an_id_are_taken_once_under_an_idempotency_key() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        lines = {"content_type": "application/x-ndjson"}
        first = await answered(rig.endpoint, "raw", b"one\ntwo", idempotency_key='"a"', **lines)
        again = await answered(rig.endpoint, "raw", b"one\ntwo", idempotency_key="a", **lines)
        other = await answered(rig.endpoint, "raw", b"one\ntwo", idempotency_key="b", **lines)
        without = await answered(rig.endpoint, "raw", b"one\ntwo", **lines)
        assert [answer.json["accepted"] for answer in (first, again, other, without)] == [2, 0, 2, 2]
        assert [answer.json["duplicates"] for answer in (first, again, other, without)] == [0, 2, 0, 0]
        assert first.json["ack"] == again.json["ack"]
        assert len(log.events("raw")) == 6


@in_loop
async def test_the_id_of_an_event_counts_and_not_the_key_of_its_request() -> None:
    async with opened(MemoryLog()) as rig:
        for number in (1, 2):
            answer = await answered(rig.endpoint, "fixes", body(fix(number)), idempotency_key="same")
            assert answer.json["accepted"] == 1


@in_loop
async def test_an_idempotency_key_that_is_none_is_refused() -> None:
    async with opened(MemoryLog()) as rig:
        for key in ("", "x" * 300, "a\x00b"):
            answer = await answered(rig.endpoint, "raw", b"one", idempotency_key=key)
            assert (answer.status, answer.json["code"]) == (400, "bad_parameter")


class FakeReplies:
    """Replies that come once the test lets them be known; they are known at first."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.known = asyncio.Event()
        self.known.set()

    def require_target(self, stream: str, target: str) -> None:
        if target != "decisions":
            raise BadParameter(f"{target!r} is not derived from {stream}", parameter="reply")

    async def reply(
        self, ack: str, target: str, timeout_s: float, may_read: Callable[[str], bool]
    ) -> dict[str, Any] | None:
        self.asked.append((ack, target))
        try:
            async with asyncio.timeout(timeout_s):
                await self.known.wait()
        except TimeoutError:
            return None
        return {"events": [{"approved": True}]}


class FakeRepliesHome:
    stream, target, ack = "fixes", "decisions", "an acknowledgement"

    def __init__(self) -> None:
        self.replies = FakeReplies()
        self.replies.known.clear()

    def answer(self) -> None:
        self.replies.known.set()

    def close(self) -> None:
        return


class TestFakeReplies(RepliesContract):
    @pytest.fixture
    def open_home(self) -> OpenReplies:
        return FakeRepliesHome


async def asked(replies: FakeReplies, query: bytes, content: bytes = body(fix(1))) -> tuple[Answer, int]:
    """Send a request with a query; returns its answer, and how many events are in the log then."""
    log = MemoryLog()
    async with opened(log) as rig:
        endpoint = PostEndpoint(rig.ingress, Settings(), replies)
        answer = await answered(endpoint, "fixes", content, query=query)
        return answer, len(log.events("fixes"))


@in_loop
async def test_a_reply_comes_with_the_answer() -> None:
    replies = FakeReplies()
    answer, taken = await asked(replies, b"reply=decisions&timeout=5")
    assert (answer.status, taken) == (200, 1)
    assert answer.json["reply"] == {"events": [{"approved": True}]}
    assert replies.asked == [(answer.json["ack"], "decisions")]


@in_loop
async def test_without_a_reply_in_time_the_answer_is_504_with_the_acknowledgement() -> None:
    replies = FakeReplies()
    replies.known.clear()
    answer, taken = await asked(replies, b"reply=decisions&timeout=0.01")
    assert (answer.status, answer.json["code"], taken) == (504, "no_reply_yet", 1)
    assert answer.json["accepted"] == 1
    assert replies.asked == [(answer.json["ack"], "decisions")]


@in_loop
async def test_a_request_that_caused_nothing_waits_for_no_reply() -> None:
    replies = FakeReplies()
    answer, _ = await asked(replies, b"reply=decisions", b"[]")
    assert (answer.status, answer.json["reply"], replies.asked) == (200, None, [])


@in_loop
async def test_what_cannot_be_waited_for_is_refused_before_anything_is_taken() -> None:
    for query in (
        b"reply=nothing",
        b"reply=decisions&ack=none",
        b"reply=decisions&timeout=x",
        b"reply=decisions&timeout=0",
        b"reply=decisions&timeout=61",
        b"reply=decisions&timeout=nan",
        b"reply=decisions&reply=decisions",
        b"wait=5",
        b"timeout=5",
    ):
        answer, taken = await asked(FakeReplies(), query)
        assert (answer.status, answer.json["code"], taken) == (400, "bad_parameter", 0), query


MADE_UP = [
    msgspec.msgpack.encode(["a", "fixes", 7, spans])
    for spans in ([], [[0, 0, 0]], [[-1, 0, 1]], [[0, -1, 1]], [[0, 0, 2**60]], [["0", 0, 1]])
]


@pytest.mark.parametrize("raw", MADE_UP)
def test_what_looks_like_an_acknowledgement_and_names_no_events_is_not_found(raw: bytes) -> None:
    """This holds although it has the right signature."""
    signed = raw + hmac.digest(KEY, raw, "sha256")[:MAC_BYTES]
    with pytest.raises(NotFound):
        SIGNER.read(urlsafe_b64encode(signed).decode().rstrip("="))


@pytest.mark.parametrize("text", ["", "x", "AAAA", "k6FzB4IACAEA", "x" * 100_000, "\u00e9"])
def test_what_is_no_acknowledgement_is_not_found(text: str) -> None:
    with pytest.raises(NotFound, match="is not an acknowledgement"):
        SIGNER.read(text)


GIVEN = Ack("fixes", 2**47, (Span(0, 7, 3), Span(1, 2**40, 1)))


def test_an_acknowledgement_is_read_by_those_with_its_key_only() -> None:
    text = SIGNER.sign(GIVEN)
    assert AckSigner(KEY).read(text) == GIVEN
    for other in (AckSigner(KEY + b"."), AckSigner(), AckSigner()):
        with pytest.raises(NotFound, match="is not an acknowledgement"):
            other.read(text)


def test_an_altered_acknowledgement_is_refused_in_the_words_for_a_malformed_one() -> None:
    """This holds for every character replaced, removed or added, and without the signature."""
    text = SIGNER.sign(GIVEN)
    unsigned = urlsafe_b64encode(msgspec.msgpack.encode(GIVEN)).decode().rstrip("=")
    assert text.startswith(unsigned[:-2])
    altered = [
        text[:at] + other + text[at + 1 :] for at in range(len(text)) for other in ("A", "B", "", "!", text[at] * 2)
    ]
    altered += [unsigned, text + "=", text + "A", text + "!", " " + text, text[: -4 * MAC_BYTES // 3]]
    for candidate in altered:
        if candidate != text:
            with pytest.raises(NotFound) as refused:
                SIGNER.read(candidate)
            assert (
                refused.value.message == f"{candidate[:80]!r} is not an acknowledgement; use the `ack` from a response"
            )
