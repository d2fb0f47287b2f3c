"""Parsing of server-sent events, by the cases of the HTML standard."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.sse import SseParser, TooLong


def parsed(*pieces: bytes, bytes_max: int = 10_000) -> list[tuple[str, bytes | None, str]]:
    parser = SseParser(bytes_max)
    return [(event.type, event.data, event.id) for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [("message", b"YHOO\n+2\n10", "")]),
        (
            b": a comment\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            [("message", b"first event", "1"), ("message", b"second event", ""), ("message", b" third event", "")],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [("message", b"", ""), ("message", b"\n", "")]),
        (b"data:test\n\ndata: test\n\n", [("message", b"test", "")] * 2),
        (b"event: add\ndata: 1\n\ndata: 2\n\n", [("add", b"1", ""), ("message", b"2", "")]),
        (b"\xef\xbb\xbfdata: a byte order mark\n\n", [("message", b"a byte order mark", "")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a second one is a part of the name\n\n", []),
        (b"data: cr\rdata: too\r\rdata: crlf\r\n\r\n", [("message", b"cr\ntoo", ""), ("message", b"crlf", "")]),
        (b"id: 7\n\n", [("message", None, "7")]),
        (b"event: none\n\n: comment\n\n\n\n", []),
        (b"id: 1\ndata: a\n\nid: 2\0\ndata: b\n\n", [("message", b"a", "1"), ("message", b"b", "1")]),
        (b"Data: x\n data: y\nda\xc3\xa9ta: z\nunknown: 1\n\n", []),
        (b"data: a:b: c\n\n", [("message", b"a:b: c", "")]),
        (b"id: 1\ndata: cut off", []),
        (b"data: cut off too\n", []),
        (b"data: \xff\xfe\n\n", [("message", b"\xff\xfe", "")]),
        (b"data: \xe2\x80\xa8 is no end of a line, nor is \x0b\x0c\x85\n\n", [
            ("message", b"\xe2\x80\xa8 is no end of a line, nor is \x0b\x0c\x85", "")
        ]),
    ],
)  # fmt: skip
def test_bytes_are_parsed_as_the_standard_says_however_they_are_cut_into_pieces(text: bytes, events: list[Any]) -> None:
    assert parsed(text) == events
    assert parsed(*(text[at : at + 1] for at in range(len(text)))) == events
    for at in range(len(text)):
        assert parsed(text[:at], text[at:]) == events


@pytest.mark.parametrize(
    ("text", "wait"), [(b"1500", 1500), (b"", None), (b"-1", None), (b"1e3", None), (b"9" * 99, 10**18 - 1)]
)
def test_a_retry_is_digits_and_nothing_else(text: bytes, wait: int | None) -> None:
    parser = SseParser(1000)
    assert list(parser.feed(b"retry: " + text + b"\n\n")) == []
    assert parser.retry_ms == wait


def test_an_event_without_an_id_has_the_last_one_and_says_that_it_is_not_its_own() -> None:
    parser = SseParser(1000, "from before")
    events = list(parser.feed(b"data: a\n\nid: 2\ndata: b\n\ndata: c\n\n"))
    assert [(event.id, event.own) for event in events] == [("from before", False), ("2", True), ("2", False)]


@pytest.mark.parametrize("text", [b"data: " + b"x" * 99, b"data: xxxxxxxxxxxxxxxxxxxx\n" * 6, b": " + b"x" * 99])
def test_an_event_larger_than_the_bound_is_not_held(text: bytes) -> None:
    with pytest.raises(TooLong, match="larger than 99"):
        parsed(text, bytes_max=99)


def test_signs_of_life_for_a_year_are_not_an_event_that_grows() -> None:
    assert parsed(*([b": ping\n", b"\n", b"ignored: field\n"] * 1000), bytes_max=99) == []
