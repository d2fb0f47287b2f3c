"""Recompute a view from the log with its Spark query, while the running app continues to serve the old rows."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from penstock.analyze.plan_print import plan_print
from penstock.analyze.session import Session
from penstock.analyze.streaming import read_columns
from penstock.app.app import App
from penstock.app.declared import View
from penstock.app.fingerprints.stored import PlanPrint
from penstock.core.contracts import LogReader
from penstock.core.cursor import Positions, source_positions
from penstock.core.errors import BadCursor, DeclarationError, NotFound
from penstock.core.settings import Settings
from penstock.core.suggestions import counted
from penstock.runtime.comparison import Comparison
from penstock.runtime.derivation import positions_text
from penstock.runtime.events import carried_classes, stored_origins
from penstock.runtime.missing import missing
from penstock.runtime.rebuild_handler import CLOSE_EVENTS, PASSES_MAX
from penstock.runtime.storage import PreparedView, Storage
from penstock.runtime.viewrun import ViewRun, read_starts


class ViewRebuild:
    """The rebuild of one Spark view in a data directory, with the code of `target`.

    `spark` returns the session when it is first needed, because starting it takes a few seconds.
    """

    def __init__(
        self,
        app: App,
        view: View,
        storage: Storage,
        log: LogReader,
        settings: Settings,
        target: str,
        spark: Callable[[], Session],
    ) -> None:
        self.app, self.view, self.log, self.settings, self.spark = app, view, log, settings, spark
        self.opener = storage.log_opener(carried_classes(app, target))
        self.name = view.name
        self.storage = storage
        self.next_view = storage.next_view(view.name)
        try:
            self.origin: Positions = {name: dict(offsets) for name, offsets in read_starts(log, app, view).items()}
        except NotFound as error:
            raise DeclarationError(
                f"{view.where}: view {view.name}: {error.message} in {storage.location}, so there is nothing to "
                "rebuild it from; start the app with this file instead"
            ) from None
        self.comparison = Comparison(app, target, storage, settings)
        self.identity = secrets.token_hex(8)

    def missing(self) -> list[str]:
        """Return a line for each stream that no longer contains the first events of the view. It is known where the
        view began if the view has been rebuilt before; otherwise the view is assumed to have begun at the very first
        event."""
        rebuild = self.storage.rebuilt(self.name)
        return missing(self.log, self.origin, source_positions(rebuild.origin) if rebuild is not None else {})

    def prepare(self, tell: Callable[[int], None]) -> str:
        """Run the view over the log until it has caught up with the writers, and return a sentence that describes the
        result. Raises `DeclarationError`, before the view is run, if the view could not continue the stored stream of
        its changes."""
        spark = self.spark()  # first, because once Spark is up, the processes of an earlier, killed rebuild have ended
        refused = self.comparison.of_changes(self.view, self._plan().types)
        if refused is not None:
            raise DeclarationError(str(refused))
        self.next_view.begin()
        run = ViewRun(spark, self.app, self.view, self.storage, self.settings, self.opener)
        try:
            for _ in range(PASSES_MAX):
                events = run.advance(self.origin, tell)
                self._require_untrimmed()
                if events <= CLOSE_EVENTS:
                    break
            records, rows = counted(run.events(self.origin), "record"), counted(run.table.size, "row")
            return f"{self.name}: {records} from the log, {rows}"
        finally:
            run.close()

    def _require_untrimmed(self) -> None:
        if read_starts(self.log, self.app, self.view) != self.origin:
            raise BadCursor(
                f"during the rebuild, retention deleted events that view {self.name} reads; rebuild it again"
            )

    def mark(self) -> None:
        """Make the rebuilt view durable, then make it take effect."""
        made_with = self.comparison.view_print(self.view, self._plan())
        self.next_view.mark(PreparedView(self.identity, positions_text(self.origin), made_with))

    def _plan(self) -> PlanPrint:
        columns = read_columns(self.spark(), self.app, self.view, self.opener)
        return plan_print(self.spark(), self.app, self.view, columns, stored_origins(self.app, self.storage))[0]

    def is_taken_over(self) -> bool:
        rebuild = self.storage.rebuilt(self.name)
        return rebuild is not None and rebuild.id == self.identity and self.next_view.read() is None
