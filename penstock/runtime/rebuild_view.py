"""A view computed again from the log by its Spark query, beside the app that runs and goes on to serve the old one."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from penstock.analyze.planning import plan_print
from penstock.analyze.session import Session
from penstock.analyze.streaming import read_columns
from penstock.app import App
from penstock.contracts import LogReader
from penstock.cursor import Positions, source_positions
from penstock.declared import View
from penstock.errors import BadCursor, DeclarationError, NotFound
from penstock.fingerprints.stored import PlanPrint
from penstock.queue import EmbeddedLogOpener
from penstock.runtime.comparison import Comparison
from penstock.runtime.derivation import positions_text
from penstock.runtime.directory import DataDirectory
from penstock.runtime.events import carried_classes, stored_origins
from penstock.runtime.missing import missing
from penstock.runtime.nextview import NextView, PreparedView
from penstock.runtime.rebuild_handler import CLOSE_EVENTS, PASSES_MAX
from penstock.runtime.viewrun import ViewRun, read_starts
from penstock.settings import Settings
from penstock.store import rebuilt


class ViewRebuild:
    """One Spark view of an app, to be rebuilt in a data directory with the code of `target`.

    `spark` gives the session when it is first needed: it takes some seconds to start.
    """

    def __init__(
        self,
        app: App,
        view: View,
        directory: DataDirectory,
        log: LogReader,
        settings: Settings,
        target: str,
        spark: Callable[[], Session],
    ) -> None:
        self.app, self.view, self.log, self.settings, self.spark = app, view, log, settings, spark
        self.opener = EmbeddedLogOpener(directory.streams.resolve(), carried_classes(app, target))
        self.name = view.name
        self.directory = directory
        self.files = NextView(directory, view.name)
        try:
            self.origin: Positions = {name: dict(each) for name, each in read_starts(log, app, view).items()}
        except NotFound as error:
            raise DeclarationError(
                f"{view.where}: view {view.name}: {error.message} in {directory.root}: there is nothing to rebuild it "
                "from; start the app with this file instead"
            ) from None
        self.comparison = Comparison(app, target, directory, settings)
        self.identity = secrets.token_hex(8)

    def missing(self) -> list[str]:
        """What the log no longer has of what the view began with, a line for each stream. Where a view began is known
        if it was rebuilt; else it is taken to have begun with the first event ever."""
        found = rebuilt(self.directory.view_file(self.name))
        return missing(self.log, self.origin, source_positions(found.origin) if found is not None else {})

    def prepare(self, tell: Callable[[int], None]) -> str:
        """Run the view over the log until it has caught up with those who write; returns a sentence on it.
        Raises `DeclarationError` before that if it could not go on with the stored stream of its changes."""
        spark = self.spark()  # first: when it is up, what an earlier rebuild was killed with is surely gone
        refused = self.comparison.of_changes(self.view, self._plan().types)
        if refused is not None:
            raise DeclarationError(str(refused))
        self.files.begin()
        run = ViewRun(spark, self.app, self.view, self.files, self.settings, self.opener)
        try:
            for _ in range(PASSES_MAX):
                events = run.advance(self.origin, tell)
                self._require_untrimmed()
                if events <= CLOSE_EVENTS:
                    break
            return f"{self.name}: {run.events(self.origin):,} records of the log, {run.table.size:,} rows"
        finally:
            run.close()

    def _require_untrimmed(self) -> None:
        if read_starts(self.log, self.app, self.view) != self.origin:
            raise BadCursor(
                f"events that view {self.name} reads were dropped by retention while it was rebuilt; rebuild it again"
            )

    def mark(self) -> None:
        """Make the result durable, and have it count."""
        made_with = self.comparison.view_print(self.view, self._plan())
        self.files.mark(PreparedView(self.identity, positions_text(self.origin), made_with))

    def _plan(self) -> PlanPrint:
        columns = read_columns(self.spark(), self.app, self.view, self.opener)
        return plan_print(self.spark(), self.app, self.view, columns, stored_origins(self.app, self.directory))[0]

    def is_taken_over(self) -> bool:
        found = rebuilt(self.directory.view_file(self.name))
        return found is not None and found.id == self.identity and self.files.read() is None
