"""The fast path: when it is used, that it answers as the ASGI path does, and misbehaving clients."""

from __future__ import annotations

import gzip
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.app.shed import Shed
from penstock.collect.stream_ingress import LARGE_BODY_BYTES
from penstock.core.errors import DiskFull, StorageError, SyncFailed
from penstock.core.settings import Settings
from tests.collect.served import Client, Served, exchange, request, serving, wait_for
from tests.collect.support import body, fix

LINES = "Content-Type: application/x-ndjson"
JSON = "Content-Type: application/json"
FULL = Settings(pending_events_max=1)
_CURSOR = re.compile(rb'content-length: \d+(.*"cursor":)"[^"]+"(.*"ack":)(?:"[^"]+"|null)(.*)', re.DOTALL)
_numbers = itertools.count(1)


def good(*headers: str) -> bytes:
    """Return a request with one new event."""
    return request(body(fix(next(_numbers))), *headers)


def chunked(content: bytes) -> bytes:
    return request(b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content), "Transfer-Encoding: chunked", length=-1)


@pytest.fixture(scope="module")
def short() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def long() -> Iterator[Served]:
    with serving(short=False) as served:
        yield served


def test_a_plain_post_is_stored_and_answered_without_asgi(short: Served) -> None:
    asgi, stored = len(short.asgi), len(short.log.events("fixes"))
    with Client(short) as client:
        for count in range(1, 4):
            client.send(good(JSON))
            head, _, content = client.answer().partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-type: application/json\r\n")
            assert msgspec.json.decode(content)["accepted"] == 1
            assert len(short.log.events("fixes")) == stored + count
    assert len(short.asgi) == asgi


def test_no_answer_leaves_while_the_disk_is_at_work(short: Served) -> None:
    with Client(short) as client:
        short.log.gate.clear()
        client.send(good())
        wait_for(lambda: short.pending == 1)
        (connection,) = short.connections
        assert connection.overdue_at == 0
        assert client.is_silent()
        short.log.gate.set()
        assert client.answer().startswith(b"HTTP/1.1 200 ")
        wait_for(lambda: connection.overdue_at > 0)


