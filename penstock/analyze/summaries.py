"""Column functions for sketches in views, in addition to Spark's own.

Spark's functions (`hll_sketch_agg`, `theta_sketch_agg`, `kll_sketch_agg_double`, `count_min_sketch`,
`approx_top_k_accumulate` and their merges) are used unchanged. The functions in this module query their sketches, with
error bounds, and add sketches that Spark does not have.

In a streaming view, Spark refuses aggregates that are written in Python; in this module, only `tdigest` is such an
aggregate.
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
"""The largest values that Spark allows."""
_ESTIMATE = pa.struct([(name, pa.float64()) for name in Estimate.__struct_fields__])


def hll_count(sketch: ColumnOrName) -> Column:
    """Return the number of distinct items in a sketch from `hll_sketch_agg`, with bounds."""
    return _asked(lambda data: _estimate_as_dict(Hll.from_bytes(data).count()), _ESTIMATE, sketch)


def theta_count(sketch: ColumnOrName) -> Column:
    """Return the number of distinct items in a sketch from `theta_sketch_agg`, or in a union, intersection or
    difference of such sketches, with bounds."""
    return _asked(lambda data: _estimate_as_dict(Theta.from_bytes(data).count()), _ESTIMATE, sketch)


def kll_quantile(sketch: ColumnOrName, rank: float, *, items: KllItems) -> Column:
    """Return a quantile from a sketch from `kll_sketch_agg_double` (`items="double"`) or `kll_sketch_agg_bigint`
    (`items="long"`), with bounds. NULL if the sketch is empty. The bytes look alike, so `items` has no default."""
    return _asked(lambda data: _ask_sketch(Kll.from_bytes(data, items=items), Kll.quantile, rank), _ESTIMATE, sketch)


def kll_rank(sketch: ColumnOrName, value: float, *, items: KllItems) -> Column:
    """Return the share of values that are at most `value` in a sketch from `kll_sketch_agg_double` (`items="double"`)
    or `kll_sketch_agg_bigint` (`items="long"`), with bounds. NULL if the sketch is empty."""
    return _asked(lambda data: _ask_sketch(Kll.from_bytes(data, items=items), Kll.rank, value), _ESTIMATE, sketch)


def top_items(accumulated: ColumnOrName, number: int = 10, of: type[str] | type[int] = str) -> Column:
    """Return the most frequent items that `approx_top_k_accumulate` found in a STRING or BIGINT column, each with its
    count and bounds."""
    item = pa.string() if of is str else pa.int64()
    kind = pa.list_(pa.struct([("item", item), ("count", _ESTIMATE)]))

    def ask(data: bytes) -> list[dict[str, Any]]:
        top = TopK.from_bytes(data, of).top(number)
        return [{"item": item, "count": _estimate_as_dict(count)} for item, count in top]

    return _asked(ask, kind, _sketch_column(accumulated).getField("sketch"))


def count_min_count(sketch: ColumnOrName, item: ColumnOrName) -> Column:
    """Return how often `count_min_sketch` has counted an item (a STRING or BIGINT column, or `lit(...)`), with bounds.
    The item must have the same type as the counted column."""
    return _asked(
        lambda data, item: _estimate_as_dict(SparkCountMin.from_bytes(data).count(item)), _ESTIMATE, sketch, item
    )


def count_min_inner(one: ColumnOrName, other: ColumnOrName) -> Column:
    """Return the inner product of two sketches from `count_min_sketch`, with bounds. It is the sum, over all items, of
    an item's count in one sketch times its count in the other. Both sketches must have the same error, confidence and
    seed."""

    def ask(one: bytes, other: bytes) -> dict[str, Any]:
        return _estimate_as_dict(SparkCountMin.from_bytes(one).inner(SparkCountMin.from_bytes(other)))

    return _asked(ask, _ESTIMATE, one, other)


def bloom(column: ColumnOrName, items: int = 10_000, rate: float = 0.01) -> Column:
    """Aggregate a STRING or BIGINT column into a Bloom filter for about `items` items. For items that never occurred,
    the false positive rate is `rate`. Spark uses this aggregate internally, without a public function; the format is
    Spark's own."""
    bits = math.ceil(-items * math.log(rate) / math.log(2) ** 2)
    if not 1 <= items <= BLOOM_ITEMS_MAX or bits > BLOOM_BITS_MAX:
        raise ValueError(f"a filter in a view can have up to {BLOOM_ITEMS_MAX:,} items and {BLOOM_BITS_MAX:,} bits")
    sizes = (F.lit(items).cast("bigint"), F.lit(-(-bits // 64) * 64).cast("bigint"))
    return InternalFunction._invoke_internal_function_over_columns("bloom_filter_agg", column, *sizes)


def bloom_contains(sketch: ColumnOrName, item: ColumnOrName) -> Column:
    """Return whether an item might be in a filter from `bloom`. If the result is false, the filter does not contain the
    item."""
    return _asked(lambda data, item: item in SparkBloom.from_bytes(data), pa.bool_(), sketch, item)


def bloom_rate(sketch: ColumnOrName) -> Column:
    """Return the filter's false positive rate: the probability that it claims to contain an item that never
    occurred."""
    return _asked(lambda data: SparkBloom.from_bytes(data).false_positive_rate, pa.float64(), sketch)


def reservoir(column: ColumnOrName, by: ColumnOrName, k: int = 100, seed: int = 0) -> Column:
    """Aggregate a column into an unbiased random sample of at most `k` values, as an array. `by` identifies a row. The
    sample consists of the rows whose ids have the highest hashes, so it depends on the seed, but not on how rows are
    split and ordered."""
    return F.max_by(column, F.xxhash64(F.lit(seed), by), k)


def tdigest(column: ColumnOrName, k: int = 200) -> Column:
    """Aggregate a column of doubles into a t-digest. Does not work in a streaming view, which must use
    `kll_sketch_agg_double` instead."""

    def digest(values: pa.Array) -> bytes:
        sketch = TDigest(k)
        for value in sorted(value for value in values.to_pylist() if value is not None):
            sketch.add(value)
        return sketch.to_bytes()

    sketches: Column = arrow_udf(digest, "binary")(column)  # type: ignore[call-overload]
    return sketches


def tdigest_quantile(sketch: ColumnOrName, rank: float) -> Column:
    """Return a quantile from a t-digest, with bounds that hold for typical data. NULL if the digest is empty."""
    return _asked(lambda data: _ask_sketch(TDigest.from_bytes(data), TDigest.quantile, rank), _ESTIMATE, sketch)


def stream_problems(frame: DataFrame) -> list[str]:
    """Return a problem if a streaming view uses an aggregate that is written in Python. Spark would report that only
    when rows arrive."""
    try:
        plan = frame._jdf.queryExecution().analyzed().toJSON()
    except Py4JError:
        return []  # the plan cannot be read; any problem is reported when the query starts
    if "expressions.PythonUDAF" not in plan:
        return []
    return [
        "it has an aggregate that is written in Python, which Spark cannot run on a stream; use one of Spark's own "
        "(for quantiles, kll_sketch_agg_double instead of tdigest), or a handler with a sketch in its state"
    ]


def _sketch_column(given: ColumnOrName) -> Column:
    return F.col(given) if isinstance(given, str) else given


def _estimate_as_dict(estimate: Estimate) -> dict[str, Any]:
    return msgspec.structs.asdict(estimate)


def _ask_sketch(sketch: Any, question: Callable[[Any, float], Estimate], about: float) -> dict[str, Any] | None:
    return _estimate_as_dict(question(sketch, about)) if sketch.n else None


def _asked(question: Callable[..., Any], kind: pa.DataType, *columns: ColumnOrName) -> Column:
    """Apply a Python function to each row of a Spark column; the result for NULL is NULL."""

    def ask(*arrays: pa.Array) -> pa.Array:
        rows = zip(*(array.to_pylist() for array in arrays), strict=True)
        return pa.array([None if None in row else question(*row) for row in rows], kind)

    answers: Column = arrow_udf(ask, from_arrow_type(kind))(*columns)  # type: ignore[call-overload]
    return answers
