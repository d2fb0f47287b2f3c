"""What a rollup asks of the aggregates of `penstock.windows`: which of them it takes, and what it keeps of them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.schema import INT_MAX, INT_MIN

_WHOLE = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]


def bounded(kept: Any) -> Any:
    """A type that is kept, with whole numbers that fit a column: an event that would make a sum too large fails, and
    has no effect."""
    return {int: _WHOLE, int | None: _WHOLE | None}.get(kept, kept)
