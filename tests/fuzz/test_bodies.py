"""Every body is answered with 200 or a documented problem; accepted events are in the log, rejected ones are dead
letters with their bytes, and together they are everything sent."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from email.message import Message
from http.client import HTTPResponse

import httpx
import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.bodies import BAD, GOOD, LINES, MIB, ORDERS, THINGS, VALUES, Bad, bad_gzip, mangled
from tests.fuzz.books import STATUS, Books
from tests.fuzz.gateway import RunningGateway, gateway

SEED = int(os.environ["TEST_SEED"])
BAD_GZIP = bad_gzip()
NDJSON = "application/x-ndjson"
FEW = settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with gateway(tmp_path_factory.mktemp("bodies") / "data") as running:
        yield running
        running.require_sound()


@pytest.mark.parametrize("name", BAD)
def test_a_bad_body_is_refused_with_the_reason_and_kept(served: RunningGateway, name: str) -> None:
    bad, books = BAD[name], Books(served, "things")
    answer = served.post("things", bad.body)
    assert_refused(answer, bad)
    _, letters = books.new()
    assert letters == ([] if bad.code == "too_large" else [bad.body])


@pytest.mark.parametrize("name", [name for name, bad in BAD.items() if bad.body.strip() and len(bad.body) < 8 * MIB])
def test_a_bad_line_costs_its_neighbours_nothing(served: RunningGateway, name: str) -> None:
    """This holds even if the line cannot be recognised as an event."""
    line, books = BAD[name].body.strip(), Books(served, "things")
    answer = served.post("things", b"\n".join([GOOD, line, GOOD]), content_type=NDJSON)
    assert (answer.status_code, answer.json()["accepted"], answer.json()["rejected"]) == (200, 2, 1)
    events, letters = books.new()
    assert (len(events), letters) == (2, [line])
    assert [error["index"] for error in answer.json()["errors"]] == [1]


def assert_refused(answer: httpx.Response, bad: Bad) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (STATUS[bad.code], bad.code)
    reasons = [problem["detail"], *(error["reason"] for error in problem.get("errors", ()))]
    assert any(bad.reason in reason for reason in reasons), problem


@pytest.mark.parametrize("name", BAD_GZIP)
def test_bad_gzip_is_refused(served: RunningGateway, name: str) -> None:
    bad = BAD_GZIP[name]
    assert_refused(served.post("things", bad.body, content_encoding="gzip"), bad)


def test_gzip_of_64_members_is_taken(served: RunningGateway) -> None:
    body = gzip.compress(b" ") * 63 + gzip.compress(GOOD)
    assert served.post("things", body, content_encoding="gzip").json()["accepted"] == 1


def test_of_a_key_that_stands_twice_the_last_one_counts(served: RunningGateway) -> None:
    books = Books(served, "orders")
    answer = served.post("orders", b'{"order":"first","buyer":"a","order":"second","buyer":"b"}')
    assert answer.json()["accepted"] == 1
    [order], _ = books.new()
    assert (order["order"], order["buyer"]) == ("second", "b")


def test_an_id_that_is_too_long_to_be_remembered_is_rejected(served: RunningGateway) -> None:
    """A million ids are held in memory: at a MiB each they would not fit anywhere."""
    longest = served.post("orders", b'{"order":"%b","buyer":"b"}' % (b"x" * 255))
    assert longest.json()["accepted"] == 1
    longer = served.post("orders", b'{"order":"%b","buyer":"b"}' % (b"x" * 256))
    assert longer.status_code == 422
    assert longer.json()["errors"][0]["path"] == "$.order"


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "gzip, gzip", "identity, gzip", "x" * 1000, "\xff", "*"])
def test_an_unknown_encoding_is_refused(served: RunningGateway, encoding: str) -> None:
    answer = served.post("things", GOOD, content_encoding=encoding)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media")


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "", "application/json; charset=utf-16", "\xff", ";"])
def test_the_content_type_does_not_matter_unless_it_means_lines(served: RunningGateway, kind: str) -> None:
    assert served.post("things", GOOD, content_type=kind).json()["accepted"] == 1


def test_lines_mixed_of_good_and_bad_add_up(served: RunningGateway) -> None:
    for stream in ("things", "orders"):
        books = Books(served, stream)

        @seed(SEED)
        @FEW
        @given(LINES)
        def attack(lines: list[bytes]) -> None:
            body = b"\n".join(lines)
            sent = sum(1 for line in lines if line.strip())
            books.require(served.post(stream, body, content_type=NDJSON), body, sent)  # noqa: B023

        attack()


def test_any_body_is_judged_and_accounted_for(served: RunningGateway) -> None:
    books = Books(served, "things")
    arrays = st.lists(THINGS | ORDERS | VALUES, max_size=4).map(lambda items: b"[" + b",".join(items) + b"]")

    @seed(SEED)
    @FEW
    @given(mangled(st.one_of(THINGS, arrays, VALUES)) | st.binary(max_size=64), st.booleans())
    @example(b"[]", False)
    @example(b"", True)
    def attack(body: bytes, zipped: bool) -> None:
        sent = gzip.compress(body) if zipped else body
        headers = {"content_encoding": "gzip"} if zipped else {}
        books.require(served.post("things", sent, **headers), body)

    attack()


def test_a_raw_stream_takes_any_bytes_as_they_are(served: RunningGateway) -> None:
    books = Books(served, "raw")

    @seed(SEED)
    @FEW
    @given(st.binary(min_size=1, max_size=200))
    def attack(body: bytes) -> None:
        assert served.post("raw", body).json()["accepted"] == 1
        [event], letters = books.new()
        assert (RunningGateway.raw(event, "data"), letters) == (body, [])

    attack()


HEADS = {
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6",
    "no number": b"Content-Length: five",
    "below zero": b"Content-Length: -5",
    "more than 64 bits": b"Content-Length: 99999999999999999999999",
    "length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    "chunks that are none": b"Transfer-Encoding: chunked, nothing",
    "a broken chunk": b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0",
    "a name with a space": b"Content Length: 5",
    "a NUL": b"X-Nul: \x00",
    "a folded line": b"X-Folded: a\r\n b: c\r\nContent-Length: -1",
}


@pytest.mark.parametrize("name", HEADS)
def test_a_length_that_cannot_be_is_a_bad_request(served: RunningGateway, name: str) -> None:
    """Bytes that cannot be distinguished from the next request must not be guessed: the connection ends."""
    sent = b"POST /v1/streams/things HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\nhello" % HEADS[name]
    status, headers, body = exchange(served, sent)
    assert (status, headers["connection"], headers["content-type"]) == (400, "close", "application/problem+json")
    assert json.loads(body)["code"] == "request"


LINES_OF_HEADS = {
    "bytes that are no text": b"GET /v1/streams/\xff\xfe HTTP/1.1",
    "an escape that is no text": b"GET /v1/streams/%ff%fe HTTP/1.1",
    "an escape that is none": b"GET /v1/streams/%zz HTTP/1.1",
    "a NUL in the path": b"GET /v1/streams/%00 HTTP/1.1",
    "a surrogate in the path": b"GET /v1/streams/%ed%a0%80 HTTP/1.1",
    "bytes that are no text, in the query": b"GET /v1/streams/things?since=\xff HTTP/1.1",
    "an escape that is no text, in the query": b"GET /v1/streams/things?since=%ff%00 HTTP/1.1",
    "a number that is none": "GET /v1/streams/things?limit=\u0661 HTTP/1.1".encode(),
    "a full address": b"GET http://elsewhere/v1/app HTTP/1.1",
    "two slashes": b"GET //v1/app HTTP/1.1",
    "dots": b"GET /v1/../../etc/passwd HTTP/1.1",
    "a state under any key": b"GET /v1/handlers/seen/state/%ff%00/../x HTTP/1.1",
    "a star": b"OPTIONS * HTTP/1.1",
    "CONNECT": b"CONNECT elsewhere:443 HTTP/1.1",
    "another version": b"GET /v1/app HTTP/9.9",
    "no version": b"GET /v1/app",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
    "a WebSocket to nowhere": b"GET /v1/\xff/publish HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    "a WebSocket with a bad key": b"GET /v1/live HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 99\r\nSec-WebSocket-Key: \xff",
    "another upgrade": b"GET /v1/app HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c",
}


@pytest.mark.parametrize("name", LINES_OF_HEADS)
def test_a_strange_first_line_is_answered(served: RunningGateway, name: str) -> None:
    """The answer is the requested one, or an error; never 500, and never just a closed connection."""
    status, _, _ = exchange(served, LINES_OF_HEADS[name] + b"\r\nHost: localhost\r\n\r\n")
    assert status == 200 or 400 <= status < 500
    served.require_sound()


def test_a_body_longer_than_it_says_is_not_taken_for_more_of_it(served: RunningGateway) -> None:
    """The rest is read as the next request, which is invalid: the answer to the first one is the last."""
    books = Books(served, "things")
    head = b"POST /v1/streams/things HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(GOOD)
    status, headers, _ = exchange(served, head + GOOD + GOOD)
    assert (status, headers["connection"]) == (200, "close")
    events, letters = books.new()
    assert (len(events), letters) == (1, [])


def exchange(served: RunningGateway, sent: bytes) -> tuple[int, Message, bytes]:
    """Return the first answer to these bytes."""
    with served.connect() as client:
        client.sendall(sent)
        answer = HTTPResponse(client)
        answer.begin()
        return answer.status, answer.headers, answer.read()
