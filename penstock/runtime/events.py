"""The event classes of an app against the events that its data directory has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass

from penstock.app import App
from penstock.collect.door import REJECTED_SUFFIX
from penstock.declared import Stream
from penstock.errors import EventUnreadable, StorageError
from penstock.event_shape import EventShape, EventSpec, event_spec
from penstock.queue import EmbeddedLog
from penstock.runtime.directory import DataDirectory
from penstock.runtime.loading import AppText
from penstock.schema import Event, Rejected

TRIED_ROWS = 200
"""Rows at either end of a partition that are migrated before an app starts: some milliseconds."""


@dataclass(frozen=True)
class StreamClass:
    """Gives the event class of a stream, from the text of the app, in whatever process it is called."""

    text: AppText
    stream: str

    def __call__(self) -> type[Event]:
        return next(each.event for each in event_streams(self.text.app()) if each.name == self.stream)


def event_streams(app: App) -> Iterator[Stream]:
    """Every stream of an app that has an event class: those that events are sent to, each with its dead letters, and
    those that handlers and views fill. The changes of a view have none."""
    for stream in app.streams:
        yield stream
        yield Stream(stream.name + REJECTED_SUFFIX, Rejected, stream.where, partitions=1)
    yield from app.outputs


def event_classes(app: App) -> Mapping[str, EventSpec]:
    """What the log must know to read the streams of an app as their classes, by the names of the streams."""
    return {stream.name: event_spec(stream.event) for stream in event_streams(app)}


def carried_classes(app: App, target: str) -> Mapping[str, EventSpec]:
    """The same for Spark's workers, which cannot be sent a class. `target` names the app."""
    text = AppText.read(target)
    return {name: spec.loaded_by(StreamClass(text, name)) for name, spec in event_classes(app).items()}


def open_log(app: App, directory: DataDirectory) -> EmbeddedLog:
    """The log of a data directory for reading, as the classes of the app."""
    return EmbeddedLog(directory.streams, read_only=True, classes=event_classes(app))


def event_problems(app: App, directory: DataDirectory) -> Iterator[str]:
    """Why stored events cannot be read as the classes of an app, each with its file:line and what to do.

    Needs no Spark and writes nothing; reads a bounded part of each stream's file, beside a running app too. Where a
    class has to migrate events, some of them are, so that a method that fails on all is known before anything starts.
    A stream whose file is damaged is passed over: that is its own failure, which the gateway reports.
    """
    with closing(open_log(app, directory)) as log:
        for stream in event_streams(app):
            yield from (f"{stream.where}: stream {stream.name}: {reason}" for reason in stream_problems(log, stream))


def stream_problems(log: EmbeddedLog, stream: Stream) -> list[str]:
    """Why the stored events of one stream cannot be read as its class. `log` is opened as the classes of the app."""
    spec = event_spec(stream.event)
    try:
        reasons = list(log.event_problems(stream.name, spec))
        if not reasons and spec.load is not None and log.is_evolved(stream.name):
            _try_some(log, stream.name)
    except EventUnreadable as error:
        return [error.message.removeprefix(f"stream {stream.name}: ")]
    except StorageError:
        return []
    return reasons


def _try_some(log: EmbeddedLog, stream: str) -> None:
    """Read the first and the last events of each partition. Raises `EventUnreadable` if one of them cannot be."""
    starts, ends = log.starts(stream), log.ends(stream)
    for partition, end in ends.items():
        start = starts[partition]
        for first, last in ((start, min(start + TRIED_ROWS, end)), (max(start, end - TRIED_ROWS), end)):
            for _ in log.read(stream, partition, first, last):
                pass


def stored_shapes(app: App, directory: DataDirectory) -> Mapping[str, EventShape | None]:
    """The shape of the newest stored events of each stream of an app; None where none is known."""
    with closing(open_log(app, directory)) as log:
        return {stream.name: _shape(log, stream.name) for stream in event_streams(app)}


def _shape(log: EmbeddedLog, stream: str) -> EventShape | None:
    try:
        return log.event_shape(stream)
    except StorageError:
        return None


def stored_origins(app: App, directory: DataDirectory) -> dict[str, Mapping[str, str]]:
    """The names by which fingerprints know the fields of each stream's class (`queue.versions.field_origins`). A stream
    whose file is damaged is left out: that is its own failure."""
    found: dict[str, Mapping[str, str]] = {}
    with closing(open_log(app, directory)) as log:
        for stream in event_streams(app):
            with suppress(StorageError):
                found[stream.name] = log.field_origins(stream.name, event_spec(stream.event))
    return found


def input_shapes(app: App, inputs: tuple[str, ...]) -> dict[str, EventShape]:
    """The shapes of the classes by which a handler reads its inputs. The changes of views have none."""
    return {stream.name: event_spec(stream.event).shape for stream in event_streams(app) if stream.name in inputs}


def event_changes(stream: Stream, directory: DataDirectory) -> Iterator[str]:
    """What becomes of events that were stored by an earlier version of their class, for those who send them."""
    log, now = EmbeddedLog(directory.streams, read_only=True), event_spec(stream.event)
    with closing(log):
        before = log.event_shape(stream.name)
    if before is None or before.version > now.shape.version:
        return
    gone = [name for name in before.fields if name not in now.shape.fields]
    for name in gone:
        if name in now.renamed:
            yield f"its field {name} is now {now.renamed[name]}, in old events too; senders must use the new name"
        else:
            yield f"its field {name} is gone, from old events too"
    if now.shape.version > before.version:
        yield f"its events are now of version {now.shape.version}, and older ones are read as that"
    if gone or now.shape.version > before.version:
        yield "once this has started, the earlier code is refused"
