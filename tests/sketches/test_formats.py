"""The bytes of sketches are those of Apache DataSketches, and other bytes are refused."""

from __future__ import annotations

import math
import struct
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import datasketches
import msgspec
import pytest

from penstock.sketches import (
    Bloom,
    CountMin,
    Estimate,
    Hll,
    Kll,
    RangeCounts,
    Reservoir,
    Stratified,
    TDigest,
    Theta,
    TopK,
)
from penstock.sketches.hashing import murmur32, xxhash64
from penstock.sketches.kll import rank_error
from tests.sketches.data import CASES, filled


@pytest.mark.parametrize("n", [0, 1, 2, 150, 201, 5_000])
def test_a_kll_is_read_by_the_package_and_reads_what_it_writes(n: int) -> None:
    mine, theirs = Kll(200, seed=2), datasketches.kll_doubles_sketch(200)
    for number in range(n):
        mine.add(number * 7_919 % 5_003)
        theirs.update(float(number * 7_919 % 5_003))
    read = datasketches.kll_doubles_sketch.deserialize(mine.to_bytes())
    again = Kll.from_bytes(theirs.serialize(), items="double")
    assert read.n == again.n == mine.n == n
    if n:
        assert read.get_quantile(0.5, True) == mine.quantile(0.5).value
        assert theirs.get_quantile(0.5, True) == again.quantile(0.5).value
        assert (read.get_min_value(), read.get_max_value()) == (mine.quantile(0).low, mine.quantile(1).high)


@pytest.mark.parametrize("k", [8, 100, 200, 3_000])
def test_the_error_of_a_kll_is_the_published_one(k: int) -> None:
    assert rank_error(k) == pytest.approx(datasketches.kll_doubles_sketch.get_normalized_rank_error(k, False), rel=1e-9)


def test_a_kll_goes_on_from_what_the_package_wrote() -> None:
    theirs = datasketches.kll_doubles_sketch(100)
    for number in range(20_000):
        theirs.update(float(number))
    mine = Kll.from_bytes(theirs.serialize(), seed=4, items="double")
    for number in range(20_000, 40_000):
        mine.add(number)
    assert abs(mine.quantile(0.5).value - 20_000) <= 3 * mine.error * 40_000
    assert datasketches.kll_doubles_sketch.deserialize(mine.to_bytes()).n == 40_000


@pytest.mark.parametrize("n", [0, 1, 6, 5_000])
def test_a_top_k_is_read_by_the_package_and_reads_what_it_writes(n: int) -> None:
    mine, theirs = TopK(96), datasketches.frequent_strings_sketch(7)
    for number in range(n):
        item = f"é {number % (1 + number % 150)}"
        mine.add(item)
        theirs.update(item)
    read = datasketches.frequent_strings_sketch.deserialize(mine.to_bytes())
    again = TopK.from_bytes(theirs.serialize())
    assert read.total_weight == again.total == mine.total == n
    for item, count in mine.top(96):
        assert (read.get_lower_bound(item), read.get_upper_bound(item)) == (count.low, count.high)
    for item, count in again.top(96):
        assert (theirs.get_lower_bound(item), theirs.get_upper_bound(item)) == (count.low, count.high)


def test_the_same_counts_are_the_same_bytes_in_whatever_order_they_came() -> None:
    one, other = TopK(), TopK()
    for number in range(100):
        one.add(f"item {number % 30}")
        other.add(f"item {(99 - number) % 30}")
    assert one.to_bytes() == other.to_bytes()


def test_a_t_digest_is_read_by_the_package_and_reads_what_it_writes() -> None:
    mine, theirs = TDigest(100), datasketches.tdigest_double(100)
    for number in range(7_777):
        mine.add(number)
        theirs.update(float(number))
    assert datasketches.tdigest_double.deserialize(mine.to_bytes()).get_total_weight() == 7_777
    assert abs(TDigest.from_bytes(theirs.serialize()).quantile(0.5).value - 7_777 / 2) <= 80


def test_a_theta_sketch_is_of_the_hashes_that_the_package_has() -> None:
    theirs, mine = datasketches.update_theta_sketch(8), Theta(8)
    for number in range(3_000):
        theirs.update(number)
        mine.add(number)
    theirs.trim()
    assert mine.to_bytes() == theirs.compact(True).serialize(compress=True)


