"""A sketch in a handler's state has the same bytes for any batch boundaries, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sketches.data import CASES, filled

CUT, MERGE = "cut", "merge"
STEPS = st.lists(
    st.one_of(
        st.lists(st.integers(0, 5_000), max_size=60),
        st.just(CUT),
        st.tuples(st.just(MERGE), st.lists(st.integers(0, 5_000), max_size=60)),
    ),
    max_size=12,
)


def played(name: str, steps: list[Any], *, cuts: bool, asks: bool = False) -> Any:
    """Return a sketch after some steps; with cuts, it is written and read again at each of them."""
    case = CASES[name]
    sketch: Any = case.make()
    for step in steps:
        if step == CUT:
            sketch = type(sketch).unpack(sketch.pack()) if cuts else sketch
        elif isinstance(step, tuple):
            other = filled(name, step[1])
            sketch.merge(type(other).unpack(other.pack()) if cuts else other)
        else:
            for number in step:
                case.add(sketch, number)
        if asks:
            sketch.to_bytes()
            repr(sketch)
    return sketch


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=40)
@given(steps=STEPS)
def test_writing_and_reading_it_anywhere_changes_nothing(name: str, steps: list[Any]) -> None:
    straight = played(name, steps, cuts=False)
    assert played(name, steps, cuts=True).pack() == straight.pack()
    assert type(straight).unpack(straight.pack()).pack() == straight.pack()


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=20)
@given(steps=STEPS)
def test_asking_it_changes_nothing(name: str, steps: list[Any]) -> None:
    assert played(name, steps, cuts=False, asks=True).pack() == played(name, steps, cuts=False).pack()


@pytest.mark.parametrize("name", CASES)
def test_a_long_stream_comes_to_the_same_whether_it_is_cut_or_not(name: str) -> None:
    numbers = [number * number % 4_999 for number in range(6_000)]
    steps = [part for start in range(0, 6_000, 37) for part in (numbers[start : start + 37], CUT)]
    assert played(name, steps, cuts=True).pack() == filled(name, numbers).pack()


@pytest.mark.parametrize("name", CASES)
def test_merging_leaves_the_other_one_as_it_was(name: str) -> None:
    one, other = filled(name, range(100)), filled(name, range(50, 300))
    before = other.pack()
    one.merge(other)
    assert other.pack() == before


@pytest.mark.parametrize("name", ["Hll", "Theta", "CountMin", "RangeCounts", "Bloom"])
def test_what_is_a_function_of_all_items_is_merged_to_the_same_answers_in_any_order(name: str) -> None:
    parts = [filled(name, range(start, start + 700, 3)) for start in (0, 500, 1_000)]
    wholes = []
    for turn in ((0, 1, 2), (2, 0, 1)):
        whole = parts[turn[0]].copy()
        for index in turn[1:]:
            whole.merge(parts[index])
        wholes.append(whole)
    assert wholes[0].to_bytes() == wholes[1].to_bytes()


def digest() -> str:
    """Return a digest of all sketches after the same numbers."""
    whole = b"".join(filled(name, [number * 7_919 % 5_003 for number in range(1_500)]).pack() for name in CASES)
    return blake2b(whole).hexdigest()


def test_another_process_with_another_hash_seed_comes_to_the_same_bytes() -> None:
    code = "from tests.sketches.test_determinism import digest; print(digest())"
    env = os.environ | {"PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == digest()
