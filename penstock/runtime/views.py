"""Opens views in a storage according to their declarations."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa

from penstock.app.declared import View, ViewHandler
from penstock.core.clock import WallClock
from penstock.core.schema import event_schema, shown
from penstock.core.settings import Settings
from penstock.runtime.storage import Storage
from penstock.store import StoredView, StoredViewReader, ViewSpec


def open_table(view: View, storage: Storage, settings: Settings) -> StoredView:
    """Open a view for its only writer."""
    return storage.view_table(view_spec(view, settings), WallClock())


def open_kept(view_handler: ViewHandler, storage: Storage, settings: Settings) -> StoredView:
    """Open the view that a handler maintains, for its only writer. Its columns are the fields of the row class."""
    table = open_table(view_handler.view, storage, settings)
    table.describe(shown(event_schema(view_handler.row)))
    return table


def open_reader(view: View, storage: Storage, settings: Settings) -> StoredViewReader | None:
    """Open a view for reading while its writer runs. Return None if the view does not exist yet."""
    return storage.view_reader(view_spec(view, settings))


def stored_columns(view: View, storage: Storage, settings: Settings) -> pa.Schema | None:
    """Return the types of a view's columns as they are stored. Return None if the view does not exist yet, or its query
    was never built."""
    reader = open_reader(view, storage, settings)
    if reader is None:
        return None
    with closing(reader):
        return reader.columns()


def view_spec(view: View, settings: Settings) -> ViewSpec:
    """Return the store's description of a view."""
    bounds = settings.changes_kept, settings.changes_bytes
    return ViewSpec(view.name, view.key, view.keep, view.top, view.by, *bounds)
