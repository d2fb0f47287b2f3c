"""A view's ledger: the last micro-batch whose output is durable, and the check of the next micro-batch.

Spark records the range of a batch in its offset log before the batch runs, and each batch starts where the previous
batch ended. A batch is therefore identified by its id *and* its range. If batches were identified only by their ids, a
checkpoint that was rolled back or recreated could not be distinguished from the old checkpoint, and rows would be lost
silently.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.core import files
from penstock.core.contracts import LedgerEntry, Output
from penstock.core.errors import LedgerMismatch
from penstock.store import layout


def ledger(path: Path) -> LedgerEntry | None:
    """Return the last committed batch in a view's file, or None if no batch has been committed yet.

    Opens the file for reading and closes it, which takes about 0.3 ms. Safe to call while the writer runs.
    """
    if not path.exists():
        return None
    connection = files.connect(path, read_only=True)
    try:
        with files.reading(connection, path):
            if layout.is_empty(connection, path):
                return None
            layout.generation(connection, path)
            return layout.get_state(connection, path).ledger
    finally:
        connection.close()


def is_next(last: LedgerEntry | None, output: LedgerEntry | Output, path: Path) -> bool:
    """Return True if the view's batch has to be written, False if it repeats the last batch.

    Raises `LedgerMismatch` otherwise.
    """
    if last is None:
        if output.batch_id != 0:
            raise _ledger_mismatch("the view has no output yet, but the checkpoint is past batch 0", last, output, path)
        return True
    if output.epoch < last.epoch:
        raise _ledger_mismatch(
            f"epoch {output.epoch} is older than epoch {last.epoch}: another process owns the data directory now",
            last,
            output,
            path,
        )
    if output.batch_id == last.batch_id:
        if _same_position(output.start, last.start) and _same_position(output.end, last.end):
            return False
        raise _ledger_mismatch("the last batch was offered again with a different range", last, output, path)
    if output.batch_id != last.batch_id + 1:
        raise _ledger_mismatch(f"batch {output.batch_id} does not follow batch {last.batch_id}", last, output, path)
    if not _same_position(output.start, last.end):
        raise _ledger_mismatch("the batch does not begin where the last batch ended", last, output, path)
    return True


def _same_position(one: str, other: str) -> bool:
    """Return whether two positions are equal as JSON; positions that are not JSON are compared as text."""
    return one == other or _parsed_position(one) == _parsed_position(other)


def _parsed_position(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _ledger_mismatch(reason: str, last: LedgerEntry | None, output: LedgerEntry | Output, path: Path) -> LedgerMismatch:
    stored = "nothing" if last is None else _batch_text(last)
    return LedgerMismatch(
        f"{path}: {reason}. The ledger has {stored}; the new batch is {_batch_text(output)}. Nothing was written. "
        "Restore the checkpoint that belongs to this file, or remove both the view's checkpoint and its file (with "
        "-wal and -shm) to rebuild the view from the log",
        file=str(path),
    )


def _batch_text(batch: LedgerEntry | Output) -> str:
    return f"batch {batch.batch_id} from {batch.start} to {batch.end} (epoch {batch.epoch})"
