"""Reads Spark's checkpoint of a query, compares it with the ledger, and repairs it after a crash.

Spark never fsyncs its checkpoint. Penstock syncs it, with syncfs, at the start of each batch's output (see
`streaming_query.py`), so everything up to the previous batch is durable before this batch's output is. A power cut can
therefore damage only the files of batches after the ledger's last batch, and the commit and state of that last batch.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from penstock.core.contracts import LedgerEntry
from penstock.core.errors import Damaged, LedgerMismatch
from penstock.core.failpoints import reach
from penstock.core.files import sync_directory, sync_filesystem, write_atomic

NO_OFFSETS = "[]"
MARK = "rebuild"
"""The name of a file that Penstock adds to the checkpoint of a rebuilt view."""
CHECKSUM_MAGIC, CHECKSUM_SPAN = b"crc\0", 512
"""A Hadoop checksum file begins with these bytes, then the number of data bytes that each checksum covers."""


class Checkpoint:
    """Spark's checkpoint of a query in a directory: a `QueryCheckpoint`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def location(self) -> str:
        return str(self.path)

    def sync(self) -> None:
        """Sync the file system that contains the checkpoint."""
        sync_filesystem(self.path)

    def range(self, batch_id: int) -> tuple[str, str]:
        """Return the positions where a batch in the checkpoint starts and ends, as JSON text with one entry for each of
        the query's sources."""
        start = self._positions(batch_id - 1) if batch_id > 0 else NO_OFFSETS
        return start, self._positions(batch_id)

    def late_watermark(self, batch_id: int) -> int | None:
        """Return the watermark that decides which rows of a batch are late, in microseconds. This is the previous
        batch's watermark, or None if there is none yet."""
        if batch_id == 0:
            return None
        metadata = json.loads((self.path / "offsets" / str(batch_id - 1)).read_text().splitlines()[1])
        return int(metadata["batchWatermarkMs"]) * 1000 or None

    def _positions(self, batch_id: int) -> str:
        # The file contains a version line, a line of metadata, then a line of JSON for each source.
        lines = (self.path / "offsets" / str(batch_id)).read_text().splitlines()
        if len(lines) < 3:
            raise Damaged(f"{self.path}/offsets/{batch_id} is incomplete", file=f"{self.path}/offsets/{batch_id}")
        return json.dumps([json.loads(line) for line in lines[2:]], sort_keys=True, separators=(",", ":"))

    def has_planned(self) -> bool:
        """Return whether Spark has planned a batch, according to the checkpoint."""
        return bool(self._entries("offsets"))

    def has_commit(self, batch_id: int) -> bool:
        """Return whether Spark has recorded in the checkpoint that a batch is done."""
        return (self.path / "commits" / str(batch_id)).exists()

    @property
    def mark(self) -> str | None:
        """Return the id of the rebuild that created this checkpoint, or None if the engine created it."""
        try:
            return (self.path / MARK).read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def set_mark(self, mark: str) -> None:
        """Record the id of the rebuild in the checkpoint, durably."""
        write_atomic(self.path / MARK, mark.encode(), durable=True)

    def replace(self, replacement: Checkpoint, mark: str) -> None:
        """Delete this checkpoint, and put `replacement`, whose mark is `mark`, in its place.

        Can be repeated after a crash at any point. `replacement` must be durable. The mark distinguishes it from files
        that Spark might write to a path after the checkpoint there was moved away.
        """
        if self.mark == mark:
            return
        if replacement.mark != mark:
            raise Damaged(f"{replacement.path} is not the checkpoint of the rebuild {mark}", file=str(replacement.path))
        if self.path.exists():
            shutil.rmtree(self.path)
        reach("checkpoint.before_move")
        replacement.path.rename(self.path)
        sync_directory(self.path.parent)
        reach("checkpoint.after_move")

    def repair(self, last: LedgerEntry | None) -> list[str]:
        """Delete the checkpoint's files that a crash may have torn and that Spark can recreate. Returns the deleted
        files.

        Files of batches after the ledger's last batch belong to batches that had no effect; Spark plans them again. The
        commit of the last batch is deleted even if it looks complete, because the batch's state may be incomplete.
        Spark then runs that batch again over the same range, and the ledger recognises its output. Later planned
        batches must be deleted too, because Spark resumes at the newest planned batch. Nothing else is changed.
        """
        if last is None:
            return self._drop_unused()
        planned, committed = self._entries("offsets"), self._entries("commits")
        if last.batch_id not in planned:
            return []  # not torn by a crash, so `verify` reports the problem
        dropped = [self._drop("offsets", batch_id) for batch_id in reversed(planned) if batch_id > last.batch_id]
        dropped += [self._drop("commits", batch_id) for batch_id in reversed(committed) if batch_id >= last.batch_id]
        return dropped

    def _drop_unused(self) -> list[str]:
        """Delete the whole checkpoint. This is allowed before the first output, because Spark can recreate the
        checkpoint from the first event in the log."""
        if not self.path.exists():
            return []
        shutil.rmtree(self.path)
        return [str(self.path)]

    def _entries(self, log: str) -> list[int]:
        folder = self.path / log
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()) if folder.is_dir() else []

    def _drop(self, log: str, batch_id: int) -> str:
        folder = self.path / log
        (folder / str(batch_id)).unlink()
        (folder / f".{batch_id}.crc").unlink(missing_ok=True)
        sync_directory(folder)
        return f"{folder}/{batch_id}"

    def verify(self, view: str, last: LedgerEntry | None) -> None:
        """Raise `LedgerMismatch` if the checkpoint does not match the ledger: if it is older, newer, missing, or
        belongs to a different ledger. Raise `Damaged` if a checksum file is damaged."""
        self._require_sound_spans()
        offsets, commits = self._entries("offsets"), self._entries("commits")
        newest = offsets[-1] if offsets else None
        if last is None:
            if commits:
                self._mismatch(view, f"ends at batch {commits[-1]}", "has no batch")
            return
        known = f"ends at batch {last.batch_id}, from {last.start} to {last.end}"
        if newest is None or newest < last.batch_id:
            self._mismatch(view, "is empty" if newest is None else f"ends at batch {newest}", known)
        if commits and commits[-1] > last.batch_id:
            self._mismatch(view, f"has committed batch {commits[-1]}", known)
        if last.batch_id in offsets:
            start, end = self.range(last.batch_id) if last.batch_id - 1 in offsets else (last.start, self._end(last))
            if (start, end) != (last.start, last.end):
                self._mismatch(view, f"has batch {last.batch_id} from {start} to {end}", known)

    def _require_sound_spans(self) -> None:
        """Raise an error if the span in a checksum file is damaged. Hadoop allocates a buffer of that size. If Java did
        not have enough memory for it, the reading thread would die without a message, and the query would wait for that
        thread forever."""
        sound = CHECKSUM_MAGIC + CHECKSUM_SPAN.to_bytes(4, "big")
        for file in self.path.rglob(".*.crc"):
            with open(file, "rb") as opened:
                head = opened.read(len(sound))
            if head.startswith(CHECKSUM_MAGIC) and len(head) == len(sound) and head != sound:
                raise Damaged(f"{file} is damaged; it is a checksum file of Spark's checkpoint", file=str(file))

    def _end(self, last: LedgerEntry) -> str:
        return self._positions(last.batch_id)

    def _mismatch(self, view: str, checkpoint: str, ledger: str) -> None:
        raise LedgerMismatch(
            f"view {view}: the checkpoint at {self.path} {checkpoint}, but the ledger {ledger}. One of them was "
            "restored or removed. Restore a checkpoint and a ledger from the same backup; or stop the app, remove both "
            "(see docs/operations.md) and start it: the view is then recomputed from the events in the log"
        )
