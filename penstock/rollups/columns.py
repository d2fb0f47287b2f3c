"""The types that the accumulators of `penstock.windows` have in a rollup's state."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.core.schema import INT_MAX, INT_MIN

_WHOLE = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]


def bounded(kept: Any) -> Any:
    """Return an accumulator's type, with integers limited to the range of a column. An event that would make such an
    accumulator too large fails and has no effect."""
    return {int: _WHOLE, int | None: _WHOLE | None}.get(kept, kept)
