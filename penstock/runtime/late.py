"""The stream VIEW.late: events that arrived too late for a view, found after each of its batches and appended exactly
once."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

from penstock.analyze.contracts import QueryCheckpoint
from penstock.analyze.lateness import Finder, Sift, TimedStream, late_batch
from penstock.analyze.row_lifetimes import Closings
from penstock.analyze.streaming import StreamingView, timed_streams
from penstock.app.app import App
from penstock.app.declared import View
from penstock.control import WindowTiming
from penstock.core.contracts import Log, LogReader, Output, StreamSpec
from penstock.core.event_shape import event_spec
from penstock.core.schema import Late

PART_EVENTS = 1_000
PARTS_MAX = 1 << 20


class LateEvents:
    """Collects one view's late events. Called by the query's thread, once the ledger contains the batch.

    After a crash between the ledger entry and this call, the batch runs again over the same range and finds the same
    events. The append is idempotent by batch id and part, so each event is stored only once. `closings` and `sift` are
    set when the view is built.
    """

    def __init__(
        self, app: App, view: View, checkpoint: QueryCheckpoint, log: LogReader, into: Log, *, batches_before: int = 0
    ) -> None:
        """Events are read from `log` and appended to `into`. `batches_before` is the number of batches that came before
        batch 0 of this checkpoint: the batches of a rebuilt view are numbered from 0 again."""
        self.view, self.log, self.into, self.batches_before = view, log, into, batches_before
        self.stream = app.late.get(view.name)
        self.checkpoint = checkpoint
        self.reads = [TimedStream(name, column) for name, column in timed_streams(app, view).items()]
        self.closings = Closings()
        self.sift: Sift | None = None
        if self.stream is not None:
            into.declare(StreamSpec.of(self.stream.name, event_spec(Late), 1))

    def fit(self, built: StreamingView) -> None:
        """Store a built view's windows and the function that finds its late events."""
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

    def window_timings(self) -> tuple[WindowTiming, ...]:
        """Return the view's window timings for the gateway, which advances the time of idle streams while a view is
        waiting for it."""
        return tuple(WindowTiming(window.span, window.step, window.origin) for window in self.closings.kept)
