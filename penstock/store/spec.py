"""The store's description of a view."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class ViewSpec:
    """The properties of a view that the store needs.

    `key` names the columns that identify a row. A row is removed once `keep` has passed since its window ended or, in a
    view without windows, since the row last changed. If `top` and `by` are set, only the `top` rows with the highest
    values of `by` are served. At most `changes_kept` changes, and about `changes_bytes` bytes of changes, are kept for
    clients that resume.
    """

    name: str
    key: tuple[str, ...]
    keep: timedelta | None
    top: int | None
    by: str | None
    changes_kept: int
    changes_bytes: int
