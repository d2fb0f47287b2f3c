"""Bodies that no correct program sends, and the expected answer to each."""

from __future__ import annotations

import gzip
import zlib
from typing import NamedTuple

from hypothesis import strategies as st

MIB = 1024 * 1024
GOOD = b'{"at":"2026-01-01T00:00:00Z"}'


def thing(field: str, value: bytes) -> bytes:
    """Return a `Thing` with one more field, given as raw bytes."""
    return b'{"at":"2026-01-01T00:00:00Z","%b":%b}' % (field.encode(), value)


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


class Bad(NamedTuple):
    """A body for the stream `things`, the expected status, and words of the reason."""

    body: bytes
    code: str
    reason: str


MALFORMED, INVALID, LARGE = "malformed_body", "invalid_events", "too_large"
BAD = {
    "NaN": Bad(thing("number", b"NaN"), MALFORMED, "invalid character"),
    "Infinity": Bad(thing("number", b"Infinity"), MALFORMED, "invalid character"),
    "-Infinity": Bad(thing("number", b"-Infinity"), MALFORMED, "invalid character"),
    "NaN as a decimal": Bad(thing("price", b'"NaN"'), INVALID, "A decimal"),
    "sNaN in a dict": Bad(thing("prices", b'{"a":"sNaN"}'), INVALID, "A decimal"),
    "an integer of 10,000 digits": Bad(thing("whole", b"9" * 10_000), INVALID, "out of range"),
    "a float of 10,000 digits": Bad(thing("number", b"9" * 10_000), INVALID, "out of range"),
    "a decimal of 10,000 digits": Bad(thing("price", b"9" * 10_000), INVALID, "A decimal"),
    "an integer of 64 bits and one": Bad(thing("whole", b"9223372036854775808"), INVALID, "Expected `int` <="),
    "a float of 1e999": Bad(thing("number", b"1e999"), INVALID, "out of range"),
    "an integer of 1e999": Bad(thing("whole", b"1e999"), INVALID, "out of range"),
    "a decimal of 1e999999999": Bad(thing("price", b'"1e999999999"'), INVALID, "A decimal"),
    "an exponent of 10,000 digits": Bad(thing("number", b"1e" + b"9" * 10_000), INVALID, "out of range"),
    "a time past the year 9999 in UTC": Bad(b'{"at":"9999-12-31T23:59:59-12:00"}', INVALID, "9999"),
    "half of a surrogate pair": Bad(thing("text", b'"\\ud800 and more"'), MALFORMED, "surrogate"),
    "surrogates in the wrong order": Bad(thing("text", b'"\\udc00\\ud800"'), MALFORMED, "surrogate"),
    "a surrogate in UTF-8": Bad(thing("text", b'"\xed\xa0\x80"'), INVALID, "UTF-8"),
    "invalid UTF-8": Bad(thing("text", b'"\xff\xfe"'), INVALID, "UTF-8"),
    "10 levels": Bad(thing("matrix", nested(10)), INVALID, "Expected `float`"),
    "1,000 levels": Bad(thing("unknown", nested(1_000)), INVALID, "nested too deeply"),
    "100,000 levels": Bad(thing("unknown", nested(100_000)), INVALID, "nested too deeply"),
    "a body of 100,000 levels": Bad(nested(100_000), MALFORMED, "nested too deeply"),
    "objects of 100,000 levels, left open": Bad(b'{"a":' * 100_000, INVALID, "nested too deeply"),
    "nothing": Bad(b"", MALFORMED, "truncated or missing"),
    "white space": Bad(b" \n\t", MALFORMED, "truncated or missing"),
    "a byte order mark": Bad(b"\xef\xbb\xbf" + GOOD, MALFORMED, "invalid character"),
    "UTF-16": Bad(GOOD.decode().encode("utf-16"), MALFORMED, "invalid character"),
    "null": Bad(b"null", INVALID, "Expected `object`"),
    "a text": Bad(b'"a"', INVALID, "Expected `object`"),
    "one object too many": Bad(GOOD + GOOD, MALFORMED, "trailing characters"),
    "an array that is cut short": Bad(b"[" + GOOD + b",", MALFORMED, "truncated or missing"),
    "NaN in an array": Bad(b"[" + GOOD + b",NaN]", MALFORMED, "invalid character"),
    "50,001 events": Bad(b"[" + b"1," * 50_000 + b"1]", LARGE, "50001 events"),
    "an event of more than a MiB": Bad(thing("text", b'"%b"' % (b"x" * MIB)), INVALID, "the limit is 1048576"),
    "a body of more than 8 MiB": Bad(b"[" + b" " * 8 * MIB + b"]", LARGE, "8388608 bytes"),
}