@pytest.mark.parametrize(
    ("text", "seed", "hashed"),
    [
        ("", 0, 0xEF46DB3751D8E999),
        ("a", 0, 0xD24EC4F1A98C6E5B),
        ("abc", 0, 0x44BC2CF5AD770999),
        ("Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
    ],
)
def test_xxhash_gives_what_is_published(text: str, seed: int, hashed: int) -> None:
    assert xxhash64(text.encode(), seed) == hashed


def test_murmur_of_whole_words_gives_what_is_published() -> None:
    assert murmur32(b"", 1) & 0xFFFFFFFF == 0x514E28B7
    assert murmur32(b"test", 0) & 0xFFFFFFFF == 0xBA6BD213


def test_an_item_goes_in_as_text_or_as_a_number_and_these_are_different() -> None:
    for sketch in (Hll(), Theta()):
        for item in ("1", 1, "1", 1):
            sketch.add(item)
        assert round(sketch.count().value) == 2
    counts, seen = CountMin(), Bloom()
    for item in ("1", "01", "01", 1, 1, 1):
        counts.add(item)
        seen.add(item)
    assert [counts.count(item).value for item in ("1", "01", 1)] == [1, 2, 3]
    assert {counts.count(item).value for item in (" 1", "+1", "-1", "1_0", "\u0661")} == {0}
    assert [item in seen for item in ("1", "01", 1, " 1", "+1")] == [True, True, True, False, False]


@pytest.mark.parametrize("cls", [Hll, Theta, CountMin, Bloom])
def test_an_item_that_a_hash_cannot_tell_from_others_is_refused(cls: Any) -> None:
    for item in ((1 << 63) - 1, -(1 << 63)):
        cls().add(item)
    for item in (1 << 63, -(1 << 63) - 1, 1 << 128):
        with pytest.raises(ValueError, match=f"{item} does not fit in 64 bits: convert it to a string"):
            cls().add(item)
    for other, name in ((1.5, "float"), (2.0, "float"), (b"a", "bytes"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"items must be str or int, not {name}: convert them to strings"):
            cls().add(other)


def test_a_count_min_refuses_what_its_counters_cannot_hold() -> None:
    full, other = CountMin(), CountMin()
    full.add("a", (1 << 53) - 1)
    full.add("a")
    other.add("b")
    assert full.count("a").value == 1 << 53
    more: list[Callable[[], None]] = [lambda: full.add("a"), lambda: full.merge(other), lambda: other.merge(full)]
    for call in more:
        with pytest.raises(ValueError, match="a count-min sketch can be at most 9,007,199,254,740,992"):
            call()
    assert (full.total, full.count("a").value, other.total) == (1 << 53, 1 << 53, 1)


def answers(sketch: Any) -> list[Estimate]:
    """Return the sketch's answers to each kind of question."""
    if isinstance(sketch, Kll | TDigest):
        quantiles, ranks = map(sketch.quantile, (0, 0.01, 0.5, 0.99, 1)), map(sketch.rank, (-1.0, 3.0, 1e9))
        return [*quantiles, *ranks] if sketch.n else []
    if isinstance(sketch, TopK):
        return [sketch.count(3 if sketch.of.type is int else "item 3"), *(count for _, count in sketch.top())]
    if isinstance(sketch, CountMin):
        return [sketch.count("item 3"), sketch.inner(sketch)]
    if isinstance(sketch, RangeCounts):
        return [sketch.count(1, 7), sketch.count(0, (1 << sketch.bits) - 1)]
    if isinstance(sketch, Stratified):
        return [stratum.count(bool) for stratum in sketch.strata.values()]
    return [sketch.count(bool) if isinstance(sketch, Reservoir) else sketch.count()]


def changed(whole: bytes, draw: Random) -> bytes:
    """Return the same bytes with some of them changed, most of those in the head, or cut short."""
    data = bytearray(whole[: draw.randrange(len(whole) + 1)] if draw.random() < 0.25 else whole)
    for _ in range(draw.randrange(4) if data else 0):
        place = draw.randrange(min(len(data), draw.choice((8, 40, len(data)))))
        data[place] = draw.choice((0, 127, 128, 255, draw.randrange(256)))
    return bytes(data)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("n", [0, 1, 3, 40, 300])
def test_bytes_that_were_changed_are_refused_or_read_as_a_sketch_that_works(name: str, n: int) -> None:
    """A sketch that is read answers within its bounds, can be written and read again, and can be added to."""
    draw, sketch = Random(f"{name} {n}"), filled(name, range(n))
    for _ in range(300):
        data = changed(sketch.to_bytes(), draw)
        try:
            read = type(sketch).from_bytes(data, **sketch._outside())
        except ValueError:
            continue
        assert answers(read.copy()) == answers(read), data
        if read.size_bytes_max < 1 << 20:  # a declared large size may be valid, and takes that memory
            CASES[name].add(read, 3)
        assert [answer for answer in answers(read.copy()) if not answer.low <= answer.value <= answer.high] == [], data


def full(items: list[float], **head: int) -> bytes:
    """Return the image of a KLL of some items on one level, of 200 at most."""
    given = {"least_k": 200, "count": 1} | head
    start = struct.pack("<4BHBBQHBBI", 5, 1, 15, 0, 200, 8, 0, len(items), given["least_k"], given["count"], 0, 200 - 2)
    return start + struct.pack(f"<{2 + len(items)}d", 1.0, 2.0, *items)


def frequent(counts: tuple[int, ...], items: tuple[int, ...], total: int, error: int) -> bytes:
    head = struct.pack("<6BHIIqq", 4, 1, 10, 3, 3, 0, 0, len(items), 0, total, error)
    return head + struct.pack(f"<{2 * len(items)}q", *counts, *items)


def patched(name: str, n: int, place: int, *values: int) -> bytes:
    """Return the image of a sketch of `n` numbers, with other bytes at an offset."""
    data = bytearray(filled(name, range(n)).to_bytes())
    data[place : place + len(values)] = values
    return bytes(data)


NAN = tuple(struct.pack("<d", math.nan))
EMPTY_OF_100_MIB = struct.pack("<3BBIIB3x", 2, 1, 18, 1, 0, 100 << 15, 4)
NOT_QUITE: dict[str, tuple[Any, bytes, str]] = {
    "a KLL whose k was nothing": (Kll, full([1.0, 2.0], least_k=0), "k was 0 and is 200"),
    "a KLL whose k was more": (Kll, full([1.0, 2.0], least_k=201), "k was 201 and is 200"),
    "a KLL of something that is no number": (Kll, full([1.0, math.nan]), "a value is NaN"),
    "a KLL of more than its most": (Kll, full([1.0, 3.0]), "an item is not between 1.0 and 2.0"),
    "an error below zero": (TopK, frequent((1, 2), (7, 8), 3, -1), "its error is -1"),
    "more items than came": (TopK, frequent((1, 2), (7, 8), 2, 0), "its total is 2 for 3 items"),
    "a counter of nothing": (TopK, frequent((1, 0), (7, 8), 3, 0), "or a counter below 1"),
    "an item twice": (TopK, frequent((1, 2), (7, 7), 3, 0), "an item has two counters"),
    "an HLL that is empty and has items": (Hll, patched("Hll", 3, 5, 4), "it is marked as empty, but has 3 items"),
    "an HLL whose list has gaps": (Hll, patched("Hll", 2, 8, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 2), "its list has gaps"),
    "an HLL that has counted nothing": (Hll, patched("Hll", 300, 8, *NAN), "its sums are"),
    "an HLL with other free registers": (Hll, patched("Hll", 300, 32, 1, 0), "it does not have 1 free registers"),
    "a t-digest of something that is no number": (TDigest, patched("TDigest", 40, 32, *NAN), "a value is not a number"),
    "a t-digest of nothing": (TDigest, patched("TDigest", 40, 40, *bytes(8)), "a weight is not a valid count"),
    "a counter that is no number": (CountMin, patched("CountMin", 40, 32, *NAN), "a counter is not a valid count"),
    "more sizes than a number has bits": (
        RangeCounts, msgspec.msgpack.encode((1, [CountMin().to_bytes()] * 63)), "63 sizes",
    ),
    "sizes without the bytes for them": (
        RangeCounts, msgspec.msgpack.encode((1, [EMPTY_OF_100_MIB] * 8)), "more than 16777216 counters",
    ),
    "sizes of other numbers": (
        RangeCounts, msgspec.msgpack.encode((1, [filled("CountMin", range(n)).to_bytes() for n in (1, 2)])),
        "its sizes do not contain the same numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("cls", "data", "said"), NOT_QUITE.values(), ids=NOT_QUITE)
def test_an_image_that_no_sketch_can_have_made_is_refused(cls: Any, data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cls.from_bytes(data, **({"of": int} if cls is TopK else {}))


def test_images_as_they_should_be_are_read() -> None:
    """The refused ones differ from these."""
    assert Kll.from_bytes(full([1.0, 2.0]), items="double").quantile(0.5).value == 1.0
    assert TopK.from_bytes(frequent((1, 2), (7, 8), 3, 0), int).count(8).value == 2


def test_an_empty_filter_takes_no_memory_until_something_is_added() -> None:
    """Its image has 24 bytes, and may be of one that takes half a gigabyte."""
    large = struct.pack("<4BHHQII", 3, 1, 21, 4, 7, 0, 0, 1 << 26, 0)
    tracemalloc.start()
    try:
        read = Bloom.from_bytes(large)
        assert ("item" in read, read.count().value, read.to_bytes()) == (False, 0, large)
        read.merge(Bloom.from_bytes(large))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert read.size_bytes_max == 32 + (1 << 29)


@pytest.mark.parametrize("cls", [Hll, Theta, Kll, TDigest, TopK, CountMin, Bloom, Reservoir, Stratified])
def test_bytes_of_something_else_are_refused_in_a_sentence(cls: Any) -> None:
    for data in (b"", b"nonsense", bytes(100), struct.pack("<8B", 2, 1, 99, 0, 0, 0, 0, 0) + bytes(92)):
        with pytest.raises(ValueError, match="the bytes are not a valid"):
            cls.from_bytes(data)


BAD: list[tuple[Any, str]] = [
    (lambda: Kll(3), "k must be from 8 to 65535, not 3"),
    (lambda: TDigest(3), "k must be from 10 to 65535, not 3"),
    (lambda: TopK(0), "size must be from 1 to 786,432, not 0"),
    (lambda: TopK(10, of=bytes), "the items of a sketch must be of type str, int or float, not bytes"),  # type: ignore[arg-type]
    (lambda: CountMin(0), "error and confidence must be between 0 and 1, not 0 and 0.99"),
    (lambda: Bloom(0), "a filter needs at least 1 item and a rate between 0 and 1, not 0 and 0.01"),
    (lambda: Reservoir(0), "a sample must have at least 1 item, not 0"),
    (lambda: Stratified(5, 0), "strata_max must be 1 or more, not 0"),
    (lambda: TopK().add("a", 0), "a weight must be 1 or more, not 0"),
    (lambda: CountMin().add("a", -1), "a weight must be 1 or more, not -1"),
    (lambda: TopK().add("a" * 1_025), "an item can be at most 1024 bytes long, but this one is 1025"),
    (lambda: TopK(of=int).add(1 << 63), "9223372036854775808 does not fit in 64 bits"),
    (lambda: Kll().add(float("nan")), "NaN cannot be added, because it has no rank"),
    (lambda: Kll().add("nan"), "NaN cannot be added, because it has no rank"),  # type: ignore[arg-type]
    (lambda: TDigest().add(float("inf")), "a t-digest cannot contain inf"),
    (lambda: Kll().quantile(1.5), "a rank must be from 0 to 1, not 1.5"),
    (lambda: Bloom(10).merge(Bloom(20)), "two filters can be merged only if they have the same parameters"),
    (
        lambda: CountMin(0.1).merge(CountMin(0.2)),
        "two count-min sketches can be merged only if they have the same error",
    ),
]


@pytest.mark.parametrize(("call", "said"), BAD, ids=[said for _, said in BAD])
def test_what_makes_no_sense_is_refused(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
