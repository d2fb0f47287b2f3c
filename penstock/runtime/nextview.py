"""Where a view is rebuilt, beside the one that is served, and the marker that makes the result count."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.analyze.checkpoint import Checkpoint
from penstock.errors import Damaged, StorageError
from penstock.failpoints import reach
from penstock.files import sync_directory, sync_filesystem, write_atomic
from penstock.fingerprints.stored import ViewPrint
from penstock.runtime.directory import DataDirectory
from penstock.store import rebuilt


class PreparedView(msgspec.Struct, frozen=True):
    """A rebuilt view that waits to be taken over. `origin` is where it begins in the log, `made_with` the fingerprint
    of the code that made it."""

    id: str
    origin: str
    made_with: ViewPrint


@dataclass(frozen=True)
class NextView:
    """The files of a view that is rebuilt. They count once `read` gives something."""

    directory: DataDirectory
    view: str

    @property
    def folder(self) -> Path:
        return self.directory.view_next(self.view)

    @property
    def file(self) -> Path:
        return self.folder / "view.db"

    @property
    def late(self) -> Path:
        """A log of its own for events that came too late for it."""
        return self.folder / "late"

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.directory.checkpoint_next(self.view))

    @property
    def _marker(self) -> Path:
        return self.folder / "prepared.json"

    def read(self) -> PreparedView | None:
        """What is prepared, if anything is."""
        try:
            return msgspec.json.decode(self._marker.read_bytes(), type=PreparedView)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError:
            raise Damaged(
                f"{self._marker} is damaged; remove {self.folder}, and rebuild the view again", file=str(self._marker)
            ) from None

    def is_taken(self) -> bool:
        """Whether the view's file has the rows already, and only what is left must still be done."""
        prepared, adopted = self.read(), rebuilt(self.directory.view_file(self.view))
        return prepared is not None and adopted is not None and adopted.id == prepared.id

    def begin(self) -> None:
        """Delete what an earlier rebuild has left, and make the folders of a new one."""
        if self.is_taken():
            raise StorageError(
                f"an earlier rebuild of view {self.view} is half taken over; start the app, which finishes it, and "
                "then rebuild again"
            )
        self.remove()
        self.folder.mkdir(mode=0o700, parents=True)
        self.checkpoint.path.mkdir(mode=0o700, parents=True)

    def mark(self, prepared: PreparedView) -> None:
        """Make all of it durable, and have it count. Its files are closed."""
        self.checkpoint.set_mark(prepared.id)
        sync_filesystem(self.folder)
        sync_filesystem(self.checkpoint.path)
        reach("rebuild.before_mark")
        write_atomic(self._marker, msgspec.json.encode(prepared), durable=True)
        reach("rebuild.after_mark")

    def remove(self) -> None:
        """Delete all of it; what is left after a crash does not count."""
        if self.folder.exists():
            self._marker.unlink(missing_ok=True)
            sync_directory(self.folder)
        for folder in (self.checkpoint.path, self.folder):
            shutil.rmtree(folder, ignore_errors=True)