TWO = body(fix(900_001)) + b"\n" + body(fix(900_002)) + b"\n"
SHORT = {
    "one event": request(body(fix(900_000)), JSON),
    "no content type": request(body(fix(900_003))),
    "an array": request(body(fix(900_004), fix(900_005)), JSON),
    "an empty array": request(b"[]"),
    "a duplicate": request(body(fix(900_000))),
    "NDJSON": request(TWO, LINES),
    "NDJSON without a line": request(b"", LINES),
    "NDJSON in capitals": request(TWO, LINES.upper()),
    "NDJSON said last": request(TWO, JSON, LINES),
    "header names in lower case": request(body(fix(900_006)), JSON).replace(b"Content-Length", b"content-length"),
    "header names in upper case": request(body(fix(900_007)), JSON).replace(b"Content-Length", b"CONTENT-LENGTH"),
    "keep-alive said aloud": request(body(fix(900_008)), "Connection: keep-alive"),
    "a host by name": request(body(fix(900_011)), host="localhost"),
    "no host": b"POST /v1/streams/fixes HTTP/1.1\r\nContent-Length: 2\r\n\r\n[]",
    "opaque bytes": request(b"\0\xff", line="POST /v1/streams/raw HTTP/1.1"),
    "spaces around": request(b" \r\n" + body(fix(900_009)) + b"\n"),
    "exactly 64 KiB": request(body(fix(900_010)).ljust(LARGE_BODY_BYTES)),
    "h2c": request(body(fix(910_020)), "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA"),
}
IN_PIECES = "exactly 64 KiB"
"""Larger than a segment of the loopback: a quick server reads the request in two pieces, and then it goes by ASGI."""
HEAD = "POST /v1/streams/fixes%s HTTP/1.1"
LONG = {
    "JSON said last of two": request(TWO, LINES, JSON),
    "an empty body": request(),
    "no length at all": request(length=-1),
    "a bad event": request(body({"fix_id": 1})),
    "a good and a bad event": request(body(fix(910_000), {})),
    "no JSON": request(b"{"),
    "bad UTF-8": request(b'{"fix_id":"\xff"}'),
    "deep nesting": request(b"[" * 5000),
    "above 64 KiB": request(body(fix(910_001)).ljust(LARGE_BODY_BYTES + 1)),
    "chunked": chunked(body(fix(910_002))),
    "gzip": request(gzip.compress(body(fix(910_003)), mtime=0), "Content-Encoding: gzip"),
    "identity": request(body(fix(910_004)), "Content-Encoding: identity"),
    "unknown encoding": request(body(fix(910_005)), "Content-Encoding: br"),
    "close": request(body(fix(910_006)), "Connection: close"),
    "HTTP/1.0": request(body(fix(910_007)), line="POST /v1/streams/fixes HTTP/1.0"),
    "HTTP/1.0 keep-alive": request(
        body(fix(910_008)), "Connection: keep-alive", line=(HEAD % "").replace("1.1", "1.0")
    ),
    "ack=none": request(body(fix(910_009)), line=HEAD % "?ack=none"),
    "ack=maybe": request(body(fix(910_010)), line=HEAD % "?ack=maybe"),
    "an empty query": request(body(fix(910_011)), line=HEAD % "?"),
    "an encoded path": request(body(fix(910_012)), line="POST /v1/streams/fi%78es HTTP/1.1"),
    "a slash more": request(body(fix(910_014)), line=HEAD % "/"),
    "no such stream": request(body(fix(910_015)), line="POST /v1/streams/none HTTP/1.1"),
    "dead letters": request(body(fix(910_016)), line=HEAD % ".rejected"),
    "PUT": request(body(fix(910_017)), line="PUT /v1/streams/fixes HTTP/1.1"),
    "GET": request(line="GET /v1/streams/fixes HTTP/1.1"),
    "GET with a body": request(body(fix(910_018)), line="GET /v1/streams/fixes HTTP/1.1"),
    "another expectation": request(body(fix(910_019)), "Expect: a miracle"),
    "another loopback address": request(body(fix(910_021)), host="[::1]:8000"),
    "a foreign host": request(body(fix(910_022)), host="127.0.0.1.example.org"),
    "a page of its own": request(body(fix(910_025)), "Origin: http://127.0.0.1:8000"),
    "a page of another site": request(body(fix(910_026)), "Origin: http://example.org"),
}
REFUSED = {
    "a whole URL": request(body(fix(910_013)), line="POST http://x/v1/streams/fixes HTTP/1.1"),
    "a foreign host as well": request(body(fix(910_023)), "Host: example.org"),
    "a foreign host behind a name": request(body(fix(910_024)), host="127.0.0.1:80@example.org"),
    "two lengths": request(body(fix(1)), "Content-Length: 3"),
    "length and chunked": request(b"0\r\n\r\n", "Transfer-Encoding: chunked", length=5),
    "a length that is none": request(body(fix(1)), "Content-Length: x", length=-1),
    "a negative length": request(body(fix(1)), "Content-Length: -1", length=-1),
    "no HTTP": b"hello\r\n\r\n",
}
"""Requests that the parser itself refuses, so that neither path sees them."""


@pytest.mark.parametrize("name", [*SHORT, *LONG, *REFUSED])
def test_both_ways_give_the_same_answer_and_store_the_same(name: str, short: Served, long: Served) -> None:
    packet = (SHORT | LONG | REFUSED)[name]
    asgi, before = len(short.asgi), (stored(short), stored(long))
    by_short, by_long = (without_cursor(exchange(served, [packet], 1)) for served in (short, long))
    assert by_short == by_long
    long_way = len(short.asgi) - asgi
    assert long_way == (name in LONG) or (name == IN_PIECES and long_way == 1)
    assert_same_stored(short, long, before)