def bomb(size: int) -> bytes:
    """Return `size` zeros as gzip, about a thousandth of that. Built from one repeated part; the end is left out."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    head, part = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH), 16 * MIB
    return head + (packer.compress(bytes(part)) + packer.flush(zlib.Z_FULL_FLUSH)) * (size // part)


def bad_gzip() -> dict[str, Bad]:
    whole = gzip.compress(GOOD)
    return {
        "no gzip at all": Bad(GOOD, MALFORMED, "not valid gzip"),
        "half of it": Bad(whole[: len(whole) // 2], MALFORMED, "truncated"),
        "a head only": Bad(whole[:10], MALFORMED, "truncated"),
        "a wrong checksum": Bad(whole[:-8] + bytes(4) + whole[-4:], MALFORMED, "not valid gzip"),
        "garbage behind it": Bad(whole + b"garbage", MALFORMED, "not valid gzip"),
        "zeros behind it": Bad(whole + bytes(100), MALFORMED, "not valid gzip"),
        "65 members": Bad(gzip.compress(b" ") * 64 + whole, MALFORMED, "64 members"),
        "gzip in gzip": Bad(gzip.compress(whole), MALFORMED, "invalid character"),
        "2 GB in 2 MB": Bad(bomb(2048 * MIB), LARGE, "8388608 bytes"),
        "nothing": Bad(b"", MALFORMED, "truncated or missing"),
    }


@st.composite
def mangled(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Return a body with some of its bytes changed, removed or doubled."""
    body = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(body)))
        end = min(len(body), start + draw(st.integers(0, 4)))
        body[start:end] = draw(st.one_of(st.binary(max_size=4), st.just(bytes(body[start:end]) * 2)))
    return bytes(body)


NUMBERS = st.sampled_from(
    [b"NaN", b"-Infinity", b"1e999", b"-0", b"9" * 400, b"0.1", b"1E+5", b"01", b"+1", b".5", b"7"]
)
TEXTS = st.one_of(
    st.text(max_size=8).map(lambda text: b'"%b"' % text.replace("\\", "").replace('"', "").encode(errors="replace")),
    st.sampled_from([b'"\\ud83d"', b'"\\u0000"', b'"\xff"', b'"2026-01-01T00:00:00Z"', b'"1.5"', b'"', b'"\n"']),
)
VALUES = st.recursive(
    NUMBERS | TEXTS | st.sampled_from([b"null", b"true", b"{}", nested(600)]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: b"[" + b",".join(items) + b"]"),
        inner.map(lambda item: b'{"a":%b,"a":%b}' % (item, item)),
    ),
    max_leaves=4,
)
FIELDS = ("at", "text", "whole", "number", "flag", "data", "day", "price", "uuid", "colour", "size", "seen", "place",
          "places", "names", "prices", "matrix", "tags", "other")  # fmt: skip
THINGS = st.one_of(st.just(GOOD), st.builds(thing, st.sampled_from(FIELDS), VALUES))
ORDERS = st.builds(
    lambda number, buyer: b'{"order":"%d","buyer":%b}' % (number, buyer), st.integers(0, 30), TEXTS | st.just(b'"b"')
)
LINES = st.lists(mangled(st.one_of(THINGS, ORDERS)).map(lambda line: line.replace(b"\n", b" ")), min_size=1, max_size=6)
