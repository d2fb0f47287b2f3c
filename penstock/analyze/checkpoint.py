"""Spark's checkpoint of a query: what it says of a batch, whether it fits the ledger, and its repair after a crash.

Spark never fsyncs its checkpoint. We do, with syncfs, at the start of each batch's output (see `query.py`), so that
everything up to the batch before is durable before this batch's output is. What a power cut can tear is therefore
known: files of batches above the ledger's last one, and the commit and state of the last one itself.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from penstock.contracts import LedgerEntry
from penstock.errors import Damaged, LedgerMismatch
from penstock.failpoints import reach
from penstock.files import sync_directory, write_atomic

NO_OFFSETS = "[]"
MARK = "rebuild"
"""A file of ours in the checkpoint of a rebuilt view."""
CHECKSUM_MAGIC, CHECKSUM_SPAN = b"crc\0", 512
"""How a checksum file of Hadoop begins: these bytes, and how many bytes of data each checksum is for."""


class Checkpoint:
    """The checkpoint directory of one query."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def range(self, batch_id: int) -> tuple[str, str]:
        """The positions that a batch starts and ends at, one for each of the query's sources, as JSON text."""
        start = self._positions(batch_id - 1) if batch_id > 0 else NO_OFFSETS
        return start, self._positions(batch_id)

    def late_watermark(self, batch_id: int) -> int | None:
        """The watermark, in microseconds, that the rows of a batch are late behind: that of the batch before. None if
        there is none yet."""
        if batch_id == 0:
            return None
        metadata = json.loads((self.path / "offsets" / str(batch_id - 1)).read_text().splitlines()[1])
        return int(metadata["batchWatermarkMs"]) * 1000 or None

    def _positions(self, batch_id: int) -> str:
        # The file: a version line, a line of metadata, then a line of JSON for each source.
        lines = (self.path / "offsets" / str(batch_id)).read_text().splitlines()
        if len(lines) < 3:
            raise Damaged(f"{self.path}/offsets/{batch_id} is incomplete", file=f"{self.path}/offsets/{batch_id}")
        return json.dumps([json.loads(line) for line in lines[2:]], sort_keys=True, separators=(",", ":"))

    def has_commit(self, batch_id: int) -> bool:
        """Whether Spark has written down that a batch is done."""
        return (self.path / "commits" / str(batch_id)).exists()

    @property
    def mark(self) -> str | None:
        """The id of the rebuild that made this checkpoint; None if the engine made it."""
        try:
            return (self.path / MARK).read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def set_mark(self, mark: str) -> None:
        """Note the id of the rebuild, durably."""
        write_atomic(self.path / MARK, mark.encode(), durable=True)

    def replace(self, made: Checkpoint, mark: str) -> None:
        """Delete this checkpoint and move another one, whose mark is `mark`, to its place.

        After a crash at any point it can be called again. `made` must be durable; it is told from what Spark may write
        to a path that has been moved away by its mark.
        """
        if self.mark == mark:
            return
        if made.mark != mark:
            raise Damaged(f"{made.path} is not the checkpoint of the rebuild {mark}", file=str(made.path))
        if self.path.exists():
            shutil.rmtree(self.path)
        reach("checkpoint.before_move")
        made.path.rename(self.path)
        sync_directory(self.path.parent)
        reach("checkpoint.after_move")

    def repair(self, last: LedgerEntry | None) -> list[str]:
        """After an unclean end: drop what may be torn and can be made again. Returns what was dropped.

        What is above the ledger's last batch belongs to a batch that never had an effect, and is planned anew. The
        commit of the last batch goes even if it looks whole, for its state may not be: Spark then runs that batch again
        over the same range, and the ledger knows its output already. (Planned batches must go with it, since Spark
        resumes at the newest planned one.) Nothing else is touched.
        """
        if last is None:
            return self._drop_unused()
        planned, committed = self._entries("offsets"), self._entries("commits")
        if last.batch_id not in planned:
            return []  # not a torn tail: `verify` says what it is
        dropped = [self._drop("offsets", batch_id) for batch_id in reversed(planned) if batch_id > last.batch_id]
        dropped += [self._drop("commits", batch_id) for batch_id in reversed(committed) if batch_id >= last.batch_id]
        return dropped

    def _drop_unused(self) -> list[str]:
        """Before the first output the whole checkpoint can be made again, from the first kept event."""
        if not self.path.exists():
            return []
        shutil.rmtree(self.path)
        return [str(self.path)]

    def _entries(self, log: str) -> list[int]:
        folder = self.path / log
        return sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit()) if folder.is_dir() else []

    def _drop(self, log: str, batch_id: int) -> str:
        folder = self.path / log
        (folder / str(batch_id)).unlink()
        (folder / f".{batch_id}.crc").unlink(missing_ok=True)
        sync_directory(folder)
        return f"{folder}/{batch_id}"

    def verify(self, view: str, last: LedgerEntry | None) -> None:
        """Refuse to start over a checkpoint that is not the ledger's: older, newer, another's, or gone."""
        self._require_sound_spans()
        offsets, commits = self._entries("offsets"), self._entries("commits")
        newest = offsets[-1] if offsets else None
        if last is None:
            if commits:
                self._mismatch(view, f"ends at batch {commits[-1]}", "has no batch at all")
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
        """Refuse a checksum file whose span was damaged. Hadoop would take memory for as much: if that is more than
        Java has, the thread that reads dies without a word, and the query waits for it for ever."""
        sound = CHECKSUM_MAGIC + CHECKSUM_SPAN.to_bytes(4, "big")
        for file in self.path.rglob(".*.crc"):
            with open(file, "rb") as opened:
                head = opened.read(len(sound))
            if head.startswith(CHECKSUM_MAGIC) and len(head) == len(sound) and head != sound:
                raise Damaged(f"{file} is damaged: it is the checksum of a file of Spark's checkpoint", file=str(file))

    def _end(self, last: LedgerEntry) -> str:
        return self._positions(last.batch_id)

    def _mismatch(self, view: str, checkpoint: str, ledger: str) -> None:
        raise LedgerMismatch(
            f"view {view}: the checkpoint at {self.path} {checkpoint}, but the ledger {ledger}. One of them was "
            "restored or removed. Restore the one that belongs to the other; or stop the app, remove both "
            "(docs/operations.md says how) and start it: the view is then made anew from what the log keeps"
        )
