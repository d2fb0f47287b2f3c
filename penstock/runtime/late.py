"""The stream VIEW.late: what came too late for a view, found after each of its batches and appended once."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from penstock.analyze.checkpoint import Checkpoint
from penstock.analyze.closing import Closings
from penstock.analyze.lateness import Finder, Sift, Timed, late_batch
from penstock.analyze.streaming import StreamingView, timed_streams
from penstock.app import App
from penstock.contracts import Log, LogReader, Output, StreamSpec
from penstock.declared import View
from penstock.event_shape import event_spec
from penstock.schema import Late

PART_EVENTS = 1_000
PARTS_MAX = 1 << 20


class LateEvents:
    """What came too late for one view. Called after the ledger has the batch, by the query's thread.

    A crash in between runs the batch again over the same range, which finds the same events, and the append is
    idempotent by batch id and part: each is in the stream once. `closings` and `sift` are set when the view is built.
    """

    def __init__(
        self, app: App, view: View, checkpoint: Path, log: LogReader, into: Log, *, batches_before: int = 0
    ) -> None:
        """Events are read from `log` and appended to `into`. `batches_before` is how many batches were counted before
        batch 0 of this checkpoint: the batches of a rebuilt view are numbered from 0 again."""
        self.view, self.log, self.into, self.batches_before = view, log, into, batches_before
        self.stream = app.late.get(view.name)
        self.checkpoint = Checkpoint(checkpoint)
        self.reads = [Timed(name, column) for name, column in timed_streams(app, view).items()]
        self.closings = Closings()
        self.sift: Sift | None = None
        if self.stream is not None:
            into.declare(StreamSpec.of(self.stream.name, event_spec(Late), 1))

    def fit(self, built: StreamingView) -> None:
        """Take over from a view that was built what it keeps, and until when."""
        self.closings = built.closings
        self.sift = built.make_sift() if self.stream is not None and self.closings.late else None

    def __call__(self, output: Output) -> None:
        if self.stream is None or not self.closings.late or output.start == output.end:
            return
        watermark = self.checkpoint.late_watermark(output.batch_id)
        finder = Finder(self.reads, self.closings.late, self.sift)
        events = finder.find(self.log, output.start, output.end, watermark)
        for number, part in enumerate(iter(lambda: list(islice(events, PART_EVENTS)), [])):
            batch = late_batch(self.view.name, part, datetime.now(UTC))
            sequence = (self.batches_before + output.batch_id) * PARTS_MAX + number
            self.into.append(self.stream.name, 0, batch, producer=self.view.name, sequence=sequence)

    def describe(self) -> dict[str, Any]:
        """For the gateway, which lets time pass on idle streams as long as something waits for it."""
        return {"closings": msgspec.to_builtins(self.closings.kept)}
