"""Compare stored and declared fingerprints, to decide what happens to each declaration's data under the current code.

`penstock run` asks for all verdicts before anything starts, and `penstock plan` prints them. The engine's verdict is
final: the engine compares again for each view and handler before its query starts, because an engine that restarts
after a crash loads a file that may have been edited. Only the engine records a fingerprint, after the comparison has
passed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property

import msgspec

from penstock.app.app import App
from penstock.app.declared import Handler, Stream, View, ViewHandler
from penstock.app.fingerprints.declared import classes_behind, handler_print, stream_print, view_print
from penstock.app.fingerprints.stored import HandlerPrint, PlanPrint, Prints, ViewPrint, versions
from penstock.app.fingerprints.verdicts import (
    Verdict,
    VerdictKind,
    edited_migrations,
    handler_verdict,
    is_moved,
    stream_verdict,
    view_verdict,
)
from penstock.app.graph import downstream, is_derived, log_inputs
from penstock.core.errors import DeclarationError, HandlerError, NotFound, StorageError, ViewError
from penstock.core.schema import event_schema, shown
from penstock.core.settings import Settings
from penstock.core.shapes import shape_of
from penstock.handlers.contracts import HandlerLedgerEntry
from penstock.runtime.changestreams import arrow_types, changes_problems, has_changes
from penstock.runtime.events import (
    event_changes,
    event_classes,
    event_streams,
    open_log,
    stored_origins,
    stream_problems,
)
from penstock.runtime.leftovers import Leftover, leftovers, other_sort
from penstock.runtime.prepared import IGNORED, is_made_by, rebuild_print
from penstock.runtime.retention import last_entry
from penstock.runtime.row_class import row_notes, row_problems
from penstock.runtime.state_replacement import problem_of, unfinished_by
from penstock.runtime.storage import PreparedHandler, Storage
from penstock.runtime.views import stored_columns
from penstock.store import half_done

REBUILD = {
    VerdictKind.incompatible: "Recompute it from the log",
    VerdictKind.compatible: "To recompute it from the log with the new code",
}
OTHER_NAME = "Give it another name, or delete its data and everything computed from its changes"
FINISH = "Start the app once with the code that rebuilt it, to finish the rebuild; then rebuild it with this code"
HALF_ADOPTED = "the app began to switch to state that other code had rebuilt, but has not finished"
NO_STREAM = 0
"""Generation of a stream that does not exist."""
Plans = Mapping[str, PlanPrint | str]
"""The plan of each view, by name, or a string that says why the view has no plan."""


class Comparison:
    """Compares one app with one storage. Create it as soon as the app's file is loaded, because it reads the source of
    functions immediately, and must see the source that was loaded. Only the `record` methods write to the storage."""

    def __init__(self, app: App, target: str, storage: Storage, settings: Settings) -> None:
        self.app, self.target, self.storage, self.settings = app, target, storage, settings
        self.stored = storage.prints()
        names = self._first_names = stored_origins(app, storage)
        self.declared = Prints(
            {stream.name: stream_print(stream, settings, names.get(stream.name, {})) for stream in app.streams},
            {query.name: view_print(app, query) for query in app.queries},
            {handler.name: handler_print(handler, (*app.streams, *app.outputs), names) for handler in app.handlers},
        )
        self._rebuild_prints = {
            handler.name: rebuild_print(app, handler, self.declared.handlers[handler.name]) for handler in app.handlers
        }

    @cached_property
    def _known(self) -> Prints:
        return self.stored or Prints()

    def verdicts(self, plans: Plans | None = None) -> list[Verdict]:
        """Return a verdict on each declaration, in order, and on each removed declaration. Without `plans`, some views
        may be undecided."""
        unreadable = self._unreadable()
        misread = frozenset(name for name in unreadable if self._lacks_fields(name))
        streams = [self.of_stream(stream) for stream in self.app.streams]
        nodes = [self._of_readable(query, (plans or {}).get(query.name), misread) for query in self.app.queries]
        nodes += [self._of_whole_handler(handler) for handler in self.app.handlers]
        nodes = self._blocked(nodes, unreadable)
        verdicts = [*(unreadable.pop(verdict.name, verdict) for verdict in streams), *nodes]
        removed = map(self._removed, leftovers(self.app, self.storage, self._known))
        return [*verdicts, *unreadable.values(), *removed]

    def _unreadable(self) -> dict[str, Verdict]:
        """Return the streams whose events cannot be read as their classes, including streams that handlers and views
        fill."""
        verdicts = {}
        with closing(open_log(self.app, self.storage)) as log:
            for stream in event_streams(self.app):
                reasons = stream_problems(log, stream)
                if reasons:
                    verdict = Verdict(VerdictKind.incompatible, "stream", stream.name, stream.where, tuple(reasons))
                    verdicts[stream.name] = verdict
        return verdicts

    def _of_readable(self, view: View, plan: PlanPrint | str | None, misread: frozenset[str]) -> Verdict:
        """Return the verdict on a view from `of_view`, unless the class of an input does not say what happened to a
        field. In that case, the problem with the class is reported first, because the comparison of the query depends
        on the class."""
        verdict = self.of_view(view, plan)
        behind = sorted(misread & classes_behind(self.app, view))
        by_plan = isinstance(plan, PlanPrint) and self.of_view(view).kind is VerdictKind.undecided
        if not behind or not by_plan or verdict.kind is not VerdictKind.incompatible:
            return verdict
        reason = f"its query will be compared once the events of {behind[0]} can be read as their class"
        return Verdict(VerdictKind.undecided, "view", view.name, view.where, (reason,))

    def _blocked(self, verdicts: Sequence[Verdict], unreadable: Iterable[str]) -> list[Verdict]:
        """Return the verdicts, each without its command if that command is a rebuild that cannot run yet. A rebuild
        cannot run while events that it needs cannot be read as their class."""
        streams = {reader: stream for stream in unreadable for reader in downstream(self.app, stream)}
        return [
            replace(verdict, advice=f"First fix the problem with the stream {streams[verdict.name]}", command=None)
            if verdict.name in streams and _advises_rebuild(verdict)
            else verdict
            for verdict in verdicts
        ]

    def _lacks_fields(self, stream: str) -> bool:
        """Return whether stored events have a field that their class does not mention and that may have been
        renamed."""
        now = event_classes(self.app)[stream]
        with closing(self.storage.log_reader()) as log:
            before = log.event_shape(stream)
        fields = {*now.shape.fields, *now.renamed, *now.dropped}
        return before is not None and not fields.issuperset(before.fields)

    def _of_whole_handler(self, handler: Handler) -> Verdict:
        """Return the verdict on a handler before anything runs: the verdict from `of_handler`, or a refusal if a
        half-done batch must be finished by the code that began it. That batch may have read its events as a different
        version of their class."""
        verdict = self.of_handler(handler)
        if verdict.kind is VerdictKind.incompatible:
            return verdict
        with closing(open_log(self.app, self.storage)) as log:
            reason = unfinished_by(self.app, handler, self.storage, log)
        return verdict if reason is None else replace(verdict, kind=VerdictKind.incompatible, reasons=(reason,))

    def of_stream(self, stream: Stream) -> Verdict:
        other = self._of_other_sort(Verdict(VerdictKind.incompatible, "stream", stream.name, stream.where))
        if other is not None:
            return other
        verdict = Verdict(VerdictKind.new, "stream", stream.name, stream.where)
        old, new = self._known.streams.get(stream.name), self.declared.streams[stream.name]
        ends = self._ends(stream.name)
        if not ends:
            return verdict
        if old is None:
            old = msgspec.structs.replace(new, partitions=len(ends))
            verdict = replace(verdict, kind=VerdictKind.adopted)
        if not any(ends.values()):
            old = msgspec.structs.replace(new, partitions=old.partitions)  # no event has a partition yet
        result = stream_verdict(old, new, verdict)
        noted = tuple(event_changes(stream, self.storage)) if any(ends.values()) else ()
        if noted and result.kind in (VerdictKind.unchanged, VerdictKind.compatible):
            result = replace(result, kind=VerdictKind.compatible, reasons=(*result.reasons, *noted))
        if result.kind is VerdictKind.incompatible:
            names = (stream.name, *self._readers_with_data(stream.name))
            advice = "Give the new stream another name, or delete its events and everything computed from them"
            return replace(result, advice=advice, command=self._purge(*names))
        return verdict if verdict.kind is VerdictKind.adopted and result.kind is VerdictKind.unchanged else result

    def of_view(self, view: View, plan: PlanPrint | str | None = None, *, waiting: bool = True) -> Verdict:
        """Return the verdict on a view. A rebuild that has not been adopted yet is considered only with `waiting`,
        because the engine adopts rebuilds before it compares."""
        other = self._of_other_sort(Verdict(VerdictKind.incompatible, "view", view.name, view.where))
        result = other or self._of_rows(view, plan, waiting=waiting)
        if other is not None or result.kind is VerdictKind.new or isinstance(plan, str):
            return result
        prepared = self.storage.next_view(view.name).read() if waiting and plan is None else None
        known = plan if prepared is None else prepared.made_with.plan
        conflict = self.of_changes(view, known.types if known is not None else {})
        if conflict is not None:
            return conflict
        settled = plan is not None or result.kind not in (VerdictKind.unchanged, VerdictKind.compatible)
        if settled or not is_derived(self.app, view) or not has_changes(self.storage, view):
            return result
        return replace(result, kind=VerdictKind.undecided, reasons=()) if self._is_edited(view.name) else result

    def of_changes(self, view: View, types: Mapping[str, str]) -> Verdict | None:
        """Return the verdict that refuses a view because it cannot continue the stored stream of its changes, or None
        if it can. `types` contains the known types of its columns."""
        old = self._known.views.get(view.name)
        reasons = tuple(changes_problems(self.storage, view, view.key if old is None else old.key, types))
        if not reasons:
            return None
        command = self._purge(view.name, *self._readers_with_data(view.name))
        return Verdict(VerdictKind.incompatible, "view", view.name, view.where, reasons, OTHER_NAME, command)

    def _is_edited(self, name: str) -> bool:
        """Return whether the columns of a view may have changed because the view, or a view that it reads, was
        edited."""
        if name not in self.declared.views:
            return self._known.handlers.get(name) != self.declared.handlers.get(name)
        old, new = self._known.views.get(name), self.declared.views[name]
        if old is None or old.surface != new.surface:
            return True
        views = {query.name: query for query in self.app.queries}
        return is_derived(self.app, views[name]) and any(map(self._is_edited, views[name].reads))

    def _of_rows(self, view: View, plan: PlanPrint | str | None, *, waiting: bool) -> Verdict:
        """Return the verdict on the rows and the state of a view, ignoring the readers of its changes."""
        verdict = Verdict(VerdictKind.new, "view", view.name, view.where)
        if not self._has_run(view):
            return verdict
        if isinstance(plan, str):
            return replace(verdict, kind=VerdictKind.incompatible, reasons=(f"its query cannot be built: {plan}",))
        new, old = self.view_print(view, plan), self._known.views.get(view.name)
        derived, prepared = is_derived(self.app, view), self.storage.next_view(view.name)
        rebuilt = prepared.read() if waiting else None
        lost = None if rebuilt is None else self._of_lost_inputs(view, rebuilt.made_with.generations, verdict)
        if lost is not None and prepared.is_taken():
            return lost
        if rebuilt is not None and lost is None:
            result = view_verdict(rebuilt.made_with, new, verdict)
            if result.kind is not VerdictKind.incompatible:
                return result if prepared.is_taken() else _taken_over(result)
            if prepared.is_taken():
                return replace(result, advice=FINISH)
        if old is None:
            return replace(verdict, kind=VerdictKind.adopted)
        gone = self._of_lost_inputs(view, old.generations, verdict)
        if gone is not None:
            return gone
        result = view_verdict(old, new, verdict, derived=derived)
        if result.kind is VerdictKind.incompatible and derived:
            names = (view.name, *self._readers_with_data(view.name))
            return replace(result, advice="To recompute it", command=self._purge(*names))
        if result.kind in (VerdictKind.incompatible, VerdictKind.compatible) and not derived:
            return replace(result, advice=REBUILD[result.kind], command=self._command("rebuild", f"--view {view.name}"))
        return result

    def is_made_by(self, view: View, made_with: ViewPrint, plan: Callable[[], PlanPrint]) -> bool:
        """Return whether the current code would compute the data that this fingerprint describes, from streams that
        still exist, and can continue the view's stream of changes."""
        current_plan = plan()
        verdict = view_verdict(
            made_with, self.view_print(view, current_plan), Verdict(VerdictKind.new, "view", view.name)
        )
        return (
            verdict.kind in (VerdictKind.unchanged, VerdictKind.compatible)
            and self.of_changes(view, current_plan.types) is None
            and self._of_lost_inputs(view, made_with.generations, verdict) is None
        )

    def view_print(self, view: View, plan: PlanPrint | None) -> ViewPrint:
        """Return the fingerprint of a view as it is declared, including its plan if the plan is known."""
        return msgspec.structs.replace(self.declared.views[view.name], plan=plan, generations=self._generations(view))

    def _of_other_sort(self, refusal: Verdict) -> Verdict | None:
        """Return the verdict that refuses a declaration because a different sort of declaration has stored data under
        its name, as when a handler has become a view. Returns None if the sort is the same."""
        reason = other_sort(refusal.name, refusal.sort, self.storage, self._known)
        if reason is None:
            return None
        command = self._purge(refusal.name, *self._readers_with_data(refusal.name))
        return replace(refusal, reasons=(reason,), advice="Give it another name, or delete its data", command=command)

    def of_handler(self, handler: Handler) -> Verdict:
        other = self._of_other_sort(Verdict(VerdictKind.incompatible, "handler", handler.name, handler.where))
        if other is not None:
            return other
        if isinstance(handler, ViewHandler):
            conflict = self.of_changes(handler.view, arrow_types(shown(event_schema(handler.row))))
            if conflict is not None:
                return replace(conflict, sort="handler")
        return self._of_state(handler)

    def _of_state(self, handler: Handler) -> Verdict:
        """Return the verdict on a handler's data, ignoring the readers of the changes of its view."""
        verdict = Verdict(VerdictKind.new, "handler", handler.name, handler.where)
        handled = self._handled(handler)
        if handled is None:
            return verdict
        next_handler = self.storage.next_handler(handler.name)
        prepared = next_handler.read()
        if prepared is None:
            return self._of_running_state(handler, handled, verdict)
        if is_made_by(prepared, self.rebuild_print(handler)):
            return self._of_prepared(handler, handled, prepared, verdict)
        if next_handler.is_taken():
            return replace(verdict, kind=VerdictKind.incompatible, reasons=(HALF_ADOPTED,), advice=FINISH)
        result = self._of_running_state(handler, handled, verdict)
        result = replace(result, reasons=(*result.reasons, IGNORED))
        if result.kind is not VerdictKind.unchanged:
            return result
        advice = f"To use that state, start the app with that code; to replace it: {self._rebuild(handler)}"
        return replace(result, kind=VerdictKind.compatible, advice=advice)

    def _of_prepared(
        self, handler: Handler, handled: HandlerLedgerEntry, prepared: PreparedHandler, verdict: Verdict
    ) -> Verdict:
        """Return the verdict on a handler that was rebuilt with this code but still has its old state."""
        for known in (self._known.handlers.get(handler.name), prepared.made_with):
            gone = self._of_lost_inputs(handler, known.generations, verdict) if known is not None else None
            if gone is not None:
                return gone
        taken = "it was rebuilt: the next start switches to its new state"
        if handled.intended is not None:
            if not self._began_batch(handler, handled):
                return replace(verdict, kind=VerdictKind.incompatible, reasons=(half_done(handled),))
            taken = (
                f"it was rebuilt: once batch {handled.next_id} is finished, the next start switches to its new state"
            )
        return replace(verdict, kind=VerdictKind.compatible, reasons=(taken,))

    def _began_batch(self, handler: Handler, handled: HandlerLedgerEntry) -> bool:
        """Return whether the current code began the handler's half-done batch."""
        old, new = self._known.handlers.get(handler.name), self.declared.handlers[handler.name]
        if old is None or handled.shape != shape_of(handler.state):
            return False
        return handler_verdict(old, new, Verdict(VerdictKind.new, "handler", "")).kind is VerdictKind.unchanged

    def adoptable(self, handler: Handler) -> PreparedHandler | None:
        """Return the state that a rebuild with this code has prepared for a handler. Returns None if there is no such
        state, if other code prepared it, or if this code must first finish a batch with the current state."""
        prepared, handled = self.storage.next_handler(handler.name).read(), self._handled(handler)
        if prepared is None or handled is None:
            return None
        waits = handled.intended is not None and self._began_batch(handler, handled)
        return prepared if is_made_by(prepared, self.rebuild_print(handler)) and not waits else None

    def rebuild_print(self, handler: Handler) -> HandlerPrint:
        """Return the fingerprint of the code that would compute a handler's state from the log, with the streams that
        it would read."""
        return msgspec.structs.replace(self._rebuild_prints[handler.name], generations=self._generations(handler))

    def _rebuild(self, handler: Handler) -> str:
        return self._command("rebuild", f"--handler {handler.name}")

    def _of_running_state(self, handler: Handler, handled: HandlerLedgerEntry, verdict: Verdict) -> Verdict:
        """Return the verdict on the state that a handler runs with, ignoring state that a rebuild has prepared."""
        rebuild = self._rebuild(handler)
        old, new = self._known.handlers.get(handler.name), self.declared.handlers[handler.name]
        gone = None if old is None else self._of_lost_inputs(handler, old.generations, verdict)
        if gone is not None:
            return gone
        if old is not None and is_moved(old, new):
            names = (handler.name, *self._readers_with_data(handler.name))
            advice = "Give it another name, or delete its data"
            return replace(handler_verdict(old, new, verdict), advice=advice, command=self._purge(*names))
        reason = problem_of(handler, self.storage)
        if reason is not None and (old is None or old.where == new.where):
            advice = "Or rebuild its state from the log"
            return replace(verdict, kind=VerdictKind.incompatible, reasons=(reason,), advice=advice, command=rebuild)
        if old is None:
            return replace(verdict, kind=VerdictKind.adopted)
        result = handler_verdict(old, new, verdict)
        if result.kind is VerdictKind.incompatible:
            return replace(result, advice="Give it another name, or rebuild its state from the log", command=rebuild)
        if result.kind is VerdictKind.compatible and handled.intended is not None:
            reason = f"batch {handled.next_id} was started by the previous code and is half done"
            advice = "Run the previous code once more, until the app is ready; then run this code"
            return replace(result, kind=VerdictKind.incompatible, reasons=(reason, *result.reasons), advice=advice)
        if isinstance(handler, ViewHandler):
            result = self._of_stored_rows(handler, result)
            if result.kind is VerdictKind.incompatible:
                return replace(result, advice="Recompute its rows from the log", command=rebuild)
        if handled.shape != shape_of(handler.state):
            carried = f"its state is carried over to version {handler.state.__state_version__}"
            result = replace(result, kind=VerdictKind.compatible, reasons=(*result.reasons, carried))
        if result.kind is VerdictKind.compatible:
            return replace(result, advice=REBUILD[result.kind], command=rebuild)
        return result

    def _of_stored_rows(self, handler: ViewHandler, result: Verdict) -> Verdict:
        """Return the verdict on a handler, given the stored rows of its view, which may have an earlier row class."""
        try:
            stored = stored_columns(handler.view, self.storage, self.settings)
        except StorageError:
            return result  # its own failure, which the engine reports
        if stored is None:
            return result
        reasons = tuple(row_problems(handler, stored))
        if reasons:
            return replace(result, kind=VerdictKind.incompatible, reasons=reasons)
        notes = tuple(row_notes(handler, stored))
        return replace(result, kind=VerdictKind.compatible, reasons=(*result.reasons, *notes)) if notes else result

    def _of_lost_inputs(self, node: View | Handler, before: Mapping[str, int], verdict: Verdict) -> Verdict | None:
        """Return the verdict that refuses a view or handler because its data was computed from a stream that has since
        been removed, so its positions are no longer valid. Returns None if all streams that it has read still exist."""
        now = self._generations(node)
        lost = [name for name, known in before.items() if known != NO_STREAM and now.get(name, known) != known]
        if not lost:
            return None
        reason = f"it was computed from events of {', '.join(lost)} that have since been removed"
        command = self._purge(node.name, *self._readers_with_data(node.name))
        return replace(
            verdict,
            kind=VerdictKind.incompatible,
            reasons=(reason,),
            advice="Start it again from the beginning",
            command=command,
        )

    def _generations(self, node: View | Handler) -> dict[str, int]:
        """Return the generation of each log stream that a view or handler reads. A stream with a damaged file is left
        out, because the damage is reported as the stream's own failure."""
        generations = {}
        with closing(self.storage.log_reader()) as log:
            for name in log_inputs(self.app, node):
                try:
                    generations[name] = log.generation(name)
                except NotFound:
                    generations[name] = NO_STREAM
                except StorageError:
                    continue
        return generations

    def rereads(self, handler: Handler) -> bool:
        """Return whether a `migrate` has been edited so that events that a handler has already processed would now be
        read differently. A change to the class's version is visible in the ledger itself."""
        old = self._known.handlers.get(handler.name)
        return old is not None and any(edited_migrations(old, self.declared.handlers[handler.name]))

    def require(self, node: View | Handler, plan: Callable[[], PlanPrint] | None = None) -> Verdict:
        """Return the verdict on a view or handler if it may continue with its data. Otherwise, raise an error with the
        reason. Creates a view's plan if the view's source does not decide the verdict, or if the plan must be
        recorded."""
        self._require_streams(node)
        if isinstance(node, Handler):
            verdict = self.of_handler(node)
        else:
            verdict = self.of_view(node, waiting=False)
            if plan is not None and self._needs_plan(node, verdict):
                current_plan = plan()
                verdict = self.of_view(node, current_plan, waiting=False)
                self._declare(node.name, current_plan)
        if verdict.kind in (VerdictKind.incompatible, VerdictKind.undecided):
            self._require_readable(node)
            error = HandlerError if isinstance(node, Handler) else ViewError
            raise error(str(verdict), **{verdict.sort: node.name})
        return verdict

    def record(self, node: View | Handler) -> None:
        """Store the fingerprint of a node that has passed the comparison. Durable on return."""
        if isinstance(node, Handler):
            known = self._known
            fingerprint = msgspec.structs.replace(
                self.declared.handlers[node.name], generations=self._generations(node)
            )
            handlers = known.handlers | {node.name: fingerprint}
            self._store(Prints(known.streams, known.views, handlers))
        else:
            made_with = self._with_known_plan(node.name)
            self.record_view(node.name, msgspec.structs.replace(made_with, generations=self._generations(node)))

    def record_view(self, name: str, made_with: ViewPrint) -> None:
        """Store the fingerprint of the code that computed a view's data, for example when a rebuilt view was
        adopted."""
        known = self._known
        self._store(Prints(known.streams, known.views | {name: made_with}, known.handlers))

    def record_streams(self) -> None:
        """Store the fingerprints of the streams that passed the comparison. Durable on return. A stream with a damaged
        file keeps its old fingerprint, because the original name of the stream's key is unknown."""
        verdicts = {stream.name: self.of_stream(stream) for stream in self.app.streams}
        sound = {
            name: self.declared.streams[name]
            for name, verdict in verdicts.items()
            if verdict.kind is not VerdictKind.incompatible and name in self._first_names
        }
        known = self._known
        self._store(Prints(known.streams | sound, known.views, known.handlers))

    def _store(self, prints: Prints) -> None:
        if prints != self.stored:
            self.storage.write_prints(prints)
            self.stored = prints
            self.__dict__.pop("_known", None)

    def require_streams(self) -> None:
        """Raise an error if events must not be added to a stream. Called by the process that writes to the stream."""
        for stream in self.app.streams:
            verdict = self.of_stream(stream)
            if verdict.kind is VerdictKind.incompatible:
                raise DeclarationError(str(verdict), stream=stream.name)

    def _require_streams(self, node: View | Handler) -> None:
        for stream in self.app.streams:
            if stream.name in node.reads:
                verdict = self.of_stream(stream)
                if verdict.kind is VerdictKind.incompatible:
                    raise DeclarationError(str(verdict), stream=stream.name)

    def _require_readable(self, node: View | Handler) -> None:
        """Raise an error if an event class that a view reads does not say what happened to a field. This is reported
        first, because fixing it may remove other differences."""
        behind = classes_behind(self.app, node) if isinstance(node, View) else frozenset()
        for name, verdict in self._unreadable().items() if behind else ():
            if name in behind and self._lacks_fields(name):
                raise DeclarationError(str(verdict), stream=name)

    def _needs_plan(self, view: View, verdict: Verdict) -> bool:
        """Return whether a view's plan is needed: if the plan decides the verdict, if no plan is stored, or if a
        function builds the query. Such a function may read something that its source does not show, such as the
        environment."""
        if is_derived(self.app, view) or verdict.kind is VerdictKind.incompatible:
            return verdict.kind is VerdictKind.undecided
        old = self._known.views.get(view.name)
        stale = old is None or old.plan is None or old.versions != versions()
        return stale or verdict.kind in (VerdictKind.undecided, VerdictKind.new) or view.function is not None

    def _declare(self, view: str, plan: PlanPrint) -> None:
        fingerprint = msgspec.structs.replace(self.declared.views[view], plan=plan)
        self.declared = msgspec.structs.replace(self.declared, views=self.declared.views | {view: fingerprint})

    def _with_known_plan(self, view: str) -> ViewPrint:
        """Return the fingerprint of a view. If the view's source has not changed, the stored plan is kept."""
        declared, old = self.declared.views[view], self._known.views.get(view)
        if declared.plan is None and old is not None and old.versions == declared.versions:
            return msgspec.structs.replace(declared, plan=old.plan)
        return declared

    def _ends(self, stream: str) -> Mapping[int, int]:
        log = self.storage.log_reader()
        try:
            return log.ends(stream)
        except (NotFound, StorageError):
            return {}
        finally:
            log.close()

    def _has_run(self, view: View) -> bool:
        """Return whether a view has rows or Spark has planned a batch for the view. Before that, the view has no state
        either."""
        if self.storage.checkpoint(view.name).has_planned():
            return True
        try:
            return last_entry(self.storage, view) is not None
        except StorageError:
            return False  # its own failure, which the engine reports

    def _handled(self, handler: Handler) -> HandlerLedgerEntry | None:
        try:
            ledger = self.storage.handled(handler.name)
        except StorageError:
            return None  # its own failure, which the engine reports
        return ledger if ledger is not None and (ledger.entry is not None or ledger.intended is not None) else None

    def _removed(self, left: Leftover) -> Verdict:
        reasons = (f"it is no longer declared; its data ({left.size_text}) is kept",)
        advice = "To delete it permanently"
        return Verdict(VerdictKind.removed, left.sort, left.name, None, reasons, advice, self._purge(left.name))

    def _readers_with_data(self, name: str) -> list[str]:
        there = self.storage.stored()
        return [reader for reader in downstream(self.app, name) if reader in there]

    def _purge(self, *names: str) -> str:
        """Return the command that deletes data permanently. Without `--yes`, the command would only list the data."""
        return f"{self._command('purge', *names)} --yes"

    def _command(self, command: str, *arguments: str) -> str:
        return command_line(self.target, self.storage, command, *arguments)


def _taken_over(verdict: Verdict) -> Verdict:
    """Return the verdict on a view that was rebuilt with this code but still has rows from other code."""
    kind = VerdictKind.compatible if verdict.kind is VerdictKind.unchanged else verdict.kind
    return replace(
        verdict, kind=kind, reasons=("it was rebuilt: the next start switches to its new rows", *verdict.reasons)
    )


def _advises_rebuild(verdict: Verdict) -> bool:
    return verdict.command is not None and verdict.command.startswith("penstock rebuild ")


def command_line(target: str, storage: Storage, command: str, *arguments: str) -> str:
    """Return a `penstock` command that can be pasted into a shell, without --data if the storage is the default one."""
    data = [] if storage.is_default else ["--data", shlex.quote(storage.location)]
    return " ".join(("penstock", command, shlex.quote(target), *arguments, *data))
