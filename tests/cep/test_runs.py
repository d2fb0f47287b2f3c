"""The partial matches of a key, with an index and without one."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest

from penstock.cep.memory import PartialMatch
from penstock.cep.runs import SPARE, Runs
from tests.cep.letters import second


def partial(wait: int = 0, past: int = 0, due_s: int = 0, path: tuple[int, ...] = (0, 1)) -> PartialMatch:
    return PartialMatch(wait, past, second(0), None, second(due_s) if due_s else None, None, path)


MAKERS: list[Callable[[int], PartialMatch]] = [
    lambda number: partial(path=(0, number)),
    lambda number: partial(path=(0, 1, 0, 2 + number)),
    lambda number: partial(wait=number),
    lambda number: partial(past=number),
    lambda number: partial(due_s=number),
]


@pytest.mark.parametrize("few", [0, 16])
@pytest.mark.parametrize("make", MAKERS)
def test_the_order_of_age_does_not_depend_on_where_partial_matches_stand(
    make: Callable[[int], PartialMatch], few: int
) -> None:
    for numbers in (range(8), range(7, -1, -1)):
        with patch("penstock.cep.runs.FEW", few):
            runs, by_age = Runs(map(make, numbers)), list[PartialMatch]()
            while (oldest := runs.oldest()) is not None:
                runs.drop(oldest)
                by_age.append(oldest)
        assert by_age == [make(number) for number in range(8)]


def test_partial_matches_that_are_gone_are_not_kept_by_the_index() -> None:
    with patch("penstock.cep.runs.FEW", 0):
        runs = Runs([partial(due_s=1)])
        for number in range(10 * SPARE):
            run = partial(due_s=2 + number)
            runs.add(run)
            runs.drop(run)
    assert runs.lookup is not None
    assert len(runs.lookup.times._heap) <= 2 * (len(runs) + 1) + SPARE
