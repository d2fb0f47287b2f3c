"""Stored and declared fingerprints side by side: what becomes of each declaration's data under the code as it is now.

`penstock run` asks for all verdicts before anything starts, `penstock plan` prints them. The engine has the last word:
it asks again for each view and handler before its query starts, since a crashed engine loads a file that may have been
edited meanwhile. It alone records a fingerprint, once the comparison has passed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cached_property

import msgspec

from penstock.app import App
from penstock.declared import Handler, Keeper, Stream, View
from penstock.errors import DeclarationError, HandlerError, NotFound, StorageError, ViewError
from penstock.evolution import shape_of
from penstock.fingerprints.declared import classes_behind, handler_print, stream_print, view_print
from penstock.fingerprints.stored import (
    PlanPrint,
    Prints,
    ViewPrint,
    read_prints,
    versions,
    write_prints,
)
from penstock.fingerprints.verdicts import (
    Kind,
    Verdict,
    edited_migrations,
    handler_verdict,
    is_moved,
    stream_verdict,
    view_verdict,
)
from penstock.graph import downstream, is_derived, log_inputs
from penstock.queue import EmbeddedLog
from penstock.runtime.changestreams import arrow_types, changes_problems, has_changes
from penstock.runtime.directory import DataDirectory
from penstock.runtime.events import (
    event_changes,
    event_classes,
    event_streams,
    open_log,
    stored_origins,
    stream_problems,
)
from penstock.runtime.leftovers import Leftover, leftovers, other_sort, stored
from penstock.runtime.loading import code_of
from penstock.runtime.nextview import NextView
from penstock.runtime.renewal import is_prepared, problem_of, unfinished_by
from penstock.runtime.retention import last_entry
from penstock.schema import event_schema, shown
from penstock.settings import Settings
from penstock.store import Handled, read_handled

REBUILD = {
    Kind.incompatible: "Compute it again from the log",
    Kind.compatible: "To have it computed from the log by the new code",
}
OTHER_NAME = "Give it another name, or remove what it has, with what was computed from its changes"
FINISH = "Start the code that it was rebuilt with once, which finishes the rebuild; then rebuild it with this one"
NO_STREAM = 0
"""The generation of a stream that is not there."""
Plans = Mapping[str, PlanPrint | str]
"""By the names of views. A text is the reason why there is none."""


class Comparison:
    """Of one app and one data directory. Made as soon as the app's file is loaded: the texts of functions are read
    here, and must be those that were loaded. Reads the directory and changes nothing, but for `record`."""

    def __init__(self, app: App, target: str, directory: DataDirectory, settings: Settings) -> None:
        self.app, self.target, self.directory = app, target, directory
        self.code = code_of(target)
        self.stored = read_prints(directory.declarations)
        names = self._first_names = stored_origins(app, directory)
        self.declared = Prints(
            {each.name: stream_print(each, settings, names.get(each.name, {})) for each in app.streams},
            {each.name: view_print(app, each) for each in app.queries},
            {each.name: handler_print(each, (*app.streams, *app.outputs), names) for each in app.handlers},
        )

    @cached_property
    def _known(self) -> Prints:
        return self.stored or Prints()

    def verdicts(self, plans: Plans | None = None) -> list[Verdict]:
        """One for each declaration, in their order, and one for each that was removed. Without `plans` some views may
        be undecided."""
        unreadable = self._unreadable()
        misread = frozenset(each for each in unreadable if self._lacks_fields(each))
        streams = [self.of_stream(each) for each in self.app.streams]
        found = [unreadable.pop(each.name, each) for each in streams]
        found += [self._of_readable(each, (plans or {}).get(each.name), misread) for each in self.app.queries]
        found += [self._of_whole_handler(each) for each in self.app.handlers]
        removed = map(self._removed, leftovers(self.app, self.directory, self._known))
        return [*found, *unreadable.values(), *removed]

    def _unreadable(self) -> dict[str, Verdict]:
        """The streams, those that handlers and views fill included, whose events cannot be read as their classes."""
        found = {}
        with closing(open_log(self.app, self.directory)) as log:
            for stream in event_streams(self.app):
                reasons = stream_problems(log, stream)
                if reasons:
                    verdict = Verdict(Kind.incompatible, "stream", stream.name, stream.where, tuple(reasons))
                    found[stream.name] = verdict
        return found

    def _of_readable(self, view: View, plan: PlanPrint | str | None, misread: frozenset[str]) -> Verdict:
        """The same as `of_view`, but of a view behind which there is a class that does not say what became of a field:
        how the query compares depends on that, so the class comes first."""
        verdict = self.of_view(view, plan)
        behind = sorted(misread & classes_behind(self.app, view))
        by_plan = isinstance(plan, PlanPrint) and self.of_view(view).kind is Kind.undecided
        if not behind or not by_plan or verdict.kind is not Kind.incompatible:
            return verdict
        reason = f"its query is compared once the events of {behind[0]} can be read as their class"
        return Verdict(Kind.undecided, "view", view.name, view.where, (reason,))

    def _lacks_fields(self, stream: str) -> bool:
        """Whether stored events have a field of which their class says nothing: it may have been renamed."""
        now = event_classes(self.app)[stream]
        with closing(EmbeddedLog(self.directory.streams, read_only=True)) as log:
            before = log.event_shape(stream)
        told = {*now.shape.fields, *now.renamed, *now.dropped}
        return before is not None and not told.issuperset(before.fields)

    def _of_whole_handler(self, handler: Handler) -> Verdict:
        """The same as `of_handler`, before anything is running: a batch may be half done, and its events read as
        another version of their class."""
        verdict = self.of_handler(handler)
        if verdict.kind is Kind.incompatible:
            return verdict
        with closing(open_log(self.app, self.directory)) as log:
            reason = unfinished_by(self.app, handler, self.directory, log, self.code)
        return verdict if reason is None else replace(verdict, kind=Kind.incompatible, reasons=(reason,))

    def of_stream(self, stream: Stream) -> Verdict:
        other = self._of_other_sort(Verdict(Kind.incompatible, "stream", stream.name, stream.where))
        if other is not None:
            return other
        verdict = Verdict(Kind.new, "stream", stream.name, stream.where)
        old, new = self._known.streams.get(stream.name), self.declared.streams[stream.name]
        ends = self._ends(stream.name)
        if not ends:
            return verdict
        if old is None:
            old = msgspec.structs.replace(new, partitions=len(ends))
            verdict = replace(verdict, kind=Kind.adopted)
        if not any(ends.values()):
            old = msgspec.structs.replace(new, partitions=old.partitions)  # nothing was placed by the key yet
        found = stream_verdict(old, new, verdict)
        noted = tuple(event_changes(stream, self.directory)) if any(ends.values()) else ()
        if noted and found.kind in (Kind.unchanged, Kind.compatible):
            found = replace(found, kind=Kind.compatible, reasons=(*found.reasons, *noted))
        if found.kind is Kind.incompatible:
            names = (stream.name, *self._readers_with_data(stream.name))
            advice = "Give the new stream another name, or delete its events and all that was computed from them"
            return replace(found, advice=advice, command=self._purge(*names))
        return verdict if verdict.kind is Kind.adopted and found.kind is Kind.unchanged else found

    def of_view(self, view: View, plan: PlanPrint | str | None = None, *, waiting: bool = True) -> Verdict:
        """The verdict on a view. A rebuild that waits to be taken over counts only if `waiting`: the engine takes over
        what it can before it asks."""
        other = self._of_other_sort(Verdict(Kind.incompatible, "view", view.name, view.where))
        found = other or self._of_rows(view, plan, waiting=waiting)
        if other is not None or found.kind is Kind.new or isinstance(plan, str):
            return found
        prepared = NextView(self.directory, view.name).read() if waiting and plan is None else None
        known = plan if prepared is None else prepared.made_with.plan
        conflict = self.of_changes(view, known.types if known is not None else {})
        if conflict is not None:
            return conflict
        settled = plan is not None or found.kind not in (Kind.unchanged, Kind.compatible)
        if settled or not is_derived(self.app, view) or not has_changes(self.directory, view):
            return found
        return replace(found, kind=Kind.undecided, reasons=()) if self._is_edited(view.name) else found

    def of_changes(self, view: View, types: Mapping[str, str]) -> Verdict | None:
        """The refusal of a view that could not go on with the stored stream of its changes, given the types of its
        columns as far as they are known; None if it can."""
        old = self._known.views.get(view.name)
        reasons = tuple(changes_problems(self.directory, view, view.key if old is None else old.key, types))
        if not reasons:
            return None
        command = self._purge(view.name, *self._readers_with_data(view.name))
        return Verdict(Kind.incompatible, "view", view.name, view.where, reasons, OTHER_NAME, command)

    def _is_edited(self, name: str) -> bool:
        """Whether the columns of a view may be others than before, because it, or a view whose rows it reads, has
        changed."""
        if name not in self.declared.views:
            return self._known.handlers.get(name) != self.declared.handlers.get(name)
        old, new = self._known.views.get(name), self.declared.views[name]
        if old is None or old.surface != new.surface:
            return True
        views = {each.name: each for each in self.app.queries}
        return is_derived(self.app, views[name]) and any(map(self._is_edited, views[name].reads))

    def _of_rows(self, view: View, plan: PlanPrint | str | None, *, waiting: bool) -> Verdict:
        """The verdict on the rows and the state of a view, whoever reads its changes."""
        verdict = Verdict(Kind.new, "view", view.name, view.where)
        if not self._has_run(view):
            return verdict
        if isinstance(plan, str):
            return replace(verdict, kind=Kind.incompatible, reasons=(f"its query cannot be built: {plan}",))
        new, old = self.view_print(view, plan), self._known.views.get(view.name)
        derived, prepared = is_derived(self.app, view), NextView(self.directory, view.name)
        rebuilt = prepared.read() if waiting else None
        if rebuilt is not None:
            found = view_verdict(rebuilt.made_with, new, verdict)
            if found.kind is not Kind.incompatible:
                return found if prepared.is_taken() else _taken_over(found)
            if prepared.is_taken():
                return replace(found, advice=FINISH)
        if old is None:
            return replace(verdict, kind=Kind.adopted)
        gone = self._of_lost_inputs(view, old.generations, verdict)
        if gone is not None:
            return gone
        found = view_verdict(old, new, verdict, derived=derived)
        if found.kind is Kind.incompatible and derived:
            names = (view.name, *self._readers_with_data(view.name))
            return replace(found, advice="To have it recomputed", command=self._purge(*names))
        if found.kind in (Kind.incompatible, Kind.compatible) and not derived:
            return replace(found, advice=REBUILD[found.kind], command=self._command("rebuild", f"--view {view.name}"))
        return found

    def is_made_by(self, view: View, made_with: ViewPrint, plan: Callable[[], PlanPrint]) -> bool:
        """Whether data with this fingerprint is what the code as it is now would make, and its changes can go on."""
        made = plan()
        verdict = view_verdict(made_with, self.view_print(view, made), Verdict(Kind.new, "view", view.name))
        return verdict.kind in (Kind.unchanged, Kind.compatible) and self.of_changes(view, made.types) is None

    def view_print(self, view: View, plan: PlanPrint | None) -> ViewPrint:
        """The fingerprint of a view as it is declared, with its plan if that is known."""
        return msgspec.structs.replace(self.declared.views[view.name], plan=plan, generations=self._generations(view))

    def _of_other_sort(self, refusal: Verdict) -> Verdict | None:
        """Refuse a declaration whose name has data of another sort, such as a view that was a handler; None if it is
        of the sort that it was."""
        reason = other_sort(refusal.name, refusal.sort, self.directory, self._known)
        if reason is None:
            return None
        command = self._purge(refusal.name, *self._readers_with_data(refusal.name))
        return replace(
            refusal, reasons=(reason,), advice="Give it another name, or remove what it has", command=command
        )

    def of_handler(self, handler: Handler) -> Verdict:
        other = self._of_other_sort(Verdict(Kind.incompatible, "handler", handler.name, handler.where))
        if other is not None:
            return other
        if isinstance(handler, Keeper):
            conflict = self.of_changes(handler.view, arrow_types(shown(event_schema(handler.row))))
            if conflict is not None:
                return replace(conflict, sort="handler")
        return self._of_state(handler)

    def _of_state(self, handler: Handler) -> Verdict:
        """The verdict on what a handler has, whoever reads the changes of the view that it keeps."""
        verdict = Verdict(Kind.new, "handler", handler.name, handler.where)
        handled = self._handled(handler)
        if handled is None or is_prepared(handler, self.directory, self.code):
            return verdict
        rebuild = self._command("rebuild", f"--handler {handler.name}")
        old, new = self._known.handlers.get(handler.name), self.declared.handlers[handler.name]
        gone = None if old is None else self._of_lost_inputs(handler, old.generations, verdict)
        if gone is not None:
            return gone
        if old is not None and is_moved(old, new):
            names = (handler.name, *self._readers_with_data(handler.name))
            advice = "Give it another name, or remove what it has"
            return replace(handler_verdict(old, new, verdict), advice=advice, command=self._purge(*names))
        reason = problem_of(handler, self.directory, self.code)
        if reason is not None and (old is None or old.where == new.where):
            advice = "Or rebuild its state from the log"
            return replace(verdict, kind=Kind.incompatible, reasons=(reason,), advice=advice, command=rebuild)
        if old is None:
            return replace(verdict, kind=Kind.adopted)
        found = handler_verdict(old, new, verdict)
        if found.kind is Kind.incompatible:
            return replace(found, advice="Give it another name, or rebuild its state from the log", command=rebuild)
        if found.kind is Kind.compatible and handled.intended is not None:
            reason = f"batch {handled.next_id} is half done, by the code that ran before"
            advice = "Run that code once more, until it is ready; then this"
            return replace(found, kind=Kind.incompatible, reasons=(reason, *found.reasons), advice=advice)
        if handled.shape != shape_of(handler.state):
            carried = f"its state is carried over to version {handler.state.__state_version__}"
            found = replace(found, kind=Kind.compatible, reasons=(*found.reasons, carried))
        if found.kind is Kind.compatible:
            return replace(found, advice=REBUILD[found.kind], command=rebuild)
        return found

    def _of_lost_inputs(self, node: View | Handler, before: Mapping[str, int], verdict: Verdict) -> Verdict | None:
        """Refuse a view or handler whose data was computed from a stream that was removed since: its positions are
        those of another stream. None if all of its streams are those that it has read."""
        now = self._generations(node)
        lost = [name for name, known in before.items() if known != NO_STREAM and now.get(name, known) != known]
        if not lost:
            return None
        reason = f"it was computed from events of {', '.join(lost)} that were removed"
        command = self._purge(node.name, *self._readers_with_data(node.name))
        return replace(
            verdict, kind=Kind.incompatible, reasons=(reason,), advice="Have it begin again", command=command
        )

    def _generations(self, node: View | Handler) -> dict[str, int]:
        """The generation of each stream of the log that a view or handler reads. One whose file is damaged is left out:
        that is its own failure."""
        found = {}
        with closing(EmbeddedLog(self.directory.streams, read_only=True)) as log:
            for name in log_inputs(self.app, node):
                try:
                    found[name] = log.generation(name)
                except NotFound:
                    found[name] = NO_STREAM
                except StorageError:
                    continue
        return found

    def rereads(self, handler: Handler) -> bool:
        """Whether an edited `migrate` reads events that a handler has handled as something else. The ledger knows by
        itself of another version of their class."""
        old = self._known.handlers.get(handler.name)
        return old is not None and any(edited_migrations(old, self.declared.handlers[handler.name]))

    def require(self, node: View | Handler, plan: Callable[[], PlanPrint] | None = None) -> Verdict:
        """The verdict on a view or handler that may go on with the data that it has; raises the reason if it must not.
        A plan is made where the text of the view does not tell enough, and to be recorded."""
        self._require_streams(node)
        if isinstance(node, Handler):
            verdict = self.of_handler(node)
        else:
            verdict = self.of_view(node, waiting=False)
            if plan is not None and self._needs_plan(node, verdict):
                made = plan()
                verdict = self.of_view(node, made, waiting=False)
                self._declare(node.name, made)
        if verdict.kind in (Kind.incompatible, Kind.undecided):
            self._require_readable(node)
            error = HandlerError if isinstance(node, Handler) else ViewError
            raise error(str(verdict), **{verdict.sort: node.name})
        return verdict

    def record(self, node: View | Handler) -> None:
        """Store the fingerprint of a node that passed the comparison. Durable on return."""
        if isinstance(node, Handler):
            known = self._known
            made = msgspec.structs.replace(self.declared.handlers[node.name], generations=self._generations(node))
            handlers = known.handlers | {node.name: made}
            self._store(Prints(known.streams, known.views, handlers))
        else:
            made_with = self._with_known_plan(node.name)
            self.record_view(node.name, msgspec.structs.replace(made_with, generations=self._generations(node)))

    def record_view(self, name: str, made_with: ViewPrint) -> None:
        """Store the fingerprint that the data of a view was made with, as when a rebuilt view was taken over."""
        known = self._known
        self._store(Prints(known.streams, known.views | {name: made_with}, known.handlers))

    def record_streams(self) -> None:
        """Store the fingerprints of the streams that passed the comparison. Durable on return. A stream whose file is
        damaged keeps the one it has: the first name of its key is not known."""
        verdicts = {each.name: self.of_stream(each) for each in self.app.streams}
        sound = {
            name: self.declared.streams[name]
            for name, verdict in verdicts.items()
            if verdict.kind is not Kind.incompatible and name in self._first_names
        }
        known = self._known
        self._store(Prints(known.streams | sound, known.views, known.handlers))

    def _store(self, made: Prints) -> None:
        if made != self.stored:
            write_prints(self.directory.declarations, made)
            self.stored = made
            self.__dict__.pop("_known", None)

    def require_streams(self) -> None:
        """Raise the reason why events must not be added to a stream. For the process that writes them."""
        for stream in self.app.streams:
            verdict = self.of_stream(stream)
            if verdict.kind is Kind.incompatible:
                raise DeclarationError(str(verdict), stream=stream.name)

    def _require_streams(self, node: View | Handler) -> None:
        for stream in self.app.streams:
            if stream.name in node.reads:
                verdict = self.of_stream(stream)
                if verdict.kind is Kind.incompatible:
                    raise DeclarationError(str(verdict), stream=stream.name)

    def _require_readable(self, node: View | Handler) -> None:
        """Raise that the class of events that a view reads does not say what became of a field: once it does, what else
        differs may not count."""
        behind = classes_behind(self.app, node) if isinstance(node, View) else frozenset()
        for name, verdict in self._unreadable().items() if behind else ():
            if name in behind and self._lacks_fields(name):
                raise DeclarationError(str(verdict), stream=name)

    def _needs_plan(self, view: View, verdict: Verdict) -> bool:
        """Whether a plan is to be made: where it decides, where none is stored, and where a function makes the query,
        which may read what its text does not show, such as the environment."""
        if is_derived(self.app, view) or verdict.kind is Kind.incompatible:
            return verdict.kind is Kind.undecided
        old = self._known.views.get(view.name)
        stale = old is None or old.plan is None or old.versions != versions()
        return stale or verdict.kind in (Kind.undecided, Kind.new) or view.function is not None

    def _declare(self, view: str, plan: PlanPrint) -> None:
        made = msgspec.structs.replace(self.declared.views[view], plan=plan)
        self.declared = msgspec.structs.replace(self.declared, views=self.declared.views | {view: made})

    def _with_known_plan(self, view: str) -> ViewPrint:
        """A view whose text is as it was keeps the plan that is stored."""
        declared, old = self.declared.views[view], self._known.views.get(view)
        if declared.plan is None and old is not None and old.versions == declared.versions:
            return msgspec.structs.replace(declared, plan=old.plan)
        return declared

    def _ends(self, stream: str) -> Mapping[int, int]:
        log = EmbeddedLog(self.directory.streams, read_only=True)
        try:
            return log.ends(stream)
        except (NotFound, StorageError):
            return {}
        finally:
            log.close()

    def _has_run(self, view: View) -> bool:
        """Whether a view has rows, or Spark has planned a batch of it: before, it has no state either."""
        offsets = self.directory.checkpoint(view.name) / "offsets"
        if offsets.is_dir() and any(each.name.isdigit() for each in offsets.iterdir()):
            return True
        try:
            return last_entry(self.directory, view) is not None
        except StorageError:
            return False  # its own failure, told by the engine

    def _handled(self, handler: Handler) -> Handled | None:
        try:
            found = read_handled(self.directory.handler_ledger(handler.name))
        except StorageError:
            return None  # its own failure, told by the engine
        return found if found is not None and (found.entry is not None or found.intended is not None) else None

    def _removed(self, left: Leftover) -> Verdict:
        reasons = (f"it is no longer declared; what it has ({left.size_text}) is kept",)
        advice = "To remove it for good"
        return Verdict(Kind.removed, left.sort, left.name, None, reasons, advice, self._purge(left.name))

    def _readers_with_data(self, name: str) -> list[str]:
        there = stored(self.directory)
        return [each for each in downstream(self.app, name) if each in there]

    def _purge(self, *names: str) -> str:
        """The command that removes data for good. Without `--yes` it would only say what it removes."""
        return f"{self._command('purge', *names)} --yes"

    def _command(self, command: str, *arguments: str) -> str:
        return command_line(self.target, self.directory, command, *arguments)


def _taken_over(found: Verdict) -> Verdict:
    """The verdict on a view that was rebuilt with this code, and has the rows of another still."""
    kind = Kind.compatible if found.kind is Kind.unchanged else found.kind
    return replace(
        found, kind=kind, reasons=("it was rebuilt: its new rows are taken over at the start", *found.reasons)
    )


def command_line(target: str, directory: DataDirectory, command: str, *arguments: str) -> str:
    """A command of ours that can be pasted into a shell; the data directory is left out if it is the usual one."""
    data = [] if str(directory.root) == ".penstock" else ["--data", shlex.quote(str(directory.root))]
    return " ".join(("penstock", command, shlex.quote(target), *arguments, *data))
