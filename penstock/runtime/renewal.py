"""Replacing all of a handler's state at once: carried over to a changed class, or made anew from the log; or the same
state once more, as a new beginning, when the events that led to it are read as something else from now on.

The new state is written beside the old one, as the next generation; then the ledger takes it over in one transaction.
A crash before that leaves the old state in place, and after it the new one. The batches that are done stay done: what
was emitted is not emitted again, and the next batch goes on where the last one ended.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.app import App
from penstock.contracts import HandledShard, LogReader
from penstock.cursor import source_positions
from penstock.declared import Handler
from penstock.errors import Damaged, DeclarationError, StorageError
from penstock.event_shape import EventShape
from penstock.evolution import Carrier, misfit, shape_of
from penstock.failpoints import reach
from penstock.files import write_atomic
from penstock.queue import EmbeddedLog
from penstock.runtime.directory import DataDirectory
from penstock.runtime.events import input_shapes
from penstock.runtime.rerows import Rerows
from penstock.runtime.rerun import Rerun, reads_decimals_otherwise
from penstock.runtime.states import ShardOpener
from penstock.settings import Settings
from penstock.shard import Shard
from penstock.store import Handled, HandlerLedger, ShardFiles, ViewTable, half_done, read_handled

log = logging.getLogger("penstock.engine")
VERSION = 0
"""Of the snapshots that a rebuild prepares."""


class Prepared(msgspec.Struct, frozen=True):
    """State that was made from the log for some code and waits to be taken over: `code` marks the app's file, `origin`
    is where it begins. There once all of the state is."""

    code: str
    origin: str


@dataclass(frozen=True)
class Next:
    """The folder in which a rebuild prepares the state of a handler."""

    directory: DataDirectory
    handler: str

    @property
    def folder(self) -> Path:
        return self.directory.handler_next(self.handler)

    @property
    def _mark(self) -> Path:
        return self.folder / "prepared.json"

    def files(self, number: int) -> ShardFiles:
        return ShardFiles(self.folder / str(number), self.handler, number)

    def read(self) -> Prepared | None:
        try:
            return msgspec.json.decode(self._mark.read_bytes(), type=Prepared)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError:
            raise Damaged(f"{self._mark} is damaged; remove {self.folder}, and rebuild again") from None

    def write(self, prepared: Prepared, run: Rerun, rows: Rerows) -> None:
        """Make state durable as prepared; what was there before is gone first."""
        self.remove()
        for number, shard in run.shards.items():
            self.files(number).write_snapshot(VERSION, shard, run.positions[number])
        rows.write(self.folder)
        write_atomic(self._mark, msgspec.json.encode(prepared), durable=True)

    def remove(self) -> None:
        self._mark.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def problems(app: App, directory: DataDirectory, code: str) -> Iterator[str]:
    """Why handlers of an app cannot take up the state that they have, each with what to do. One whose files cannot be
    read is passed over: that is its own failure, told by the engine, and no other's."""
    for handler in app.handlers:
        reason = problem_of(handler, directory, code)
        if reason is not None:
            yield f"{handler.where}: handler {handler.name}: {reason}; or have it made anew: penstock rebuild --help"


def unfinished(app: App, directory: DataDirectory, log: EmbeddedLog, code: str) -> Iterator[str]:
    """The handlers of an app that does not run whose last batch must be ended by the code that began it, before this
    code can take up their state. After a clean end there are none."""
    for handler in app.handlers:
        reason = unfinished_by(app, handler, directory, log, code)
        if reason is not None:
            yield f"{handler.where}: handler {handler.name}: {reason}"


def unfinished_by(app: App, handler: Handler, directory: DataDirectory, log: EmbeddedLog, code: str) -> str | None:
    """Why the code that began the last batch of a handler must end it; None if this code may."""
    try:
        handled = read_handled(directory.handler_ledger(handler.name))
    except StorageError:
        return None
    if handled is None or handled.intended is None:
        return None
    same = handled.shape == shape_of(handler.state) and not _reads_otherwise(app, handler, handled, log)
    return half_done(handled) if not same or _prepared(handler, directory, code) else None


def problem_of(handler: Handler, directory: DataDirectory, code: str) -> str | None:
    """Why a handler cannot take up the state that it has; None if it can, or if its files cannot be read."""
    try:
        handled = read_handled(directory.handler_ledger(handler.name))
    except StorageError:
        return None
    if handled is None or handled.shape == shape_of(handler.state) or _prepared(handler, directory, code):
        return None
    return misfit(handled.shape, handler.state)


def is_prepared(handler: Handler, directory: DataDirectory, code: str) -> bool:
    """Whether state made from the log waits to be taken over by this code."""
    return _prepared(handler, directory, code) is not None


def _prepared(handler: Handler, directory: DataDirectory, code: str) -> Prepared | None:
    found = Next(directory, handler.name).read()
    return found if found is not None and found.code == code else None


