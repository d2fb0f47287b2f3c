"""Checks for a view's `time` option."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.app.app import App
from penstock.app.declared import View
from penstock.core.schema import INGEST_COLUMN, UnmappedType, fields


def problems(app: App, view: View) -> Iterator[str]:
    """Yield the problems with a view's `time` option, each with a fix."""
    if view.time not in ("event", "ingest"):
        yield f"time is {view.time!r}; use 'event' or 'ingest'"
    if view.time != "ingest":
        return
    streams = {stream.name: stream for stream in app.streams}
    views = [name for other in app.views for name in (other.name, other.changes.name)]
    computed = {*(output.name for output in app.outputs), *views}
    for name in view.reads:
        if name in computed:
            yield f"it uses ingest time, but {name} is computed, not ingested; use time='event', or read a stream"
        elif name in streams and INGEST_COLUMN in _names_of_fields(streams[name].event):
            cls = streams[name].event.__name__
            yield f"{cls} has a field {INGEST_COLUMN}, but time='ingest' adds a column with this name; rename the field"


def _names_of_fields(event: type) -> set[str]:
    try:
        return {field.name for field in fields(event)}
    except (NameError, TypeError, AttributeError, UnmappedType):
        return set()  # an error in the stream, which is reported separately
