"""Sketches in views: functions of columns that Spark lacks. What it has (`hll_sketch_agg`, `theta_sketch_agg`,
`kll_sketch_agg_double`, `count_min_sketch`, `approx_top_k_accumulate` and their merges) is used as it is; the functions
here ask what those make, with bounds, and make what they do not.

An aggregate that is written in Python cannot run in a streaming view, Spark refuses it. Here that is `tdigest`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.internal import InternalFunction
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from penstock.sketches import Estimate, Hll, Kll, TDigest, Theta, TopK
from penstock.sketches.spark import SparkBloom, SparkCountMin

ColumnOrName = Column | str
KllItems = Literal["double", "long"]
BLOOM_ITEMS_MAX, BLOOM_BITS_MAX = 4_000_000, 67_108_864
"""The most that Spark allows by itself."""
_ESTIMATE = pa.struct([(name, pa.float64()) for name in Estimate.__struct_fields__])


def hll_count(sketch: ColumnOrName) -> Column:
    """The number of different items in a sketch that `hll_sketch_agg` made, with its bounds."""
    return _asked(lambda data: _told(Hll.from_bytes(data).count()), _ESTIMATE, sketch)


def theta_count(sketch: ColumnOrName) -> Column:
    """The number of different items in a sketch of `theta_sketch_agg`, or in a union, intersection or difference of
    such, with its bounds."""
    return _asked(lambda data: _told(Theta.from_bytes(data).count()), _ESTIMATE, sketch)


def kll_quantile(sketch: ColumnOrName, rank: float, *, items: KllItems) -> Column:
    """A quantile of what `kll_sketch_agg_double` (`items="double"`) or `kll_sketch_agg_bigint` (`items="long"`) made,
    with its bounds. NULL if it has seen nothing. The bytes are alike, so `items` has no default."""
    return _asked(lambda data: _of_some(Kll.from_bytes(data, items=items), Kll.quantile, rank), _ESTIMATE, sketch)


def kll_rank(sketch: ColumnOrName, value: float, *, items: KllItems) -> Column:
    """Which share of what `kll_sketch_agg_double` (`items="double"`) or `kll_sketch_agg_bigint` (`items="long"`) has
    seen is not above a value, with its bounds."""
    return _asked(lambda data: _of_some(Kll.from_bytes(data, items=items), Kll.rank, value), _ESTIMATE, sketch)


def top_items(accumulated: ColumnOrName, number: int = 10, of: type[str] | type[int] = str) -> Column:
    """The most frequent items of what `approx_top_k_accumulate` made of a column of texts or of BIGINT, each with its
    count and bounds."""
    item = pa.string() if of is str else pa.int64()
    kind = pa.list_(pa.struct([("item", item), ("count", _ESTIMATE)]))

    def ask(data: bytes) -> list[dict[str, Any]]:
        top = TopK.from_bytes(data, of).top(number)
        return [{"item": item, "count": _told(count)} for item, count in top]

    return _asked(ask, kind, _column(accumulated).getField("sketch"))


def count_min_count(sketch: ColumnOrName, item: ColumnOrName) -> Column:
    """How often an item (a column or `lit(...)`, text or BIGINT) came in what `count_min_sketch` has seen, with bounds.
    It must be of the type of what was counted."""
    return _asked(lambda data, item: _told(SparkCountMin.from_bytes(data).count(item)), _ESTIMATE, sketch, item)


def count_min_inner(one: ColumnOrName, other: ColumnOrName) -> Column:
    """The sum, over all items, of its count in one sketch of `count_min_sketch` times its count in the other. Both must
    have been made with the same error, confidence and seed."""

    def ask(one: bytes, other: bytes) -> dict[str, Any]:
        return _told(SparkCountMin.from_bytes(one).inner(SparkCountMin.from_bytes(other)))

    return _asked(ask, _ESTIMATE, one, other)


def bloom(column: ColumnOrName, items: int = 10_000, rate: float = 0.01) -> Column:
    """An aggregate: a Bloom filter of the column, text or BIGINT, for about so many items, of which it wrongly claims a
    share of `rate` that never came. Spark has it, for its own use, without a function; its format is its own."""
    bits = math.ceil(-items * math.log(rate) / math.log(2) ** 2)
    if not 1 <= items <= BLOOM_ITEMS_MAX or bits > BLOOM_BITS_MAX:
        raise ValueError(f"a filter in a view is for up to {BLOOM_ITEMS_MAX:,} items and {BLOOM_BITS_MAX:,} bits")
    sizes = (F.lit(items).cast("bigint"), F.lit(-(-bits // 64) * 64).cast("bigint"))
    return InternalFunction._invoke_internal_function_over_columns("bloom_filter_agg", column, *sizes)


def bloom_contains(sketch: ColumnOrName, item: ColumnOrName) -> Column:
    """Whether an item may be among those of a filter that `bloom` made; if not, it surely is not."""
    return _asked(lambda data, item: item in SparkBloom.from_bytes(data), pa.bool_(), sketch, item)


def bloom_rate(sketch: ColumnOrName) -> Column:
    """The probability that a filter claims an item which never came."""
    return _asked(lambda data: SparkBloom.from_bytes(data).false_positive_rate, pa.float64(), sketch)


def reservoir(column: ColumnOrName, by: ColumnOrName, k: int = 100, seed: int = 0) -> Column:
    """An aggregate: a fair sample of at most `k` values, as an array. `by` identifies a row: those whose ids have the
    highest hashes are in, so it is the same however rows are cut and ordered, and another one for another seed."""
    return F.max_by(column, F.xxhash64(F.lit(seed), by), k)


def tdigest(column: ColumnOrName, k: int = 200) -> Column:
    """An aggregate: a t-digest of a column of doubles. Not for a streaming view: use `kll_sketch_agg_double` there."""

    def digest(values: pa.Array) -> bytes:
        made = TDigest(k)
        for value in sorted(each for each in values.to_pylist() if each is not None):
            made.add(value)
        return made.to_bytes()

    made: Column = arrow_udf(digest, "binary")(column)  # type: ignore[call-overload]
    return made


def tdigest_quantile(sketch: ColumnOrName, rank: float) -> Column:
    """A quantile of a t-digest, with the bounds that hold on common data. NULL if it has seen nothing."""
    return _asked(lambda data: _of_some(TDigest.from_bytes(data), TDigest.quantile, rank), _ESTIMATE, sketch)


def stream_problems(frame: DataFrame) -> list[str]:
    """Why a streaming view cannot have an aggregate: it is written in Python. Spark says so only when data come."""
    try:
        plan = frame._jdf.queryExecution().analyzed().toJSON()
    except Py4JError:
        return []  # a plan that cannot be told; the query's start may still find what is wrong
    if "expressions.PythonUDAF" not in plan:
        return []
    return [
        "it has an aggregate that is written in Python, which Spark does not run on a stream; use one of Spark's own "
        "(for quantiles, kll_sketch_agg_double in place of tdigest), or a handler with a sketch in its state"
    ]


def _column(given: ColumnOrName) -> Column:
    return F.col(given) if isinstance(given, str) else given


def _told(estimate: Estimate) -> dict[str, Any]:
    return msgspec.structs.asdict(estimate)


def _of_some(sketch: Any, question: Callable[[Any, float], Estimate], about: float) -> dict[str, Any] | None:
    return _told(question(sketch, about)) if sketch.n else None


def _asked(question: Callable[..., Any], kind: pa.DataType, *columns: ColumnOrName) -> Column:
    """A question to each row. What is asked of a NULL is NULL."""

    def ask(*arrays: pa.Array) -> pa.Array:
        rows = zip(*(each.to_pylist() for each in arrays), strict=True)
        return pa.array([None if None in row else question(*row) for row in rows], kind)

    made: Column = arrow_udf(ask, from_arrow_type(kind))(*columns)  # type: ignore[call-overload]
    return made