def stored(served: Served) -> Counter[tuple[str, object]]:
    """Return events and dead letters, by stream."""
    return Counter(
        (stream, row.get("fix_id") or row.get("raw") or row.get("data"))
        for stream in served.log.rows
        for row in served.log.events(stream)
    )


def assert_same_stored(short: Served, long: Served, before: tuple[Counter[Any], Counter[Any]]) -> None:
    """Check that nothing is in transit: an event whose sender did not wait would be counted as the next one's."""
    wait_for(lambda: not (short.pending or long.pending))
    wait_for(lambda: stored(short) - before[0] == stored(long) - before[1])


def without_cursor(answers: list[bytes]) -> list[bytes]:
    """Remove cursor and acknowledgement, which depend on earlier requests, and the length, which depends on them."""
    return [_CURSOR.sub(rb"\1\2\3", answer) for answer in answers]


def test_a_head_request_is_answered_alike(short: Served, long: Served) -> None:
    answers = []
    for served in (short, long):
        with Client(served) as client:
            client.send(request(line="HEAD /v1/streams/fixes HTTP/1.1"))
            answers.append(client.answer(head_only=True))
            client.send(good())
            assert client.answer().startswith(b"HTTP/1.1 200 ")
    assert answers[0] == answers[1]


def test_who_waits_for_100_continue_gets_it(short: Served, long: Served) -> None:
    content = body(fix(next(_numbers)))
    packets = [request(content, "Expect: 100-continue").removesuffix(content), content]
    by_short, by_long = (without_cursor(exchange(served, packets, 2)) for served in (short, long))
    assert by_short == by_long
    assert by_short[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert by_short[1].startswith(b"HTTP/1.1 200 ")


def test_a_websocket_can_be_opened_before_and_after_a_post(short: Served, long: Served) -> None:
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
    opening = request(b"", *upgrade, "Sec-WebSocket-Version: 13", line="GET /v1/live HTTP/1.1", length=-1)
    packet = good()
    answers = []
    for served in (short, long):
        answers += exchange(served, [opening], 1)
        with Client(served) as client:
            client.send(packet)
            answers += without_cursor(client.answers(1))
            client.send(opening)
            answers += client.answers(1)
    assert answers[:3] == answers[3:]
    assert [answer[:12] for answer in answers[:3]] == [b"HTTP/1.1 101", b"HTTP/1.1 200", b"HTTP/1.1 101"]


def test_a_post_that_asks_for_a_websocket_is_not_taken(short: Served, long: Served) -> None:
    for served in (short, long):
        received, reads = served.rig.ingress.audits()["fixes"].total().received, len(served.packets)
        with Client(served) as client:
            client.send(good(LINES, "Connection: Upgrade", "Upgrade: websocket"))
            wait_for(lambda: len(served.packets) == reads + 1)  # noqa: B023
            assert served.rig.ingress.audits()["fixes"].total().received == received


LIMITS = {
    "the body is too large": (request(b" " * 301), 413),
    "too many bytes in good events": (request(body(*(fix(n) for n in range(5)))), 413),
    "too many events": (request(b"[" + b"{}," * 5 + b"{}]"), 413),
    "too many lines": (request(b"{}\n" * 6, LINES), 413),
    "an event is too large": (request(body(fix(1, vehicle="v" * 100))), 422),
    "within all limits": (request(body(fix(1))), 200),
}


def test_every_limit_of_the_long_way_holds_on_the_short_one() -> None:
    limits = Settings(body_bytes_max=240, event_bytes_max=100, request_events_max=5)
    with serving(settings=limits) as short, serving(short=False, settings=limits) as long:
        for name, (packet, status) in LIMITS.items():
            by_short, by_long = (without_cursor(exchange(served, [packet], 1)) for served in (short, long))
            assert by_short == by_long, name
            assert by_short[0].startswith(b"HTTP/1.1 %d " % status), name


def test_a_request_cut_in_two_at_any_byte_is_answered_the_same(short: Served) -> None:
    events, asgi = len(short.log.events("fixes")), len(short.asgi)
    with Client(short) as client:
        size = len(good(JSON))
        for cut in range(1, size):
            packet = good(JSON).ljust(size)
            client.send(packet[:cut], packet[cut:])
            assert b'"accepted":1,' in client.answer(), cut
    assert len(short.log.events("fixes")) == events + size - 1
    assert 0 < len(short.asgi) - asgi < size - 1, (
        "a cut in the head leaves the short way open, one in the body does not"
    )


def test_a_request_may_come_byte_by_byte(short: Served) -> None:
    with Client(short) as client:
        for _ in range(2):
            client.send(*(bytes([byte]) for byte in good(JSON)))
            assert b'"accepted":1,' in client.answer()


KINDS: dict[str, Callable[[bytes], bytes]] = {
    "plain": request,
    "NDJSON": lambda content: request(content + b"\n", LINES),
    "chunked": chunked,
    "gzip": lambda content: request(gzip.compress(content, mtime=0), "Content-Encoding: gzip"),
    "no wait": lambda content: request(content, line=HEAD % "?ack=none"),
    "bad": lambda content: request(content[:-1]),
    "empty": lambda content: request(),
    "GET": lambda content: request(line="GET /v1/streams/fixes HTTP/1.1"),
    "unknown": lambda content: request(content, line="POST /v1/streams/none HTTP/1.1"),
}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4), st.lists(st.integers(0, 600), max_size=4))
def test_requests_in_a_row_cut_anywhere_are_answered_alike_and_in_order(
    short: Served, long: Served, kinds: list[str], cuts: list[int]
) -> None:
    sent = b"".join(KINDS[kind](body(fix(next(_numbers)))) for kind in kinds)
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(sent)}), len(sent)]
    packets = [sent[start:end] for start, end in itertools.pairwise(places)]
    before = stored(short), stored(long)
    by_short, by_long = (without_cursor(exchange(served, packets, len(kinds))) for served in (short, long))
    assert by_short == by_long
    assert_same_stored(short, long, before)


