"""Validation of bytes before they are passed to the `datasketches` package. The package trusts the sizes in headers: an
HLL sketch with a modified header made it write outside its memory. Bytes that are rejected here never reach the
package."""

from __future__ import annotations

import math
import struct

import numpy
from numpy.typing import NDArray

from penstock.sketches.base import damaged

COUNTERS_MAX = 1 << 24
"""Maximum number of counters in a count-min sketch that is read from bytes. That many counters take 128 MiB."""
COUNT_MAX = 2.0**256
"""Maximum value of a counter. It is limited because a join multiplies counters and adds up the products."""
_HLL_4, _HLL_6, _HLL_8 = 0, 1, 2
_EXCEPTION = 15
"""The value of a four-bit register whose actual value is in the list of exceptions."""
_SLOT = (1 << 26) - 1
_LG_ASIDE = dict(zip(range(4, 22), (2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 7, 8, 9, 10, 11, 12, 13), strict=True))
"""The initial size of the list of exceptions, by the size of the sketch (both as powers of two). An updatable sketch
contains the list even if it is empty."""
_LIST, _SET, _REGISTERS = 0, 1, 2
_EMPTY, _COMPACT = 4, 8
_LEAST_AT = 6
"""Offset of the minimum register value in an HLL header. The value is 0 except in some sketches merged by Java."""
LG_LIST = 3
"""The first items of an HLL sketch are stored in order of arrival, in a list with eight places (2^3)."""
_RANKS = bytes(range(64))
_COUNT_MIN_EMPTY = 1
CENTROID = numpy.dtype([("mean", "<f8"), ("weight", "<u8")])
WEIGHT_MAX = 1 << 53
"""Maximum total weight of a t-digest or a count-min sketch: a float can represent all integers up to this number
exactly."""


def _require(holds: bool, kind: str, why: str) -> None:
    """Raise an error that the bytes of a sketch are damaged, unless a check of them holds."""
    if not holds:
        raise damaged(kind, why)


def as_hll_8(data: bytes) -> bytes:
    """Convert an HLL sketch with four-bit or six-bit registers to an updatable sketch with eight-bit registers. Other
    bytes are returned unchanged. The result must be checked with `check_hll`."""
    kind = "HLL sketch"
    if len(data) < 8 or data[7] >> 2 & 3 not in (_HLL_4, _HLL_6):
        return data
    narrow, mode, lg_k = data[7] >> 2 & 3, data[7] & 3, data[3]
    typed = bytes((mode | _HLL_8 << 2,))
    if mode != _REGISTERS:
        return data[:7] + typed + data[8:]
    _require(len(data) >= 40 and 4 <= lg_k <= 21, kind, f"{len(data)} bytes for 2^{lg_k} registers")
    registers = _six_bit_registers(data, lg_k) if narrow == _HLL_6 else _four_bit_registers(data, lg_k)
    free = struct.pack("<II", registers.count(0), 0)
    flags = data[5] & ~_COMPACT
    return data[:4] + bytes((0, flags, 0)) + typed + data[8:32] + free + registers


def _six_bit_registers(data: bytes, lg_k: int) -> bytes:
    size = ((3 << lg_k) >> 2) + 1
    _require(len(data) == 40 + size, "HLL sketch", f"{len(data)} bytes for 2^{lg_k} registers of six bits")
    bits = numpy.unpackbits(numpy.frombuffer(data, numpy.uint8, offset=40), bitorder="little")[: 6 << lg_k]
    return bytes(numpy.packbits(bits.reshape(-1, 6), axis=1, bitorder="little").reshape(-1))


def _four_bit_registers(data: bytes, lg_k: int) -> bytes:
    """Return the registers. Each register is stored relative to the minimum; values that do not fit in four bits are in
    the list at the end."""
    kind, size = "HLL sketch", 1 << lg_k >> 1
    (count,) = struct.unpack_from("<I", data, 36)
    places = count if data[5] & _COMPACT else 1 << (min(data[4], lg_k) if count else _LG_ASIDE[lg_k])
    _require(len(data) == 40 + size + 4 * places, kind, f"{len(data)} bytes for 2^{lg_k} registers, {count} exceptions")
    packed = numpy.frombuffer(data, numpy.uint8, size, 40)
    above = numpy.stack((packed & 15, packed >> 4), axis=1).reshape(-1)
    listed = numpy.frombuffer(data, "<u4", offset=40 + size)
    listed = listed[listed > 0]
    slots = listed & _SLOT
    aside = above == _EXCEPTION
    _require(
        len(listed) == count == aside.sum() == len(set(slots.tolist())), kind, f"it does not have {count} exceptions"
    )
    _require(bool((slots < 1 << lg_k).all()) and bool(aside[slots].all()), kind, "an exception is wrong")
    registers = above + data[_LEAST_AT] % 64
    registers[slots] = listed >> 26
    return registers.astype(numpy.uint8).tobytes()


