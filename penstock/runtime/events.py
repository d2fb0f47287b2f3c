"""Compare the event classes of an app with the events in its data directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass

from penstock.app.app import App
from penstock.app.declared import REJECTED_SUFFIX, Stream
from penstock.app.loading import AppText
from penstock.core.errors import EventUnreadable, StorageError
from penstock.core.event_shape import EventShape, EventSpec, event_spec
from penstock.core.reading import rows_end, rows_start
from penstock.core.schema import Event, Rejected
from penstock.runtime.storage import Storage, StoredLogReader

TRIED_ROWS = 200
"""Number of rows at each end of a partition that are migrated as a test before an app starts, in a few milliseconds."""


@dataclass(frozen=True)
class StreamClass:
    """Factory that returns the event class of a stream from the app's source, in any process."""

    text: AppText
    stream: str

    def __call__(self) -> type[Event]:
        return next(stream.event for stream in event_streams(self.text.app()) if stream.name == self.stream)


def event_streams(app: App) -> Iterator[Stream]:
    """Yield every stream of an app that has an event class: the declared streams, each with its stream of dead letters,
    and the streams that handlers and views fill. The changes of a view have no class."""
    for stream in app.streams:
        yield stream
        yield Stream(stream.name + REJECTED_SUFFIX, Rejected, stream.where, partitions=1)
    yield from app.outputs


def event_classes(app: App) -> Mapping[str, EventSpec]:
    """Return, by stream name, the classes that the log needs to read the app's streams."""
    return {stream.name: event_spec(stream.event) for stream in event_streams(app)}


def carried_classes(app: App, target: str) -> Mapping[str, EventSpec]:
    """Return the mapping of `event_classes` in a form that, unlike the classes, can be sent to Spark's workers.
    `target` names the app."""
    text = AppText.read(target)
    return {name: spec.loaded_by(StreamClass(text, name)) for name, spec in event_classes(app).items()}


def open_log(app: App, storage: Storage) -> StoredLogReader:
    """Open the log of a storage for reading, with the event classes of the app."""
    return storage.log_reader(event_classes(app))


def event_problems(app: App, storage: Storage) -> Iterator[str]:
    """Yield the reasons why stored events cannot be read as the app's classes, each with its file:line and a fix.

    Does not need Spark and writes nothing. Reads a limited amount of each stream's file, even while the app is running.
    If a class must migrate events, some events are migrated, so a method that always fails is found before anything
    starts. A stream with a damaged file is skipped, because the gateway reports the damage as that stream's failure.
    """
    with closing(open_log(app, storage)) as log:
        for stream in event_streams(app):
            yield from (f"{stream.where}: stream {stream.name}: {reason}" for reason in stream_problems(log, stream))


def stream_problems(log: StoredLogReader, stream: Stream) -> list[str]:
    """Return the reasons why the stored events of one stream cannot be read as its class. `log` must have been opened
    with the app's classes."""
    spec = event_spec(stream.event)
    try:
        reasons = list(log.event_problems(stream.name, spec))
        if not reasons and spec.load is not None and log.is_evolved(stream.name):
            _try_stored_events(log, stream.name)
    except EventUnreadable as error:
        return [error.message.removeprefix(f"stream {stream.name}: ")]
    except StorageError:
        return []
    return reasons


def _try_stored_events(log: StoredLogReader, stream: str) -> None:
    """Read the first and the last stored events of each partition. Raises `EventUnreadable` if an event cannot be
    read."""
    starts, ends = log.starts(stream), log.ends(stream)
    for partition, end in ends.items():
        whole = stream, partition, starts[partition], end
        first, stop = rows_start(log, *whole), rows_end(log, *whole)
        for begin, last in ((first, min(first + TRIED_ROWS, end)), (max(starts[partition], stop - TRIED_ROWS), stop)):
            for _ in log.read(stream, partition, begin, last):
                pass


def stored_shapes(app: App, storage: Storage) -> Mapping[str, EventShape | None]:
    """Return the shape of the newest stored events for each stream of an app, or None where it is unknown."""
    with closing(open_log(app, storage)) as log:
        return {stream.name: _stored_event_shape(log, stream.name) for stream in event_streams(app)}


def _stored_event_shape(log: StoredLogReader, stream: str) -> EventShape | None:
    try:
        return log.event_shape(stream)
    except StorageError:
        return None


def stored_origins(app: App, storage: Storage) -> dict[str, Mapping[str, str]]:
    """Return the names that fingerprints use for the fields of each stream's class (`queue.versions.field_origins`). A
    stream with a damaged file is left out, because the damage is reported as the stream's own failure."""
    origins: dict[str, Mapping[str, str]] = {}
    with closing(open_log(app, storage)) as log:
        for stream in event_streams(app):
            with suppress(StorageError):
                origins[stream.name] = log.field_origins(stream.name, event_spec(stream.event))
    return origins


def event_changes(stream: Stream, storage: Storage) -> Iterator[str]:
    """Yield sentences that explain to senders what happens to events stored with an earlier version of their class."""
    log, now = storage.log_reader(), event_spec(stream.event)
    with closing(log):
        before = log.event_shape(stream.name)
    if before is None or before.version > now.shape.version:
        return
    gone = [name for name in before.fields if name not in now.shape.fields]
    for name in gone:
        if name in now.renamed:
            yield f"its field {name} is now {now.renamed[name]}, also in old events; senders must use the new name"
        else:
            yield f"its field {name} was removed, also from old events"
    if now.shape.version > before.version:
        yield f"its events now have version {now.shape.version}, and older events are read as that version"
    if gone or now.shape.version > before.version:
        yield "once the app has started with this code, the earlier code can no longer be used"
