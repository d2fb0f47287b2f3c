"""The stream VIEW.late: what came too late for a view, found after each of its batches and appended once."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any

import msgspec

from penstock.analyze.checkpoint import Checkpoint
from penstock.analyze.closing import Closings
from penstock.analyze.lateness import Finder, Sift, Timed, late_batch
from penstock.app import App
from penstock.contracts import Log, Output, StreamSpec
from penstock.declared import View
from penstock.runtime.directory import DataDirectory
from penstock.schema import Late, event_schema

PART_EVENTS = 1_000
PARTS_MAX = 1 << 20


class LateEvents:
    """What came too late for one view. Called after the ledger has the batch, by the query's thread.

    A crash in between runs the batch again over the same range, which finds the same events, and the append is
    idempotent by batch id and part: each is in the stream once. `closings` and `sift` are set when the view is built.
    """

    def __init__(self, app: App, view: View, directory: DataDirectory, log: Log) -> None:
        self.view, self.log = view, log
        self.stream = app.late.get(view.name)
        self.checkpoint = Checkpoint(directory.checkpoint(view.name))
        self.reads = [Timed(name, column) for name, column in timed_streams(app, view).items()]
        self.closings = Closings()
        self.sift: Sift | None = None
        if self.stream is not None:
            log.declare(StreamSpec(self.stream.name, event_schema(Late), 1))

    def __call__(self, output: Output) -> None:
        if self.stream is None or not self.closings.late or output.start == output.end:
            return
        watermark = self.checkpoint.late_watermark(output.batch_id)
        finder = Finder(self.reads, self.closings.late, self.sift)
        events = finder.find(self.log, output.start, output.end, watermark)
        for number, part in enumerate(iter(lambda: list(islice(events, PART_EVENTS)), [])):
            batch = late_batch(self.view.name, part, datetime.now(UTC))
            sequence = output.batch_id * PARTS_MAX + number
            self.log.append(self.stream.name, 0, batch, producer=self.view.name, sequence=sequence)

    def describe(self) -> dict[str, Any]:
        """For the gateway, which lets time pass on idle streams as long as something waits for it."""
        return {"closings": msgspec.to_builtins(self.closings.kept)}


def timed_streams(app: App, view: View) -> dict[str, str]:
    """The streams that a view reads by event time, and the column of each for that."""
    found = {each.name: each for each in app.streams if each.name in view.reads and view.time == "event"}
    return {
        name: each.event.__time_field__
        for name, each in found.items()
        if each.late_after is not None and each.event.__time_field__ is not None
    }
