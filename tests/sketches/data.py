"""Streams to summarise: uniform, skewed, and known hard ones; and a sketch of each kind to add them to."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from penstock.sketches import (
    Bloom,
    CountMin,
    Hll,
    Kll,
    RangeCounts,
    Reservoir,
    Sketch,
    Stratified,
    TDigest,
    Theta,
    TopK,
)

NUMBERS: dict[str, Callable[[Random, int], list[float]]] = {
    "uniform": lambda random, n: [random.random() for _ in range(n)],
    "skewed": lambda random, n: [random.paretovariate(0.5) for _ in range(n)],
    "rising": lambda random, n: [float(number) for number in range(n)],
    "falling": lambda random, n: [float(n - number) for number in range(n)],
    "from both ends": lambda random, n: [float(number if number % 2 else -number) for number in range(n)],
    "few values": lambda random, n: [float(random.randrange(4)) for _ in range(n)],
    "one value": lambda random, n: [7.0] * n,
    "ever larger": lambda random, n: [10.0 ** (10 * number // n) * random.random() for number in range(n)],
}

ITEMS: dict[str, Callable[[Random, int], list[str]]] = {
    "uniform": lambda random, n: [f"item {random.randrange(n)}" for _ in range(n)],
    "skewed": lambda random, n: [f"item {int(random.paretovariate(0.6))}" for _ in range(n)],
    "all different": lambda random, n: [f"item {number}" for number in range(n)],
    "digits": lambda random, n: [str(random.randrange(n)) for _ in range(n)],
    "like integers": lambda random, n: [
        random.choice(("{}", "0{}", " {} ", "+{}", "-{}", "1_{}", "\u0663{}")).format(random.randrange(n))
        for _ in range(n)
    ],
    "all the same": lambda random, n: ["item"] * n,
    "frequent ones first": lambda random, n: (
        [f"item {number * number * 40 // (n * n)}" for number in range(n // 2)]
        + [f"rare {number}" for number in range(n // 2)]
    ),
    "frequent ones last": lambda random, n: (
        [f"rare {number}" for number in range(n // 2)] + [f"item {number % 20}" for number in range(n // 2)]
    ),
}


class Case(NamedTuple):
    """A kind of sketch: how one is created, small enough to overflow soon, and how a number is added to it."""

    make: Callable[[], Sketch]
    add: Callable[[Any, int], None]


def _add_text(sketch: Any, number: int) -> None:
    sketch.add(f"item {number}")


CASES: dict[str, Case] = {
    "Hll": Case(lambda: Hll(10), _add_text),
    "Hll of few registers": Case(lambda: Hll(4), _add_text),
    "Theta": Case(lambda: Theta(5), _add_text),
    "Kll": Case(lambda: Kll(8, seed=3), lambda sketch, number: sketch.add(float(number))),
    "TDigest": Case(lambda: TDigest(10), lambda sketch, number: sketch.add(float(number))),
    "TopK": Case(lambda: TopK(6), _add_text),
    "TopK of int": Case(lambda: TopK(6, int), lambda sketch, number: sketch.add(number)),
    "CountMin": Case(lambda: CountMin(0.2, 0.9), _add_text),
    "RangeCounts": Case(lambda: RangeCounts(8, 0.2, 0.9), lambda sketch, number: sketch.add(number % 256)),
    "Bloom": Case(lambda: Bloom(20, 0.1, seed=5), _add_text),
    "Reservoir": Case(lambda: Reservoir(5, seed=5), _add_text),
    "Reservoir of float": Case(lambda: Reservoir(5, 6, float), lambda sketch, number: sketch.add(number / 7)),
    "Stratified": Case(
        lambda: Stratified(3, 2, seed=1), lambda sketch, number: sketch.add(f"key {number % 5}", f"item {number}")
    ),
}


def filled(name: str, numbers: Any) -> Any:
    sketch = CASES[name].make()
    for number in numbers:
        CASES[name].add(sketch, number)
    return sketch
