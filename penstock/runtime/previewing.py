"""Connects `App.preview` with the analyze tier, which is loaded on the first call, because declaring an app must not
require Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.app.app import App
from penstock.app.declared import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def preview(app: App, view: View, events: Sequence[Iterable[Any]]) -> DataFrame:
    """Implement `App.preview`."""
    from penstock.analyze import preview as previews

    return previews.preview(app, view, events)