def _reads_otherwise(app: App, handler: Handler, handled: Handled, log: EmbeddedLog) -> bool:
    """Whether events from before are other ones now. A ledger that does not say how they were read is from before event
    classes could change: then the log tells, which has been opened with the classes of the app."""
    if reads_decimals_otherwise(app, handler, handled):
        return True
    inputs = input_shapes(app, handler.inputs)
    if handled.inputs is not None:
        return any(handled.inputs[name] != shape for name, shape in inputs.items() if name in handled.inputs)
    return any(log.is_evolved(name) for name in inputs)


@dataclass(frozen=True)
class Renewal:
    """A handler whose ledger is open, before its query starts."""

    app: App
    handler: Handler
    ledger: HandlerLedger
    directory: DataDirectory
    table: ViewTable | None = None

    @property
    def inputs(self) -> dict[str, EventShape]:
        """The event classes by which it reads."""
        return input_shapes(self.app, self.handler.inputs)

    def run(self, reader: EmbeddedLog, settings: Settings, code: str, *, reread: bool = False) -> None:
        """Take over what was prepared for this code, or carry the state over to a class that has changed.

        If events are read otherwise than before, by another version of their class or (`reread`) by an edited
        `migrate`, the handler's state becomes its new origin: the same events could lead to another state now.
        """
        self._clean()
        prepared, handled, name = _prepared(self.handler, self.directory, code), self.ledger.state, self.handler.name
        if prepared is not None and handled.entry is not None:
            log.info("%s: taking over the state that was made from the log", name)
            rows = Rerows(self.handler)
            shards = self._caught_up(reader, settings, rows)
            if self.table is not None:
                self.table.replace(rows.table())  # before the state, and again if that is not taken over
            self._adopt(shards, prepared.origin)
            Next(self.directory, name).remove()
        elif handled.shape != shape_of(self.handler.state):
            log.info("%s: carrying its state over to version %d", name, self.handler.state.__state_version__)
            self._adopt(self._carried(), handled.end, begins=True)
        elif handled.entry is not None and (reread or _reads_otherwise(self.app, self.handler, handled, reader)):
            log.info("%s: beginning anew with its state, since its events are read otherwise than before", name)
            self._adopt(self._current(), handled.end, begins=True)
        elif handled.inputs != self.inputs or handled.padded:
            self.ledger.note_inputs(self.inputs)
        self._clean()

    def _caught_up(self, reader: LogReader, settings: Settings, rows: Rerows) -> Mapping[int, Shard]:
        """The prepared state, brought on to where the handler stands; `rows` has those of the view that it keeps."""
        run, prepared = Rerun(self.app, self.handler, reader, settings), Next(self.directory, self.handler.name)
        for number in range(run.count):
            found = next(prepared.files(number).snapshots(VERSION), None)
            if found is None:
                raise Damaged(f"{prepared.folder} is not whole; remove it, and rebuild again")
            run.begin(number, *found)
        rows.read(prepared.folder)
        run.advance(source_positions(self.ledger.state.end), rows.see)
        return run.shards

    def _carried(self) -> Mapping[int, Shard]:
        handled, handler = self.ledger.state, self.handler
        reason = misfit(handled.shape, handler.state)
        if reason is not None:
            raise DeclarationError(f"{handler.where}: handler {handler.name}: {reason}")
        carrier = Carrier(handler.state, handled.shape)
        return {number: carrier.shard(shard) for number, shard in self._current().items()}

    def _current(self) -> Mapping[int, Shard]:
        handled, files = self.ledger.state, ShardOpener(self.directory, self.handler.name)
        return {
            number: files(handled.generation, number).load(known.version) for number, known in handled.shards.items()
        }

    def _adopt(self, shards: Mapping[int, Shard], origin: str, *, begins: bool = False) -> None:
        """Write the next generation, and have the ledger take it over. If the handler `begins` with it, it is kept for
        good, since no log leads to it."""
        handled, made = self.ledger.state, {}
        version, position = handled.next_id - 1, source_positions(handled.end)
        opened = ShardOpener(self.directory, self.handler.name)
        for number, shard in shards.items():
            if shard.records:
                files = opened(handled.generation + 1, number)
                (files.write_origin if begins else files.write_snapshot)(version, shard, position)
                made[number] = HandledShard.of(shard, version)
        reach("renewal.before_adopt")
        self.ledger.adopt(shape_of(self.handler.state), made, origin, self.inputs)
        reach("renewal.after_adopt")

    def _clean(self) -> None:
        """Remove generations that are not the ledger's: what was replaced, and what a crash has left half made."""
        current = self.directory.handler_state(self.handler.name, self.ledger.state.generation)
        for folder in current.parent.iterdir():
            if folder.is_dir() and folder.name.isdigit() and folder != current:
                shutil.rmtree(folder)
