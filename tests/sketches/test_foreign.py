"""Sketches that other programs have written: the smaller forms of HLL, earlier versions of theta, KLL of whole
numbers."""

from __future__ import annotations

import struct
import sys

import datasketches
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sketches import Hll, Kll, Theta

MAX_THETA = 2**63 - 1


def hll(kind: datasketches.tgt_hll_type, lg_k: int, n: int) -> datasketches.hll_sketch:
    sketch = datasketches.hll_sketch(lg_k, kind)
    for number in range(n):
        sketch.update(f"item {number}")
    return sketch


@pytest.mark.parametrize("kind", [datasketches.HLL_4, datasketches.HLL_6, datasketches.HLL_8], ids=["4", "6", "8"])
@pytest.mark.parametrize("n", [0, 1, 7, 100, 3_000, 200_000])
@pytest.mark.parametrize("lg_k", [4, 8, 14])
@pytest.mark.parametrize("form", ["serialize_compact", "serialize_updatable"])
def test_an_hll_of_any_width_is_read_as_what_it_is(
    kind: datasketches.tgt_hll_type, n: int, lg_k: int, form: str
) -> None:
    """It continues as the one of eight bits would, which has the same registers."""
    read, plain = Hll.from_bytes(bytes(getattr(hll(kind, lg_k, n), form)())), Hll(lg_k)
    for number in range(n):
        plain.add(f"item {number}")
    assert read.count() == plain.count()
    for number in range(n, n + 500):
        read.add(f"item {number}")
        plain.add(f"item {number}")
    assert read.count().value == pytest.approx(plain.count().value)
    merged = Hll(lg_k)
    merged.merge(read)
    assert Hll.from_bytes(read.to_bytes()).count() == read.count()


def test_the_list_of_what_does_not_fit_four_bits_is_of_the_size_that_the_package_makes() -> None:
    for lg_k in range(4, 22):
        union = datasketches.hll_union(lg_k)
        union.update(hll(datasketches.HLL_8, lg_k, 1 << max(lg_k - 2, 5)))
        data = bytes(union.get_result(datasketches.HLL_4).serialize_updatable())
        Hll.from_bytes(data)
        if lg_k < 15:
            assert data[7] & 3 == 2, "it has its registers"


@pytest.mark.parametrize("kind", [datasketches.HLL_4, datasketches.HLL_6], ids=["4", "6"])
def test_a_small_hll_that_is_cut_or_changed_is_refused_or_read_but_never_trusted(
    kind: datasketches.tgt_hll_type,
) -> None:
    data = bytes(hll(kind, 8, 20_000).serialize_updatable())
    for size in range(len(data)):
        with pytest.raises(ValueError, match="the bytes are not a valid"):
            Hll.from_bytes(data[:size])
    with pytest.raises(ValueError, match="the bytes are not a valid"):
        Hll.from_bytes(data + b"\0")
    for place in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[place] ^= change
            try:
                Hll.from_bytes(bytes(changed)).count()
            except ValueError:
                continue


def hashes(n: int) -> tuple[list[int], int, int]:
    """Return the hashes of a theta sketch of n items, its theta, and the hash of the seed."""
    sketch = datasketches.update_theta_sketch(12)
    for number in range(n):
        sketch.update(f"item {number}")
    kept = sketch.compact(True)
    (seed,) = struct.unpack_from("<H", kept.serialize(), 6)
    return list(kept), kept.theta64, seed


def earlier(version: int, n: int) -> bytes:
    """Return a theta sketch in one of the first two versions of the format: always ordered, and the first without the
    hash of its seed. (DataSketches: ForwardCompatibility.java.)"""
    items, theta, seed = hashes(n)
    longs = 3 if version == 1 or theta < MAX_THETA else 2 if items else 1
    head = struct.pack("<BBBHBH", longs, version, 3, 0, 0, seed if version == 2 else 0)
    rest = b"" if longs == 1 else struct.pack("<II", len(items), 0)
    return head + rest + (struct.pack("<Q", theta) if longs == 3 else b"") + struct.pack(f"<{len(items)}Q", *items)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("n", [0, 1, 50, 4_096, 50_000])
def test_a_theta_of_an_earlier_version_is_read(version: int, n: int) -> None:
    plain = Theta()
    for number in range(n):
        plain.add(f"item {number}")
    read = Theta.from_bytes(earlier(version, n))
    assert read.count().value == pytest.approx(plain.count().value, rel=0.05)
    assert n > 4_096 or read.count().value == n
    assert read.intersection(plain).count().value == pytest.approx(read.count().value, rel=0.05)
    read.add("another")
    assert Theta.from_bytes(read.to_bytes()).count() == read.count()


