"""What `check` says of the time that a view goes by."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.app import App
from penstock.declared import View
from penstock.schema import INGEST_COLUMN, UnmappedType, fields


def problems(app: App, view: View) -> Iterator[str]:
    """What is wrong with a view's `time`, and what to write instead."""
    if view.time not in ("event", "ingest"):
        yield f"time is {view.time!r}; use 'event' or 'ingest'"
    if view.time != "ingest":
        return
    streams = {stream.name: stream for stream in app.streams}
    views = [name for each in app.views for name in (each.name, each.changes.name)]
    computed = {*(each.name for each in app.outputs), *views}
    for name in view.reads:
        if name in computed:
            yield f"it goes by ingest time, and {name} does not come from outside; use time='event', or read a stream"
        elif name in streams and INGEST_COLUMN in _names(streams[name].event):
            yield f"{streams[name].event.__name__} has a field {INGEST_COLUMN}, which time='ingest' gives; rename it"


def _names(event: type) -> set[str]:
    try:
        return {each.name for each in fields(event)}
    except (NameError, TypeError, AttributeError, UnmappedType):
        return set()  # the stream's own problem, told with it
