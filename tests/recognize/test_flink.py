"""The examples of Flink's page "Pattern Recognition", each with its rows and its documented result."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Event
from penstock.cep.finding import LIST_BOUNDS, find_matches
from penstock.cep.recognize import recognized

BEGIN = datetime(2011, 4, 1, 10, tzinfo=UTC)


class Ticker(Event, time="rowtime"):
    symbol: str
    rowtime: datetime
    price: int
    tax: int


def tickers(prices: list[int], step: timedelta = timedelta(seconds=1)) -> list[Ticker]:
    return [Ticker(symbol="ACME", rowtime=BEGIN + n * step, price=price, tax=1) for n, price in enumerate(prices)]


def came(body: str, prices: list[int], step: timedelta = timedelta(seconds=1)) -> list[dict[str, Any]]:
    """Return the emitted events, with times as the number of their row."""
    text = f"SELECT * FROM Ticker MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY rowtime {body}) MR"
    read = recognized("found", text, {"Ticker": Ticker}, LIST_BOUNDS)
    assert not read.faults, read.faults
    given = tickers(prices, step)
    matches = find_matches(read.search, given, until=given[-1].rowtime)  # a stream has no end
    events = [event for match in matches for event in read.select(match)]
    rows = [{name: getattr(event, name) for name in read.emits.__struct_fields__[1:]} for event in events]
    return [{k: (v - BEGIN) // step if isinstance(v, datetime) else v for k, v in row.items()} for row in rows]


FALL = """MEASURES START_ROW.rowtime AS start_tstamp, LAST(PRICE_DOWN.rowtime) AS bottom_tstamp,
    LAST(PRICE_UP.rowtime) AS end_tstamp
    ONE ROW PER MATCH AFTER MATCH SKIP TO LAST PRICE_UP
    PATTERN (START_ROW PRICE_DOWN+ PRICE_UP) WITHIN INTERVAL '1' DAY
    DEFINE PRICE_DOWN AS (LAST(PRICE_DOWN.price, 1) IS NULL AND PRICE_DOWN.price < START_ROW.price)
            OR PRICE_DOWN.price < LAST(PRICE_DOWN.price, 1),
        PRICE_UP AS PRICE_UP.price > LAST(PRICE_DOWN.price, 1)"""
AVERAGE = """MEASURES FIRST(A.rowtime) AS start_tstamp, LAST(A.rowtime) AS end_tstamp, AVG(A.price) AS avgPrice
    ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
    PATTERN (A+ B) WITHIN INTERVAL '1' DAY DEFINE A AS AVG(A.price) < 15"""
GREEDY = """MEASURES C.price AS lastPrice ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
    PATTERN (A B* C) WITHIN INTERVAL '1' DAY DEFINE A AS A.price > 10, B AS B.price < 15, C AS C.price > 12"""
DROP = """MEASURES C.rowtime AS dropTime, A.price - C.price AS dropDiff
    ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
    PATTERN (A B* C) WITHIN INTERVAL '1' HOUR DEFINE B AS B.price > A.price - 10, C AS C.price < A.price - 10"""
TOP = """MEASURES FIRST(A.price) AS startPrice, LAST(A.price) AS topPrice, B.price AS lastPrice ONE ROW PER MATCH
    PATTERN (A+ B) WITHIN INTERVAL '1' DAY
    DEFINE A AS LAST(A.price, 1) IS NULL OR A.price > LAST(A.price, 1), B AS B.price < LAST(A.price)"""
SUMS = """MEASURES SUM(A.price) AS sumPrice, FIRST(rowtime) AS startTime, LAST(rowtime) AS endTime ONE ROW PER MATCH
    {skip} PATTERN (A+ C) WITHIN INTERVAL '1' DAY DEFINE A AS SUM(A.price) < 30"""
ROWS = """MEASURES CLASSIFIER() AS variable ALL ROWS PER MATCH PATTERN ({pattern}) WITHIN INTERVAL '1' DAY
    DEFINE {define}"""

PRICES = [7, 9, 10, 5, 10, 7, 14]
EXAMPLES = [
    (FALL, [12, 17, 19, 21, 25, 18, 15, 14, 24, 25, 19], [(4, 7, 8)]),
    (AVERAGE, [12, 17, 13, 16, 25, 2, 4, 10, 15, 25, 25, 30], [(0, 3, 14.5), (5, 10, 13.5)]),
    (GREEDY, [10, 11, 12, 13, 14, 16], [(16,)]),
    (GREEDY.replace("B*", "B*?"), [10, 11, 12, 13, 14, 16], [(13,), (16,)]),
    (TOP, [10, 12, 13, 11], [(10, 13, 11)]),
    (SUMS.format(skip="AFTER MATCH SKIP PAST LAST ROW"), PRICES, [(26, 0, 3), (17, 4, 6)]),
    (SUMS.format(skip="AFTER MATCH SKIP TO NEXT ROW"), PRICES,
     [(26, 0, 3), (24, 1, 4), (25, 2, 5), (22, 3, 6), (17, 4, 6)]),
    (SUMS.format(skip="AFTER MATCH SKIP TO LAST A"), PRICES, [(26, 0, 3), (25, 2, 5), (17, 4, 6)]),
]  # fmt: skip


@pytest.mark.parametrize(("body", "prices", "expected"), EXAMPLES)
def test_an_example_of_the_page(body: str, prices: list[int], expected: list[tuple[Any, ...]]) -> None:
    assert [tuple(row.values()) for row in came(body, prices)] == expected


def test_what_is_exactly_within_the_time_counts() -> None:
    prices = [20, 17, 18, 11, 14, 9, 15, 14, 24, 1, 19]
    rows = came(DROP, prices, timedelta(minutes=20))
    assert [tuple(row.values()) for row in rows] == [(9, 14)]


VARIABLES = [
    ("A B+", "A AS A.price >= 10, B AS B.price > A.price AND SUM(price) < 100 AND SUM(B.price) < 80",
     [10, 15, 20, 31, 35], "ABBB"),
    ("A B+", "A AS A.price >= 10, B AS (LAST(B.price, 1) IS NULL OR B.price > LAST(B.price, 1)) AND "
     "(LAST(B.price, 2) IS NULL OR B.price > 2 * LAST(B.price, 2))", [10, 15, 20, 31, 35], "ABBB"),
    ("A B? C", "B AS B.price < 20, C AS LAST(price, 1) < C.price", [10, 15, 20], "ABC"),
    ("A B? C", "B AS B.price < 20, C AS LAST(price, 1) < C.price", [10, 20], "AC"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "define", "prices", "expected"), VARIABLES)
def test_rows_have_the_variables_of_the_page(pattern: str, define: str, prices: list[int], expected: str) -> None:
    rows = came(ROWS.format(pattern=pattern, define=define), prices)
    assert "".join(row["variable"] for row in rows) == expected


def test_skipping_to_the_first_row_of_the_match_is_refused() -> None:
    body = SUMS.format(skip="AFTER MATCH SKIP TO FIRST A")
    text = f"SELECT * FROM Ticker MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY rowtime {body}) MR"
    [fault] = recognized("found", text, {"Ticker": Ticker}, LIST_BOUNDS).faults
    assert "would find the same match again" in fault
