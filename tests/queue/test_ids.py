"""The remembered ids, and how long they are remembered."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from penstock.queue.committer import to_us
from penstock.queue.ids import ASCII_CHARS_MAX, MARKS, OTHER_CHARS_MAX, RecentIds, short_ids
from tests.contracts.log import batch

HOUR_US = 3_600_000_000
START = datetime(2024, 1, 1, tzinfo=UTC)


def known(recent: RecentIds, number: int, at: datetime = START) -> bool:
    return bool(recent.sift({0: batch([number])}, {0: [0]}, to_us(at)).duplicates[0])


def test_exactly_the_last_ids_are_known() -> None:
    """With a limit of ten, the tenth last id is known and the eleventh last is not."""
    recent = RecentIds(10, HOUR_US)
    for number in range(100):
        recent.add({f"id-{number}": number}, to_us(START))
    assert [known(recent, number) for number in (89, 90, 99)] == [False, True, True]
    assert len(recent) == 10


def test_memory_is_bounded_by_the_limit_however_the_ids_come() -> None:
    """One at a time or thousands at once, no more ids than the limit are held, and there are few marks."""
    recent = RecentIds(5_000, HOUR_US)
    for number in range(20_000):
        recent.add({str(number): number}, to_us(START) + number * 1_000_000)
    recent.add({str(number): number for number in range(20_000, 40_000)}, to_us(START) + 20_000 * 1_000_000)
    assert len(recent) == len(recent._known) == 5_000
    assert len(recent._marks) <= 2 * MARKS


def test_sifting_remembers_nothing() -> None:
    """Only ids whose events became durable are known: a failed commit leaves no trace."""
    recent = RecentIds(10, HOUR_US)
    for _ in range(2):
        assert recent.sift({0: batch([1, 2])}, {0: [7, 8]}, to_us(START)).fresh == {"id-1": 7, "id-2": 8}


def test_a_known_id_is_not_counted_twice() -> None:
    """Adding an id again does not push out another one."""
    recent = RecentIds(3, HOUR_US)
    for _ in range(5):
        recent.add({"id-1": 1, "id-2": 2, "id-3": 3}, to_us(START))
    assert [known(recent, number) for number in (1, 2, 3)] == [True, True, True]


def test_an_event_from_the_past_does_not_make_others_old() -> None:
    """Age is measured from the newest event on, so a clock that steps back forgets nothing."""
    recent = RecentIds(10, HOUR_US)
    recent.add({"id-1": 1}, to_us(START))
    assert known(recent, 1, START - timedelta(days=30))
    assert not known(recent, 1, START + timedelta(hours=2))


def test_ids_that_came_before_take_what_room_is_left() -> None:
    """Read back newest first, the index fills from its end; of an id that occurs twice the latest position counts."""
    recent = RecentIds(5, HOUR_US)
    recent.add_older(["e", "d", "e"], [1, 2, 3], to_us(START), to_us(START))
    recent.add_older(["a", "b", "c", "d"], [5, 6, 7, 8], to_us(START) - 9, to_us(START) - 1)
    assert list(recent._order) == ["a", "b", "c", "d", "e"]
    assert recent._known == {"a": 5, "b": 6, "c": 7, "d": 2, "e": 3}
    recent.add_older(["z", "a"], [9, 9], to_us(START) - 99, to_us(START) - 50)
    assert len(recent) == len(recent._known) == sum(mark.count for mark in recent._marks) == 5
    assert "z" not in recent._known


LONG: dict[str, Callable[[int], str]] = {
    "ASCII": lambda number: f"{number:06}" + "x" * 249,
    "Latin-1": lambda number: f"{number:06}" + "\xe9" * 249,
    "outside of the BMP": lambda number: f"{number:06}" + "\U0001f600" * 249,
    "one character outside of the BMP": lambda number: f"{number:06}" + "x" * 90 + "\U0001f600",
    "few of them": lambda number: f"{number:06}" + "\U0001f600" * 10,
    "short": lambda number: f"key:till-7/{number:032x}/0",
}


@pytest.mark.parametrize("kind", LONG)
def test_an_id_takes_little_memory_whatever_its_characters(kind: str) -> None:
    """The text and its position; the rest of the 250 bytes is for the entries of the index."""
    recent, count = RecentIds(10_000, HOUR_US), 1_000
    ids = [LONG[kind](number) for number in range(count)]
    sifted = recent.sift({0: batch(range(count), ids=ids)}, {0: range(count)}, to_us(START))
    recent.add(sifted.fresh, to_us(START))
    assert len(recent) == count
    held = [*recent._known.items(), *((text, 0) for text in recent._order)]
    assert max(sys.getsizeof(text) + sys.getsizeof(position) for text, position in held) <= 180


@pytest.mark.parametrize("kind", LONG)
def test_a_long_id_is_known_whatever_it_comes_with(kind: str) -> None:
    """It is found alone, and beside short, long and missing ids; and no other id is."""
    recent = RecentIds(10, HOUR_US)
    mine, others = LONG[kind](1), [LONG[other](2) for other in LONG]
    recent.add(recent.sift({0: batch([1], ids=[mine])}, {0: [7]}, to_us(START)).fresh, to_us(START))
    sifted = recent.sift({0: batch(range(9), ids=[None, *others, mine, mine[:-1] + "y"])}, {0: range(9)}, to_us(START))
    assert (sifted.duplicates, sifted.originals) == ({0: [7]}, {0: [7]})
    assert recent.sift({0: batch([1], ids=[mine])}, {0: [8]}, to_us(START)).duplicates == {0: [0]}


def test_ids_are_held_as_they_are_up_to_a_length() -> None:
    """Nobody who cannot read the process's memory can compute the form of a longer one."""
    short = ["a" * ASCII_CHARS_MAX, "\xe9" * OTHER_CHARS_MAX, None, ""]
    assert short_ids(short) == short
    assert short_ids([*short, "a" * (ASCII_CHARS_MAX + 1)])[:4] == short
    for text in ("a" * (ASCII_CHARS_MAX + 1), "\xe9" * (OTHER_CHARS_MAX + 1)):
        assert len(str(short_ids([text])[0])) == 32