def test_requests_in_one_packet_are_answered_in_order_and_only_the_first_goes_the_short_way(short: Served) -> None:
    asgi = len(short.asgi)
    sizes = [3, 1, 2, 5, 4]
    packet = b"".join(request(body([fix(next(_numbers)) for _ in range(size)])) for size in sizes)
    with Client(short) as client:
        client.send(packet)
        accepted = [int(re.findall(rb'"accepted":(\d+)', answer)[0]) for answer in client.answers(len(sizes))]
        assert accepted == sizes
        assert len(short.asgi) - asgi == len(sizes) - 1
        client.send(good())
        assert client.answer().startswith(b"HTTP/1.1 200 ")
        assert len(short.asgi) - asgi == len(sizes) - 1


def test_bytes_past_the_declared_length_are_the_next_request(short: Served, long: Served) -> None:
    content = body(fix(next(_numbers)))
    for served in (short, long):
        before = stored(served)
        with Client(served) as client:
            client.send(request(content, length=len(content) - 1))
            assert client.answer().startswith(b"HTTP/1.1 400 ")
            assert client.is_at_end()
        wait_for(lambda: stored(served) - before == Counter({("fixes.rejected", content[:-1]): 1}))  # noqa: B023


def test_a_body_shorter_than_declared_is_waited_for_and_leaves_nothing(short: Served) -> None:
    asgi, before, content = len(short.asgi), stored(short), body(fix(next(_numbers)))
    with Client(short) as client:
        client.send(request(content, length=len(content) + 1))
        wait_for(lambda: len(short.asgi) > asgi)
        assert client.is_silent()
    wait_for(lambda: not short.connections)
    assert stored(short) == before


