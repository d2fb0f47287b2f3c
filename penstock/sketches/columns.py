"""Column functions with which views can use sketches that Spark does not have. pyspark is imported on first use.

from penstock.sketches import columns as S

fixes.groupBy("vehicle").agg(S.reservoir("speed", by="fix_id", k=20).alias("some"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.analyze.summaries import (
        bloom,
        bloom_contains,
        bloom_rate,
        count_min_count,
        count_min_inner,
        hll_count,
        kll_quantile,
        kll_rank,
        reservoir,
        tdigest,
        tdigest_quantile,
        theta_count,
        top_items,
    )

__all__ = [
    "bloom", "bloom_contains", "bloom_rate", "count_min_count", "count_min_inner", "hll_count", "kll_quantile",
    "kll_rank", "reservoir", "tdigest", "tdigest_quantile", "theta_count", "top_items",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.analyze import summaries

    return getattr(summaries, name)