def check_hll(data: bytes) -> None:
    """Check an HLL_8 sketch, which Spark also produces: its size must match its header, and its registers must be in
    range."""
    kind = "HLL sketch"
    _require(len(data) >= 8, kind, f"{len(data)} bytes")
    _, version, family, lg_k, lg_table, flags, count, mode = data[:8]
    _require((version, family) == (1, 7) and 4 <= lg_k <= 21, kind, f"family {family}, version {version}, 2^{lg_k}")
    _require(mode >> 2 & 3 == _HLL_8, kind, "its type is unknown")
    start = {_LIST: 8, _SET: 12, _REGISTERS: 40}.get(mode & 3, 0)
    _require(start > 0 and data[0] * 4 == start and len(data) >= start, kind, "its header does not match its mode")
    if mode & 3 == _REGISTERS:
        _require(len(data) == start + (1 << lg_k), kind, f"{len(data)} bytes for 2^{lg_k} registers")
        _check_registers(data[:start], data[start:])
        return
    if mode & 3 == _SET:
        (count,) = struct.unpack_from("<I", data, 8)
    _require(not (flags & _EMPTY and count), kind, f"it is marked as empty, but has {count} items")
    _check_coupons(data[start:], count, lg_table, bool(flags & _COMPACT), LG_LIST if mode & 3 == _LIST else lg_k)


def _check_registers(head: bytes, registers: bytes) -> None:
    """Check that registers are in range, and that the sums and the number of minimum registers in the header are
    plausible."""
    kind = "HLL sketch"
    _require(not registers.translate(None, _RANKS), kind, "a register is out of range")
    *sums, free = struct.unpack_from("<3dI", head, 8)
    _require(all(0 <= total < math.inf for total in sums), kind, f"its sums are {sums}")
    _require(
        registers.count(0) == (0 if head[_LEAST_AT] else free) <= free <= len(registers),
        kind,
        f"it does not have {free} free registers",
    )


def _check_coupons(data: bytes, count: int, lg_table: int, compact: bool, lg_table_max: int) -> None:
    """Check the items of a small HLL sketch: a list or a table of integers, in which 0 means an empty place."""
    kind = "HLL sketch"
    _require(len(data) % 4 == 0 and lg_table <= max(LG_LIST, lg_table_max), kind, f"a table of 2^{lg_table}")
    words = struct.unpack(f"<{len(data) // 4}I", data)
    _require(len(words) == (count if compact else 1 << lg_table), kind, f"{len(words)} places for {count} items")
    _require(len(words) - words.count(0) == count <= 1 << lg_table, kind, f"it does not contain {count} items")
    _require(lg_table_max > LG_LIST or 0 not in words[:count], kind, "its list has gaps")


def check_theta(data: bytes) -> None:
    """Check that a theta sketch contains as many hashes as its header says."""
    kind = "theta sketch"
    _require(len(data) >= 8, kind, f"{len(data)} bytes")
    longs, version, family, bits, sized = data[0] & 63, *data[1:5]
    _require(family == 3 and version in (1, 2, 3, 4) and 1 <= longs <= 3, kind, f"family {family}, version {version}")
    _require(version > 1 or longs == 3, kind, f"version 1 with a header of {longs} longs")
    if version == 4:
        _require(1 <= sized <= 4 and len(data) >= 8 * longs + sized, kind, "it is truncated")
        count = int.from_bytes(data[8 * longs : 8 * longs + sized], "little")
        _require(1 <= bits <= 63 and count * bits <= 8 * (len(data) - 8 * longs - sized), kind, f"{count} hashes")
    elif longs > 1:
        _require(len(data) >= 8 * longs, kind, "it is truncated")
        (count,) = struct.unpack_from("<I", data, 8)
        _require(len(data) >= 8 * (longs + count), kind, f"{count} hashes in {len(data)} bytes")


def check_tdigest(data: bytes) -> None:
    """Check that a t-digest contains as many centroids as its header says, that its values are numbers, and that the
    sum of its weights is valid."""
    kind = "t-digest"
    _require(len(data) >= 8 and data[1:3] == b"\x01\x14", kind, "its header is wrong")
    if data[0] == 2:
        _require(len(data) >= 32, kind, "it is truncated")
        centroids, buffered = struct.unpack_from("<II", data, 8)
        _require(len(data) == 32 + 16 * centroids + 8 * buffered, kind, f"{centroids} centroids, {buffered} buffered")
        ends, rest = numpy.frombuffer(data, "<f8", 2, 16), numpy.frombuffer(data, "<f8", offset=32 + 16 * centroids)
        kept = numpy.frombuffer(data, CENTROID, centroids, 32)
        weights = kept["weight"].tolist()
        _require(
            all(map(_are_finite_numbers, (ends, rest, kept["mean"]))) and ends[0] <= ends[1],
            kind,
            "a value is not a number",
        )
        _require(min(weights, default=1) >= 1 and sum(weights) <= WEIGHT_MAX, kind, "a weight is not a valid count")


def _are_finite_numbers(values: NDArray[numpy.float64]) -> bool:
    return bool(numpy.isfinite(values).all())


def check_count_min(data: bytes) -> int:
    """Check that a count-min sketch contains as many counters as its header says, and that their values are valid.
    Returns the number of counters."""
    kind = "count-min sketch"
    _require(len(data) >= 16 and data[:3] == b"\x02\x01\x12", kind, "its header is wrong")
    buckets, hashes = struct.unpack_from("<IB", data, 8)
    _require(buckets >= 3 and hashes >= 1 and buckets * hashes <= COUNTERS_MAX, kind, f"{hashes} rows of {buckets}")
    size = 16 if data[3] & _COUNT_MIN_EMPTY else 24 + 8 * buckets * hashes
    _require(len(data) == size, kind, f"{len(data)} bytes for {hashes} rows of {buckets}")
    if len(data) > 16:
        counts = numpy.frombuffer(data, "<f8", offset=16)  # the first is the total
        _require(bool(counts.min() >= 0 and counts.max() <= COUNT_MAX), kind, "a counter is not a valid count")
    return int(buckets * hashes)
