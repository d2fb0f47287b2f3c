"""Decoding of bodies to events and rejections."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collect.decode import BodyDecoder, Decoded, is_lines
from penstock.core.errors import TooLarge
from penstock.core.schema import Event, Raw, Record
from tests.collect.support import Fix, body, fix

DECODER = BodyDecoder(Fix, event_bytes_max=4096, events_max=50)
RAW = BodyDecoder(Raw, event_bytes_max=4096, events_max=50)


def names(decoded: Decoded) -> list[str]:
    return [event.fix_id for event in decoded.events]


def lines(*values: Any) -> bytes:
    return b"\n".join(value if isinstance(value, bytes) else msgspec.json.encode(value) for value in values)


def test_one_object_is_one_event() -> None:
    assert names(DECODER.decode(body(fix(1)))) == ["f1"]


def test_an_array_keeps_its_order() -> None:
    assert names(DECODER.decode(b" \n" + body(fix(1), fix(2), fix(3)))) == ["f1", "f2", "f3"]


def test_an_empty_array_is_no_event_and_no_fault() -> None:
    assert DECODER.decode(b"[]") == Decoded([], ())


def test_ndjson_has_an_event_a_line_and_blank_lines_do_not_count() -> None:
    decoded = DECODER.decode(lines(fix(1), b"", b"  \r", fix(2), b""), lines=True)
    assert names(decoded) == ["f1", "f2"]
    assert not decoded.rejections


def test_only_the_content_type_makes_a_body_ndjson() -> None:
    assert is_lines(b"application/x-ndjson; charset=utf-8")
    assert is_lines(b"Application/JSONL")
    assert not is_lines(b"application/json")
    assert DECODER.decode(lines(fix(1), fix(2))).malformed


def test_two_objects_in_one_line_are_a_fault_of_that_line() -> None:
    decoded = DECODER.decode(lines(fix(1)) + lines(fix(2)) + b"\n" + lines(fix(3)), lines=True)
    assert names(decoded) == ["f3"]
    assert [rejection.index for rejection in decoded.rejections] == [0]


def test_an_object_over_several_lines_is_not_one_event() -> None:
    decoded = DECODER.decode(msgspec.json.format(body(fix(1)), indent=1), lines=True)
    assert not decoded.events
    assert len(decoded.rejections) == 5


@pytest.mark.parametrize("as_lines", [False, True])
def test_a_bad_event_costs_its_neighbours_nothing(as_lines: bool) -> None:
    bad = fix(2) | {"vehicle": 7}
    content = lines(fix(1), bad, fix(3)) if as_lines else body(fix(1), bad, fix(3))
    decoded = DECODER.decode(content, lines=as_lines)
    assert names(decoded) == ["f1", "f3"]
    (rejection,) = decoded.rejections
    assert rejection.index == 1
    assert rejection.reason == "Expected `str`, got `int`"
    assert rejection.path == "$.vehicle"
    assert rejection.raw == body(bad)


FAULTS: dict[str, tuple[bytes, str, str | None]] = {
    "missing field": (b'{"fix_id":"a"}', "missing required field `at`", "$"),
    "nested": (body(fix(1, venue={"lat": "x"})), "Expected `float`", "$.venue.lat"),
    "not an object": (b"42", "Expected `object`", "$"),
    "naive time": (body(fix(1) | {"at": "2026-01-01T10:00:00"}), "timezone", "$.at"),
    "empty id": (body(fix(1) | {"fix_id": ""}), "id is empty", "$.fix_id"),
    "long id": (body(fix(1) | {"fix_id": "x" * 256}), "longer than 255 characters", "$.fix_id"),
    "decimal too precise": (body(fix(1, price="0.1234567890123456789")), "decimal", "$.price"),
    "decimal too large": (body(fix(1, price="1e30")), "decimal", "$.price"),
    "decimal not a number": (body(fix(1, price="NaN")), "decimal", "$.price"),
    "time before the year 1 in UTC": (body(fix(1) | {"at": "0001-01-01T00:00:00+05:00"}), "time", "$.at"),
    "time after 9999 in UTC": (
        body(fix(1, venue={"lat": 1, "opened": "9999-12-31T23:59:59-05:00"})),
        "time",
        "$.venue",
    ),
    "invalid UTF-8": (body(fix(1)).replace(b"f1", b"\xff\xfe"), "UTF-8", None),
    "too deep": (b'{"x":' + b"[" * 2000 + b"]" * 2000 + b"}", "nested too deeply", None),
    "too large": (body(fix(1, vehicle="v" * 5000)), "the limit is 4096", None),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("form", ["single", "lines"])
def test_a_fault_is_told_with_its_reason_path_and_bytes(name: str, form: str) -> None:
    raw, reason, path = FAULTS[name]
    decoded = DECODER.decode(raw, lines=form == "lines")
    (rejection,) = decoded.rejections
    assert not decoded.events
    assert not decoded.malformed
    assert reason in rejection.reason
    assert rejection.path == path
    assert rejection.raw == raw


NOT_JSON = {
    "empty": b"",
    "cut": body(fix(1))[:-1],
    "trailing": body(fix(1)) + b" x",
    "NaN": body(fix(1))[:-1] + b',"price":NaN}',
    "cut after a bad field": b'{"fix_id":1, ',
    "lone surrogate": body(fix(1)).replace(b"f1", b"\\ud800"),
    "cut array": b"[" + body(fix(1)),
    "array too deep": b"[" * 5000 + b"]" * 5000,
    "a form": b"fix_id=1&vehicle=2",
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_no_json_is_one_dead_letter(name: str) -> None:
    decoded = DECODER.decode(NOT_JSON[name])
    assert decoded.malformed
    assert [rejection.raw for rejection in decoded.rejections] == [NOT_JSON[name]]


def test_the_last_of_two_equal_keys_wins() -> None:
    assert names(DECODER.decode(body(fix(1))[:-1] + b',"fix_id":"f2"}')) == ["f2"]


def test_a_large_event_in_a_larger_array_is_rejected_alone() -> None:
    decoded = DECODER.decode(body(fix(1), fix(2, vehicle="v" * 5000), fix(3)))
    assert names(decoded) == ["f1", "f3"]
    assert [rejection.index for rejection in decoded.rejections] == [1]


@pytest.mark.parametrize("content", [b"[" + b",".join([b"{}"] * 51) + b"]", body(*map(fix, range(51)))])
def test_too_many_events_refuse_the_body(content: bytes) -> None:
    with pytest.raises(TooLarge, match="51 events; the limit is 50"):
        DECODER.decode(content)


def test_a_raw_stream_takes_any_bytes() -> None:
    assert [event.data for event in RAW.decode(b"\xff{").events] == [b"\xff{"]
    assert [event.data for event in RAW.decode(b"a\r\n\nb\n", lines=True).events] == [b"a", b"b"]
    assert RAW.decode(b"").malformed
    assert [rejection.index for rejection in RAW.decode(b"a\n" + b"b" * 5000, lines=True).rejections] == [1]


def test_a_class_whose_id_may_be_missing_still_needs_one() -> None:
    class Loose(Event, id="name"):
        name: str | None = None

    decoded = BodyDecoder(Loose, event_bytes_max=100, events_max=5).decode(b'[{}, {"name": "x"}]')
    assert [rejection.path for rejection in decoded.rejections] == ["$.name"]
    assert [event.name for event in decoded.events] == ["x"]


def test_times_come_out_aware() -> None:
    (event,) = DECODER.decode(body(fix(1))).events
    assert event.at == datetime.fromisoformat("2026-01-01T10:00:00+00:00")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
GOOD = st.builds(fix, st.integers(0, 99), st.text(max_size=5))
BODIES = st.one_of(
    st.binary(max_size=200),
    st.lists(JSON | GOOD, max_size=5).map(msgspec.json.encode),
    st.lists((JSON | GOOD).map(msgspec.json.encode) | st.binary(max_size=20), max_size=5).map(b"\n".join),
    st.tuples(GOOD.map(msgspec.json.encode), st.integers(0, 80), st.binary(max_size=3)).map(
        lambda cut: cut[0][: cut[1]] + cut[2] + cut[0][cut[1] :]
    ),
)


@given(BODIES, st.booleans())
def test_any_bytes_are_sorted_out_without_an_exception(content: bytes, as_lines: bool) -> None:
    for decoder in (DECODER, RAW):
        decoded = decoder.decode(content, lines=as_lines)
        assert len({rejection.index for rejection in decoded.rejections}) == len(decoded.rejections)
        if decoded.malformed:
            assert not decoded.events
            assert len(decoded.rejections) == 1


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Part(Record):
    colour: Colour


class Thing(Event):
    answer: Literal["yes", "no"] | None = None
    parts: list[Part] | None = None
    named: dict[str, Part] | None = None


@pytest.mark.parametrize(
    ("sent", "reason", "path"),
    [
        (b'{"answer":"maybe"}', "Invalid enum value 'maybe'; use one of 'no', 'yes'", "$.answer"),
        (
            b'{"parts":[{"colour":"blue"}]}',
            "Invalid enum value 'blue'; use one of 'red', 'green'",
            "$.parts[0].colour",
        ),
        (b'{"named":{"a":{"colour":"blue"}}}', "'blue'; use one of 'red', 'green'", "$.named[...].colour"),
    ],
)
def test_a_value_that_is_none_of_a_list_is_told_with_those_that_are(sent: bytes, reason: str, path: str) -> None:
    (rejection,) = BodyDecoder(Thing, event_bytes_max=1000, events_max=10).decode(sent).rejections
    assert reason in rejection.reason
    assert rejection.path == path
