"""What the store must know of a view."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class ViewSpec:
    """A view as the store sees it.

    `key` names the columns that identify a row. A row goes once `keep` has passed since its window ended or, in a
    view without windows, since it last changed. With `top` and `by`, only the `top` rows with the highest `by` are
    served. At most `changes_kept` changes and about `changes_bytes` of them stay for clients that come back.
    """

    name: str
    key: tuple[str, ...]
    keep: timedelta | None
    top: int | None
    by: str | None
    changes_kept: int
    changes_bytes: int
