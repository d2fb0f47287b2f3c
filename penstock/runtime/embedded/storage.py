"""`Storage` in a data directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.analyze.checkpoint import Checkpoint
from penstock.app.fingerprints.stored import Prints
from penstock.core.access.api_keys import KeyFile
from penstock.core.contracts import Clock, LedgerEntry, Log
from penstock.core.errors import PenstockError
from penstock.core.event_shape import EventSpec
from penstock.core.files import sync_filesystem, write_atomic
from penstock.core.shapes import Shape
from penstock.handlers.contracts import HandlerBatch, HandlerLedgerEntry, StateReplacement
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.runtime.embedded import directory as owners
from penstock.runtime.embedded.ack_key import read_or_create_key
from penstock.runtime.embedded.channel import FileChannel
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.handler import EmbeddedHandler, ShardOpener, commit, opened_here, replace_state
from penstock.runtime.embedded.next_handler import EmbeddedNextHandler
from penstock.runtime.embedded.next_view import EmbeddedNextView
from penstock.runtime.embedded.prints import read_prints, write_prints
from penstock.runtime.embedded.rebuild_lock import held_back, hold_back, rebuild_lock
from penstock.runtime.embedded.shard_claims import ClaimsOpener
from penstock.runtime.embedded.stored import interrupted, purge, size_bytes, stored_files, stored_sort
from penstock.runtime.embedded.webhooks import WebhookStore, registered
from penstock.runtime.storage import NO_CLASSES, OpenHandler, Owner, Ownership, PreparedView, WorkingFolders
from penstock.serve.webhooks.model import Hook
from penstock.store import (
    HandlerLedger,
    History,
    InMemoryView,
    Rebuilt,
    ShardFiles,
    StoredView,
    ViewReader,
    ViewSpec,
    ViewTable,
    adopt,
    ledger,
    read_handled,
    rebuilt,
)


def open_storage(location: str | Path) -> EmbeddedStorage:
    """Return the storage in a data directory, which need not exist yet. Opens nothing."""
    return EmbeddedStorage(DataDirectory(Path(location)))


@dataclass(frozen=True)
class EmbeddedStorage:
    """`Storage` as files below one folder: an SQLite file for each stream, view and ledger, and plain files for
    everything else."""

    directory: DataDirectory

    @property
    def location(self) -> str:
        return str(self.directory.root)

    @property
    def local(self) -> WorkingFolders:
        return WorkingFolders(self.directory.logs, self.directory.run)

    @property
    def is_default(self) -> bool:
        return self.directory.root == owners.DEFAULT

    def exists(self) -> bool:
        return self.directory.streams.is_dir()

    def create(self) -> None:
        self.directory.make()

    def own(self, app: str) -> Ownership:
        return owners.take(self.directory, app)

    def await_orphans(self, say: Callable[[str], None]) -> None:
        owners.await_orphans(self.directory, say)

    def owner(self) -> Owner | None:
        return owners.owner(self.directory)

    def last_owner(self) -> Owner | None:
        return owners.last_owner(self.directory)

    def hold(self) -> AbstractContextManager[None]:
        return owners.held(self.directory)

    def control(self) -> FileChannel:
        return FileChannel(self.directory)

    # The log

    def log(self, classes: Mapping[str, EventSpec] = NO_CLASSES, *, disk_reserve_bytes: int) -> EmbeddedLog:
        return EmbeddedLogOpener(self.directory.streams, classes).for_writing(disk_reserve_bytes=disk_reserve_bytes)

    def log_reader(self, classes: Mapping[str, EventSpec] = NO_CLASSES) -> EmbeddedLog:
        return self.log_opener(classes)()

    def log_opener(self, classes: Mapping[str, EventSpec] = NO_CLASSES) -> EmbeddedLogOpener:
        return EmbeddedLogOpener(self.directory.streams.resolve(), classes)

    # Views

    def view_table(self, spec: ViewSpec, clock: Clock) -> ViewTable:
        return ViewTable(self.directory.view_file(spec.name), spec, clock=clock)

    def view_reader(self, spec: ViewSpec) -> ViewReader | None:
        path = self.directory.view_file(spec.name)
        return ViewReader(path, spec) if path.exists() else None

    def live_view(self, spec: ViewSpec, *, buffered_changes: int) -> InMemoryView:
        return InMemoryView(self.directory.view_file(spec.name), spec, buffered_changes=buffered_changes)

    def view_entry(self, view: str) -> LedgerEntry | None:
        return ledger(self.directory.view_file(view))

    def view_history(self, view: str) -> History:
        return History(self.directory.view_file(view))

    def rebuilt(self, view: str) -> Rebuilt | None:
        return rebuilt(self.directory.view_file(view))

    def next_view(self, view: str) -> EmbeddedNextView:
        return EmbeddedNextView(self.directory, view)

    def adopt_view(self, spec: ViewSpec, prepared: PreparedView, *, epoch: int) -> Rebuilt:
        path, source = self.directory.view_file(spec.name), self.next_view(spec.name).file
        return adopt(path, source, spec, identity=prepared.id, origin=prepared.origin, epoch=epoch)

    def adopt_checkpoint(self, view: str, prepared: PreparedView) -> None:
        self.checkpoint(view).replace(self.next_view(view).checkpoint, prepared.id)

    # Handlers

    def handled(self, handler: str) -> HandlerLedgerEntry | None:
        return read_handled(self.directory.handler_ledger(handler))

    def handler_history(self, handler: str) -> History:
        return History(self.directory.handler_ledger(handler))

    def shard(self, handler: str, generation: int, number: int) -> ShardFiles:
        return ShardOpener(self.directory, handler)(generation, number)

    def shard_opener(self, handler: str) -> ShardOpener:
        return ShardOpener(DataDirectory(self.directory.root.resolve()), handler)

    def claims(self, handler: str) -> ClaimsOpener:
        return ClaimsOpener(self.directory.claims(handler).resolve())

    def drop_generations(self, handler: str, kept: int) -> None:
        current = self.directory.handler_state(handler, kept)
        for folder in current.parent.iterdir():
            if folder.is_dir() and folder.name.isdigit() and folder != current:
                shutil.rmtree(folder)

    def next_handler(self, handler: str) -> EmbeddedNextHandler:
        return EmbeddedNextHandler(self.directory, handler)

    def open_handler(
        self, handler: str, log: Log, *, count: int, origin: str, shape: Shape, table: StoredView | None = None
    ) -> EmbeddedHandler:
        path = self.directory.handler_ledger(handler)
        return EmbeddedHandler(handler, HandlerLedger(path, count, origin, shape), log, table)

    def commit(self, handler: OpenHandler, batch: HandlerBatch) -> bool:
        return commit(opened_here(handler), batch)

    def replace_state(self, handler: OpenHandler, replacement: StateReplacement) -> None:
        replace_state(opened_here(handler), ShardOpener(self.directory, handler.name), replacement)

    # Spark checkpoints

    def checkpoint(self, query: str) -> Checkpoint:
        return Checkpoint(self.directory.checkpoint(query))

    def begin_queries(self) -> bool:
        clean = self.directory.clean_mark.exists()
        self.directory.clean_mark.unlink(missing_ok=True)
        return clean

    def end_queries(self) -> None:
        sync_filesystem(self.directory.checkpoints)
        write_atomic(self.directory.clean_mark, b"", durable=True)

    # Fingerprints, keys and webhooks

    def prints(self) -> Prints | None:
        return read_prints(self.directory.declarations)

    def write_prints(self, prints: Prints) -> None:
        write_prints(self.directory.declarations, prints)

    def keys(self) -> KeyFile:
        return KeyFile(self.directory.keys)

    def ack_key(self) -> bytes:
        return read_or_create_key(self.directory.ack_key)

    def open_webhooks(self, fatal: Callable[[PenstockError], None]) -> WebhookStore:
        return WebhookStore(self.directory.webhooks, fatal)

    def registered_webhooks(self) -> Sequence[Hook]:
        return registered(self.directory.webhooks)

    # Rebuilds and purges

    def rebuild_lock(self) -> AbstractContextManager[None]:
        return rebuild_lock(self.directory)

    def hold_back_retention(self, positions: Mapping[str, Mapping[int, int]]) -> None:
        hold_back(self.directory, positions)

    def held_back(self, stream: str) -> Mapping[int, int]:
        return held_back(self.directory, stream)

    def stored(self) -> Mapping[str, int]:
        return {name: size_bytes(paths) for name, paths in stored_files(self.directory).items()}

    def stored_sort(self, name: str) -> str | None:
        return stored_sort(self.directory, name)

    def purge(self, names: Sequence[str], removed: Callable[[str], Any]) -> None:
        purge(self.directory, names, removed)

    def interrupted_purge(self) -> Sequence[str]:
        return interrupted(self.directory)
