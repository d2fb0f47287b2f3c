"""Nothing fails on data: every operation, on the largest, smallest and strangest values of each type."""

from __future__ import annotations

import math
from itertools import product

import pyarrow as pa
import pytest

from penstock.core.filters import compiled

LEAST, MOST = -(2**63), 2**63 - 1
WHOLES = [LEAST, LEAST + 1, -1, 0, 1, MOST, None]
REALS = [-math.inf, -1.7976931348623157e308, -0.0, 0.0, 5e-324, 1.7976931348623157e308, math.inf, math.nan, None]
TEXTS = ["", "\0", "%", "\U0001f600" * 5_000, "a" * 70_000, "\u0130\u00df\ufb03", None]
TYPES: dict[str, tuple[pa.DataType, list[object]]] = {
    "i8": (pa.int8(), [-128, 127, None]),
    "u32": (pa.uint32(), [0, 2**32 - 1, None]),
    "i64": (pa.int64(), list(WHOLES)),
    "f32": (pa.float32(), [-3.4028234663852886e38, math.nan, math.inf, None]),
    "f64": (pa.float64(), list(REALS)),
    "s": (pa.string(), list(TEXTS)),
    "big": (pa.large_string(), list(TEXTS)),
    "coded": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", None]),
    "flag": (pa.bool_(), [True, False, None]),
}
TICKS: dict[str, pa.DataType] = {
    **{f"t_{unit}": pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")},
    **{f"l_{unit}": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    **{f"d_{unit}": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
    "date64": pa.date64(),
}


def batch() -> pa.RecordBatch:
    arrays = {name: pa.array(values, kind) for name, (kind, values) in TYPES.items()}
    ticks = pa.array(WHOLES, pa.int64())
    arrays |= {name: ticks.view(kind) for name, kind in TICKS.items()}
    arrays["date32"] = pa.array([-(2**31), -1, 0, 2**31 - 1, None], pa.int32()).view(pa.date32())
    arrays["dec"] = pa.array(["9" * 38, "-" + "9" * 38, "0", None], pa.string()).cast(pa.decimal128(38, 0))
    arrays["small"] = pa.array(["0." + "9" * 38, None], pa.string()).cast(pa.decimal128(38, 38))
    count = max(map(len, arrays.values()))
    return pa.RecordBatch.from_pydict({name: _repeated(array, count) for name, array in arrays.items()})


def _repeated(array: pa.Array, count: int) -> pa.Array:
    return array.take(pa.array([number % len(array) for number in range(count)]))


BATCH = batch()
NUMBERS = ["i8", "f32", "u32", "i64", "f64", "dec", "small", "0", "1.5", "9223372036854775807", "1e300", "NULL"]
MOMENTS = [name for name in TICKS if name[0] in "tl"]
SPANS = [name for name in TICKS if name.startswith("d_")]
DATE_UNITS = ("day", "week", "month", "quarter", "year")
CHOICES = ("least", "greatest", "coalesce", "nullif")
"""These return a value unchanged; all that compute return numbers or NULL."""
TEXTUAL = ["s", "big", "coded", "'\U0001f600'"]


def of_numbers() -> list[str]:
    expressions = []
    for one, other in product(NUMBERS[2:], NUMBERS[2:]):
        expressions += [f"{one} {sign} {other}" for sign in ("+", "-", "*", "/", "%", "=", "<", ">=")]
        expressions += [f"{name}({one}, {other})" for name in ("greatest", "coalesce", "nullif")]
    for one in NUMBERS:
        expressions += [f"{name}({one})" for name in ("abs", "floor", "ceil", "round", "-", "least")]
        expressions += [f"round({one}, 15)", f"{one} IN (0, 1, 1.5, 1e40, NULL, 9223372036854775807)"]
    return expressions + [
        f"distance({one}, {other}, {other}, {one})" for one, other in product(NUMBERS[:7], NUMBERS[:7])
    ]


def of_texts() -> list[str]:
    expressions = []
    for one in TEXTUAL:
        expressions += [f"{name}({one})" for name in ("lower", "upper", "trim", "length")]
        expressions += [
            f"substr({one}, 4611686018427387903, 4611686018427387903)",
            f"replace({one}, 'a', '{'b' * 99}')",
        ]
        expressions += [f"{one} {sign} {other}" for other in TEXTUAL for sign in ("||", "<", "=")]
        expressions += [
            f"{one} LIKE '%a%_b'",
            f"{one} ILIKE '_%'",
            f"contains({one}, '')",
            f"{one} IN ('a', 'b', 'c', NULL)",
        ]
    return expressions


def of_times() -> list[str]:
    expressions = []
    for one in MOMENTS:
        expressions += [f"{name}({one})" for name in ("year", "month", "day", "hour", "minute", "second", "dayofweek")]
        expressions += [f"date_trunc('{unit}', {one})" for unit in ("second", "minute", "hour", *DATE_UNITS)]
        expressions += [f"{one} {sign} INTERVAL '3000000 days'" for sign in "+-"] + [f"{one} - {one[0]}_us"]
        expressions += [f"{one} + {other}" for other in SPANS] + [f"{one} > {one[0]}_ns"]
    for one in ("date32", "date64"):
        expressions += [f"{name}({one})" for name in ("year", "month", "day", "dayofweek")]
        expressions += [f"date_trunc('{unit}', {one})" for unit in DATE_UNITS]
        expressions += [f"{one} {sign} INTERVAL '3000000 days'" for sign in "+-"] + [
            f"{one} - date32",
            f"{one} <= date32",
        ]
    return expressions + [f"{one} < {other}" for one, other in product(SPANS, SPANS)]


FAMILIES = {
    "numbers": of_numbers(),
    "texts": of_texts(),
    "times": of_times(),
    "all": [f"{name} IS NULL" for name in BATCH.schema.names],
}


@pytest.mark.parametrize("expressions", FAMILIES.values(), ids=FAMILIES)
def test_an_operation_gives_a_value_for_every_row_and_no_error(expressions: list[str]) -> None:
    for expression in expressions:
        column = compiled(BATCH.schema, None, f"{expression} AS made").project(BATCH).column(0)
        column.validate(full=True)
        assert len(column) == BATCH.num_rows, expression
        if pa.types.is_floating(column.type) and expression.split("(")[0] not in CHOICES:
            assert all(value is None or math.isfinite(value) for value in column.to_pylist()), expression
