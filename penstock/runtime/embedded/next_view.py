"""The folder in which a view is rebuilt while the old rows are served, and the marker that makes the result take
effect."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.analyze.checkpoint import Checkpoint
from penstock.core.contracts import Clock
from penstock.core.errors import Damaged, StorageError
from penstock.core.failpoints import reach
from penstock.core.files import sync_directory, sync_filesystem, write_atomic
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.storage import PreparedView
from penstock.store import ViewSpec, ViewTable, rebuilt


@dataclass(frozen=True)
class EmbeddedNextView:
    """`NextView` as a folder next to the views."""

    directory: DataDirectory
    view: str

    @property
    def folder(self) -> Path:
        return self.directory.view_next(self.view)

    @property
    def file(self) -> Path:
        return self.folder / "view.db"

    @property
    def _late(self) -> Path:
        """Folder of a separate log for late events."""
        return self.folder / "late"

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.directory.checkpoint_next(self.view))

    @property
    def _marker(self) -> Path:
        return self.folder / "prepared.json"

    def read(self) -> PreparedView | None:
        """Return the rebuilt view, or None if nothing is prepared."""
        try:
            return msgspec.json.decode(self._marker.read_bytes(), type=PreparedView)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError:
            raise Damaged(
                f"{self._marker} is damaged; remove {self.folder}, and rebuild the view again", file=str(self._marker)
            ) from None

    def is_taken(self) -> bool:
        """Return whether the view's file already contains the new rows, so that only the later steps remain."""
        prepared, adopted = self.read(), rebuilt(self.directory.view_file(self.view))
        return prepared is not None and adopted is not None and adopted.id == prepared.id

    def begin(self) -> None:
        """Delete the files of an earlier rebuild, and create the folders of a new one."""
        if self.is_taken():
            raise StorageError(
                f"the app has not finished switching to an earlier rebuild of view {self.view}; start the app to "
                "finish that, and then rebuild the view again"
            )
        self.remove()
        self.folder.mkdir(mode=0o700, parents=True)
        self.checkpoint.path.mkdir(mode=0o700, parents=True)

    def table(self, spec: ViewSpec, clock: Clock) -> ViewTable:
        return ViewTable(self.file, spec, clock=clock)

    def late_log(self, disk_reserve_bytes: int) -> EmbeddedLog:
        return EmbeddedLogOpener(self._late).for_writing(disk_reserve_bytes=disk_reserve_bytes)

    def late_reader(self) -> EmbeddedLog | None:
        return EmbeddedLogOpener(self._late)() if self._late.is_dir() else None

    def mark(self, prepared: PreparedView) -> None:
        """Make the rebuilt view durable, then make it take effect. The files must be closed."""
        self.checkpoint.set_mark(prepared.id)
        sync_filesystem(self.folder)
        sync_filesystem(self.checkpoint.path)
        reach("rebuild.before_mark")
        write_atomic(self._marker, msgspec.json.encode(prepared), durable=True)
        reach("rebuild.after_mark")

    def remove(self) -> None:
        """Delete the rebuilt view. Files that remain after a crash have no effect."""
        if self.folder.exists():
            self._marker.unlink(missing_ok=True)
            sync_directory(self.folder)
        for folder in (self.checkpoint.path, self.folder):
            shutil.rmtree(folder, ignore_errors=True)
