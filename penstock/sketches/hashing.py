"""Hash functions for sketches, in plain Python, with the same results on every machine and in every process.

`coin` replaces random numbers: a sketch's draws are derived from its seed and its input so far, so a replay repeats
them. DataSketches Bloom filters use `xxhash64`, and Spark's Bloom filters use `murmur32`.
"""

from __future__ import annotations

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_PRIME1, _PRIME2, _PRIME3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME4, _PRIME5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def coin(seed: int, *parts: int) -> int:
    """Return 64 pseudo-random bits, derived from the seed and the sketch's position with the finalizer of
    splitmix64."""
    state = seed & MASK64
    for part in parts:
        state = (state ^ (part & MASK64)) + _GOLDEN & MASK64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK64
        state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK64
        state ^= state >> 31
    return state


def xxhash64(data: bytes, seed: int) -> int:
    """Return the XXH64 hash of a sketch's item."""
    length, start = len(data), 0
    if length >= 32:
        start = length & ~31
        state = _xxhash_stripes(data, start, seed)
    else:
        state = seed + _PRIME5
    state = state + length & MASK64
    while start + 8 <= length:
        state ^= _xxhash_round(0, int.from_bytes(data[start : start + 8], "little"))
        state = (_xxhash_rotate(state, 27) * _PRIME1 + _PRIME4) & MASK64
        start += 8
    if start + 4 <= length:
        state ^= int.from_bytes(data[start : start + 4], "little") * _PRIME1 & MASK64
        state = (_xxhash_rotate(state, 23) * _PRIME2 + _PRIME3) & MASK64
        start += 4
    for byte in data[start:]:
        state = _xxhash_rotate(state ^ byte * _PRIME5 & MASK64, 11) * _PRIME1 & MASK64
    state = (state ^ state >> 33) * _PRIME2 & MASK64
    state = (state ^ state >> 29) * _PRIME3 & MASK64
    return state ^ state >> 32


def _xxhash_stripes(data: bytes, end: int, seed: int) -> int:
    """Return the part of XXH64 that processes 32 bytes at a time, in four lanes."""
    lanes = [seed + _PRIME1 + _PRIME2 & MASK64, seed + _PRIME2 & MASK64, seed & MASK64, seed - _PRIME1 & MASK64]
    for start in range(0, end, 8):
        lane = start >> 3 & 3
        lanes[lane] = _xxhash_round(lanes[lane], int.from_bytes(data[start : start + 8], "little"))
    turns = zip(lanes, (1, 7, 12, 18), strict=True)
    state = sum(_xxhash_rotate(lane, by) for lane, by in turns) & MASK64
    for lane in lanes:
        state = ((state ^ _xxhash_round(0, lane)) * _PRIME1 + _PRIME4) & MASK64
    return state


def _xxhash_rotate(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & MASK64


def _xxhash_round(state: int, value: int) -> int:
    state = state + value * _PRIME2 & MASK64
    return (state << 31 | state >> 33) * _PRIME1 & MASK64


def murmur32(data: bytes, seed: int) -> int:
    """Return the signed 32-bit Murmur3 hash as Spark's sketches compute it: each trailing byte is mixed in
    separately."""
    state = seed & MASK32
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        state = _murmur_mix(state, int.from_bytes(data[start : start + 4], "little"))
    for byte in data[whole:]:
        state = _murmur_mix(state, byte - 256 if byte > 127 else byte)
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & MASK32
    state = (state ^ state >> 13) * 0xC2B2AE35 & MASK32
    return signed32(state ^ state >> 16)


def _murmur_mix(state: int, value: int) -> int:
    value = value * 0xCC9E2D51 & MASK32
    value = (value << 15 | value >> 17) * 0x1B873593 & MASK32
    state ^= value
    return ((state << 13 | state >> 19) * 5 + 0xE6546B64) & MASK32


def signed32(value: int) -> int:
    value &= MASK32
    return value - (1 << 32) if value >> 31 else value


def signed64(value: int) -> int:
    value &= MASK64
    return value - (1 << 64) if value >> 63 else value
