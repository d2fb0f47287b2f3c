"""Damage to files, for tests that want all of it: a flipped bit at any byte, an end at any length.

A `Scene` is a set of closed files and the result of reading them undamaged. `sweep` damages one file at a time, lets
the reader read, and requires one of two outcomes: an error of ours, or exactly the original result.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.core.errors import StorageError

Damage = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Scene:
    """Files by name, as they are in `directory`, and the reader: a function of the directory."""

    directory: Path
    files: dict[str, bytes]
    read: Callable[[Path], object]

    def damage(self, name: str, data: bytes) -> None:
        """Put the directory into its first state, except for one file. Files that are as they should be stay: in a
        sweep of all bytes, new ones would take as long as reading."""
        for path in self.directory.iterdir():
            if path.name not in self.files:
                path.unlink()
        for other, sound in self.files.items():
            _put(self.directory / other, data if other == name else sound)


def _put(path: Path, data: bytes) -> None:
    """Give a file this content, in place."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        size = os.fstat(file).st_size
        if size != len(data) or os.pread(file, size, 0) != data:
            os.ftruncate(file, os.pwrite(file, data, 0))
    finally:
        os.close(file)


def take(directory: Path, target: Path, names: Iterable[str], read: Callable[[Path], object]) -> Scene:
    """Copy files out of a directory, which may be in use, into a separate scene."""
    target.mkdir()
    return Scene(target, {name: (directory / name).read_bytes() for name in names}, read)


def flips(size: int, count: int | None = None) -> Iterator[tuple[str, Damage]]:
    """Yield one flipped bit at each byte, or at `count` random ones. Prints the random seed."""
    seed = random.randrange(2**32)
    print(f"seed of the flips: {seed}")
    chance = random.Random(seed)
    places = range(size) if count is None else sorted(chance.sample(range(size), min(count, size)))
    for place in places:
        bit = 1 << chance.randrange(8)
        yield f"byte {place} with bits {bit:#04x} flipped", partial(_flip, place, bit)


def _flip(at: int, bit: int, data: bytes) -> bytes:
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def cuts(size: int, count: int | None = None) -> Iterator[tuple[str, Damage]]:
    """Yield an end at each length below the full one, or at `count` random ones."""
    seed = random.randrange(2**32)
    print(f"seed of the cuts: {seed}")
    lengths = range(size) if count is None else sorted(random.Random(seed).sample(range(size), min(count, size)))
    return cut_to(lengths)


def cut_to(lengths: Iterable[int]) -> Iterator[tuple[str, Damage]]:
    """Yield an end at each of these lengths."""
    return ((f"cut to {length} bytes", partial(_cut, length)) for length in lengths)


def _cut(length: int, data: bytes) -> bytes:
    return data[:length]


def sweep(scene: Scene, name: str, damages: Iterable[tuple[str, Damage]]) -> Counter[str]:
    """Read after each damage to the file `name`; returns the number of each outcome. Anything but an error of ours, or
    the original result, is an assertion that names the damage. A damaged file must also not be changed by reading."""
    scene.damage(name, scene.files[name])
    expected = scene.read(scene.directory)
    outcomes: Counter[str] = Counter()
    for what, damage in damages:
        damaged = damage(scene.files[name])
        scene.damage(name, damaged)
        outcome = _outcome(scene, expected)
        assert outcome is not None, f"{name}, {what}: read as something else, without an error"
        assert (scene.directory / name).read_bytes() == damaged, f"{name}, {what}: reading changed the file"
        outcomes[outcome] += 1
    return outcomes


def _outcome(scene: Scene, expected: object) -> str | None:
    try:
        content = scene.read(scene.directory)
    except StorageError as error:
        return type(error).__name__
    return "same" if content == expected else None