@pytest.mark.parametrize("version", [1, 2])
def test_a_theta_of_an_earlier_version_that_is_cut_is_refused(version: int) -> None:
    data = earlier(version, 5_000)
    for size in (*range(33), len(data) - 8, len(data) - 1):
        with pytest.raises(ValueError, match="the bytes are not a valid"):
            Theta.from_bytes(data[:size])
    with pytest.raises(ValueError, match="the bytes are not a valid"):
        Theta.from_bytes(struct.pack("<BBBHBH", 3, version, 3, 0, 0, 0) + struct.pack("<II", 2**31, 0) + bytes(64))


def unmarked(sketch: Kll) -> bytes:
    """Return the bytes of a KLL as other programs write them: without a mark of their item type."""
    data = sketch.to_bytes()
    return data[:7] + b"\0" + data[8:]


def of(*values: float) -> Kll:
    sketch = Kll()
    for value in values:
        sketch.add(value)
    return sketch


def longs(*values: int) -> bytes:
    """Return the bytes of a KLL of whole numbers, as Spark's `kll_sketch_agg_bigint` writes them."""
    data = unmarked(of(*values))
    if len(values) < 2:
        return data[:8] + struct.pack(f"<{len(values)}q", *values)
    return data[:24] + struct.pack(f"<{2 + len(values)}q", min(values), max(values), *values)


SAMPLES = [
    (),
    (7,),
    (-7,),
    (0, 1, 2, 3),
    (-5, 5),
    (1_700_000_000_000_000_000, 3),
    (1_700_000_000_000_000_000, 1_700_000_000_000_000_001),
    (2**52,),
    (4_611_686_018_427_387_904, 4_607_182_418_800_017_408),
    (-(2**63), 2**63 - 1),
    (2**53 + 1, 1),
]


@pytest.mark.parametrize("values", SAMPLES, ids=str)
def test_a_kll_of_whole_numbers_is_read_as_such_if_that_is_said(values: tuple[int, ...]) -> None:
    read = Kll.from_bytes(longs(*values), items="long")
    assert read.n == len(values)
    if values:
        assert (read.quantile(0).value, read.quantile(1).value) == (float(min(values)), float(max(values)))


@pytest.mark.parametrize("values", SAMPLES[1:], ids=str)
def test_a_kll_of_whole_numbers_is_never_read_unless_that_is_said(values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"items='double'.* items='long'"):
        Kll.from_bytes(longs(*values))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30))
def test_no_kll_of_whole_numbers_is_taken_for_one_of_doubles(values: list[int]) -> None:
    """This includes random ids of 63 bits and times in nanoseconds, whose bits are those of ordinary doubles."""
    with pytest.raises(ValueError, match="items='long'"):
        Kll.from_bytes(longs(*values))
    assert Kll.from_bytes(longs(*values), items="long").quantile(1).value == float(max(values))


@given(st.lists(st.floats(allow_nan=False), max_size=30))
def test_a_kll_of_doubles_is_read_if_that_is_said_and_ours_without_it(values: list[float]) -> None:
    sketch = of(*values)
    assert Kll.from_bytes(sketch.to_bytes()) == sketch == sketch.copy()
    if any(abs(value) >= sys.float_info.min for value in values):
        assert Kll.from_bytes(unmarked(sketch), items="double") == sketch


@pytest.mark.parametrize("values", [(), (-1.5, -2.5), (-3.0, -1.0, 4.0)], ids=str)
def test_a_kll_that_can_only_be_one_of_doubles_needs_no_word(values: tuple[float, ...]) -> None:
    """Its least item is above others if they are read as whole numbers; or it is empty."""
    assert Kll.from_bytes(unmarked(of(*values))) == of(*values)


def test_a_kll_of_doubles_is_not_read_as_one_of_whole_numbers_or_the_other_way_round() -> None:
    with pytest.raises(ValueError, match="'double' or 'long'"):
        Kll.from_bytes(of(1.5).to_bytes(), items="float")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="marked as doubles; pass items='double'"):
        Kll.from_bytes(of(1.5, 2.5).to_bytes(), items="long")
    with pytest.raises(ValueError, match="integers need items='long'"):
        Kll.from_bytes(longs(0, 17, 2_000), items="double")
    with pytest.raises(ValueError, match="could be doubles"):
        Kll.from_bytes(unmarked(of(1.5, 2.5)))


def test_a_kll_in_a_state_has_the_bytes_that_it_always_had() -> None:
    """So digests of stored states stay unchanged."""
    sketch = of(1.5, 2.5)
    assert sketch.pack() == msgspec.msgpack.encode(({"seed": 0}, unmarked(sketch)))
    assert Kll.unpack(sketch.pack()) == sketch
