"""Filters are shared: the same texts give the same object, and the number of cached filters is bounded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.errors import BadExpression
from penstock.core.filters import compiled, filter
from penstock.core.filters.limits import CACHE_FILTERS

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])
BATCH = pa.RecordBatch.from_pylist([{"a": 1, "s": "x"}, {"a": 2}], SCHEMA)


def test_the_same_texts_and_schema_give_the_same_object() -> None:
    again = pa.schema([("a", pa.int64()), ("s", pa.string())])
    assert compiled(SCHEMA, "a = 1", "s", key=["a"]) is compiled(again, "a = 1", "s", key=("a",))


@pytest.mark.parametrize("other", [("a = 2", "s", ("a",)), ("a = 1", "a", ("a",)), ("a = 1", "s", ()), (None, "s", ())])
def test_another_text_or_key_gives_another(other: tuple[str | None, str, tuple[str, ...]]) -> None:
    where, select, key = other
    assert compiled(SCHEMA, "a = 1", "s", key=["a"]) is not compiled(SCHEMA, where, select, key=key)


def test_a_column_of_another_type_gives_another() -> None:
    other = pa.schema([("a", pa.float64()), ("s", pa.string())])
    assert compiled(SCHEMA, "a = 1", None) is not compiled(other, "a = 1", None)


def test_threads_that_ask_at_the_same_time_get_one_object() -> None:
    with ThreadPoolExecutor(8) as pool:
        filters = list(pool.map(lambda _: compiled(SCHEMA, "a = 17 OR s = 'threads'", None), range(64)))
    assert len(set(filters)) == 1


def test_what_is_forgotten_goes_on_working_and_what_is_used_is_kept() -> None:
    first, used = compiled(SCHEMA, "a = 1", None), compiled(SCHEMA, "a = 2", None)
    for number in range(CACHE_FILTERS):
        compiled(SCHEMA, f"a <> {number}", None)
        assert compiled(SCHEMA, "a = 2", None) is used
    assert len(filter._cache) == CACHE_FILTERS
    assert compiled(SCHEMA, "a = 1", None) is not first
    assert first.mask(BATCH).to_pylist() == [True, False]


def test_a_bad_text_is_refused_each_time_and_not_remembered() -> None:
    before = len(filter._cache)
    for _ in range(2):
        with pytest.raises(BadExpression):
            compiled(SCHEMA, "b = 1", None)
    assert len(filter._cache) == before


def limited(claims: dict[str, Any]) -> filter.Filter:
    return compiled(SCHEMA, "s IN (claim('groups'))", None, claims=claims)


def test_readers_of_whom_the_same_is_known_share_a_filter() -> None:
    """Only claims that the condition uses matter: each reader has a name, and some tokens a number."""
    one = limited({"groups": ["x"], "sub": "ann", "sid": 1})
    assert one is limited({"groups": ["x"], "sub": "bob", "sid": 2})
    assert one is not limited({"groups": ["y"], "sub": "ann", "sid": 1})


@pytest.mark.parametrize("pair", [(1, "1"), (1, True), (1, 1.0), (["x"], "x"), (["x", "y"], ["x, y"]), (None, "None")])
def test_readers_of_whom_different_things_are_known_do_not(pair: tuple[Any, Any]) -> None:
    one, other = ({"groups": value} for value in pair)
    filters = [compiled(SCHEMA, "claim('groups') IS NULL", None, claims=claims) for claims in (one, other)]
    assert filters[0] is not filters[1]


@pytest.mark.parametrize("value", ["\ud800", ["\ud800"]])
def test_a_claim_that_is_no_text_shows_nothing(value: Any) -> None:
    assert limited({"groups": value}).mask(BATCH).to_pylist() == [False, False]
