"""The files of views, opened as their declarations say."""

from __future__ import annotations

from penstock.declared import Keeper, View
from penstock.runtime.clock import WallClock
from penstock.runtime.directory import DataDirectory
from penstock.schema import event_schema, shown
from penstock.settings import Settings
from penstock.store import ViewReader, ViewSpec, ViewTable


def open_table(view: View, directory: DataDirectory, settings: Settings) -> ViewTable:
    """A view's file, for its only writer."""
    return ViewTable(directory.view_file(view.name), view_spec(view, settings), clock=WallClock())


def open_kept(keeper: Keeper, directory: DataDirectory, settings: Settings) -> ViewTable:
    """The file of the view that a handler keeps, for its only writer. Its columns are those of the row class."""
    table = open_table(keeper.view, directory, settings)
    table.describe(shown(event_schema(keeper.row)))
    return table


def open_reader(view: View, directory: DataDirectory, settings: Settings) -> ViewReader | None:
    """A view's file, for reading beside its writer; None if it is not there yet."""
    path = directory.view_file(view.name)
    return ViewReader(path, view_spec(view, settings)) if path.exists() else None


def view_spec(view: View, settings: Settings) -> ViewSpec:
    """A view as the store must know it."""
    bounds = settings.changes_kept, settings.changes_bytes
    return ViewSpec(view.name, view.key, view.keep, view.top, view.by, *bounds)