FAULTS: dict[str, tuple[Exception, int]] = {
    "disk full": (DiskFull("no space left", retry_after_s=5), 507),
    "storage": (StorageError("it broke", file="/secret/place"), 500),
    "unforeseen": (OSError("what is this"), 500),
    "sync failed": (SyncFailed("the disk is gone"), 500),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_failed_commit_is_told_alike_on_both_ways(name: str) -> None:
    fault, status = FAULTS[name]
    answers = []
    with serving() as short, serving(short=False) as long:
        for served in (short, long):
            served.log.faults = [fault]
            with Client(served) as client:
                client.send(good())
                answers.append(client.answer())
                client.send(good())
                answers.append(without_cursor([client.answer()])[0])
            assert [type(error) for error in served.rig.fatal] == ([SyncFailed] if name == "sync failed" else [])
        assert len(short.asgi) == (name == "sync failed")
    assert answers[:2] == answers[2:]
    assert answers[0].startswith(b"HTTP/1.1 %d " % status)
    assert (b"\r\nretry-after: 5\r\n" in answers[0]) == (name == "disk full")
    assert b"secret" not in answers[0]
    assert answers[1].startswith(b"HTTP/1.1 503 " if name == "sync failed" else b"HTTP/1.1 200 ")


def test_a_refused_request_is_counted_once_and_told_alike() -> None:
    answers = []
    with serving(settings=FULL) as short, serving(short=False, settings=FULL) as long:
        for served in (short, long):
            with Client(served) as first, Client(served) as second:
                served.log.gate.clear()
                first.send(good())
                wait_for(lambda: served.pending == 1)  # noqa: B023
                second.send(good())
                answers.append(second.answer())
                served.log.gate.set()
                assert first.answer().startswith(b"HTTP/1.1 200 ")
                second.send(good())
                assert second.answer().startswith(b"HTTP/1.1 200 ")
            tally = served.rig.ingress.audits()["fixes"].total()
            assert (tally.received, tally.accepted, tally.refused) == (2, 2, 1)
        assert len(short.asgi) == 1
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.1 429 ")


def test_a_door_that_is_closed_answers_503_on_both_ways() -> None:
    with serving() as short, serving(short=False) as long:
        for served in (short, long):
            served.close_door()
        by_short, by_long = (exchange(served, [good()], 1) for served in (short, long))
    assert by_short == by_long
    assert by_short[0].startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize("rude", [False, True], ids=["FIN", "RST"])
def test_a_client_that_leaves_before_its_answer_harms_no_other(rude: bool) -> None:
    with serving() as short, Client(short) as first, Client(short) as stays:
        leaves = Client(short)
        short.log.gate.clear()
        for number, client in enumerate((first, leaves, stays), 1):
            client.send(good())
            wait_for(lambda: short.pending == number)  # noqa: B023
        if rude:
            leaves.reset()
        else:
            leaves.__exit__()
        wait_for(lambda: len(short.connections) == 2)
        short.log.gate.set()
        for client in (first, stays):
            assert client.answer().startswith(b"HTTP/1.1 200 ")
        assert len(short.log.events("fixes")) == 3
        assert short.asgi == []


def test_a_client_that_leaves_with_requests_pipelined_harms_no_other() -> None:
    with serving() as short, Client(short) as stays:
        leaves = Client(short)
        short.log.gate.clear()
        leaves.send(good() + good())
        wait_for(lambda: short.pending == 1)
        stays.send(good())
        wait_for(lambda: short.pending == 2)
        leaves.reset()
        short.log.gate.set()
        assert stays.answer().startswith(b"HTTP/1.1 200 ")
        wait_for(lambda: len(short.connections) == 1)


def test_a_client_that_never_reads_is_not_read_from_either_and_finds_all_answers_later() -> None:
    with serving() as short, Client(short) as client:
        wait_for(lambda: len(short.connections) == 1)
        (connection,) = short.connections
        sent = 0
        while not connection.flow.write_paused:
            client.send(good())
            sent += 1
            wait_for(lambda: short.rig.ingress.audits()["fixes"].total().accepted == sent)  # noqa: B023
            wait_for(lambda: connection.cycle.response_complete)
        assert short.asgi == []
        client.send(good())
        wait_for(lambda: short.rig.ingress.audits()["fixes"].total().accepted == sent + 1)
        client.send(good())
        wait_for(lambda: connection.flow.read_paused)
        assert short.asgi == ["POST"]
        assert connection.transport.get_write_buffer_size() < 70_000
        assert all(b'"accepted":1,' in client.answer() for _ in range(sent + 2))
        client.send(good())
        assert client.answer().startswith(b"HTTP/1.1 200 ")
        assert len(short.asgi) == 2, "once it reads, the short way is open again"


def is_told_to_stop(served: Served) -> bool:
    return [protocol.cycle is not None and not protocol.cycle.keep_alive for protocol in served.connections] == [True]


def test_a_stop_lets_a_pending_request_finish_and_closes_its_connection() -> None:
    with serving() as short, Client(short) as busy, Client(short) as idle:
        idle.send(good())
        assert idle.answer().startswith(b"HTTP/1.1 200 ")
        short.log.gate.clear()
        busy.send(good())
        wait_for(lambda: short.pending == 1)
        short.server.should_exit = True
        assert idle.is_at_end()
        wait_for(lambda: is_told_to_stop(short))
        short.log.gate.set()
        (answer,) = busy.answers(1)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nconnection: close\r\n" in answer
        assert short.asgi == []


def test_a_stop_tells_a_failed_commit_and_closes() -> None:
    with serving() as short, Client(short) as client:
        short.log.gate.clear()
        short.log.faults = [DiskFull("no space left", retry_after_s=5)]
        client.send(good())
        wait_for(lambda: short.pending == 1)
        short.server.should_exit = True
        wait_for(lambda: is_told_to_stop(short))
        short.log.gate.set()
        (answer,) = client.answers(1)
        assert answer.startswith(b"HTTP/1.1 507 ")
        assert b"\r\nconnection: close\r\n" in answer


def test_an_idle_connection_is_closed_after_a_short_answer() -> None:
    with serving(settings=Settings(idle_s=0.1)) as short:
        with Client(short) as client:
            client.send(good())
            assert client.answer().startswith(b"HTTP/1.1 200 ")
            assert client.is_at_end()


URGENT = Shed(unless="vehicle = 'ambulance'")


@pytest.mark.parametrize("short", [True, False], ids=["short way", "long way"])
def test_either_way_sheds_alike_and_says_so(short: bool) -> None:
    """All of a request may be shed, or a part, or nothing; the connection continues after each, also with pipelined
    requests."""
    urgent, other = fix(920_000, "ambulance"), fix(920_001)
    with serving(short=short, shed=URGENT) as served, Client(served) as client:
        served.strain("is 11 events ahead of till")
        client.send(request(body(other), JSON) + request(body(urgent, other), JSON) + request(body(urgent), JSON))
        heads, contents = zip(*(answer.split(b"\r\n\r\n") for answer in client.answers(3)), strict=True)
        assert {head.split(b"\r\n")[0] for head in heads} == {b"HTTP/1.1 200 OK"}
        nothing, part, known = map(msgspec.json.decode, contents)
        assert nothing == {
            "accepted": 0, "duplicates": 0, "rejected": 0, "cursor": None, "errors": [], "ack": None, "shed": 1,
        }  # fmt: skip
        assert (part["accepted"], part["shed"]) == (1, 1)
        assert known["duplicates"] == 1
        assert "shed" not in known
        served.strain(None)
        client.send(request(body(other), JSON))
        assert msgspec.json.decode(client.answer().split(b"\r\n\r\n")[1])["accepted"] == 1
        tally = served.rig.ingress.audits()["fixes"].of("POST")
        assert (tally.received, tally.accepted, tally.duplicates, tally.shed) == (5, 2, 1, 2)
        assert len(served.asgi) in ((0, 1, 2) if short else (4,)), "of those that are pipelined, some go the long way"
