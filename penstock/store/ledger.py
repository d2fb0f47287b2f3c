"""The ledger of a view: which micro-batch is the last one whose output is durable, and which may come next.

Spark's offset log fixes the range of a batch before it runs, and the start of a batch is the end of the one before.
So a batch is known by its id *and* its range: by the id alone, a checkpoint that was rolled back or made anew would
pass for the old one, and rows would be lost without a sign.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock import files
from penstock.contracts import LedgerEntry, Output
from penstock.errors import LedgerMismatch
from penstock.store import layout


def ledger(path: Path) -> LedgerEntry | None:
    """The last committed batch of a view's file, None if there is none yet. Opens the file for reading and closes it:
    about 0.3 ms. Safe beside the writer."""
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


def is_next(last: LedgerEntry | None, output: Output, path: Path) -> bool:
    """True if the batch is to be written, False if it is the last one again; `LedgerMismatch` if it is neither."""
    if last is None:
        if output.batch_id != 0:
            raise _mismatch("the view has no output yet, but the checkpoint is past batch 0", last, output, path)
        return True
    if output.epoch < last.epoch:
        raise _mismatch(
            f"epoch {output.epoch} is older than epoch {last.epoch}: another process owns the data directory now",
            last,
            output,
            path,
        )
    if output.batch_id == last.batch_id:
        if _same(output.start, last.start) and _same(output.end, last.end):
            return False
        raise _mismatch("the last batch is offered again over another range", last, output, path)
    if output.batch_id != last.batch_id + 1:
        raise _mismatch(f"batch {output.batch_id} does not follow batch {last.batch_id}", last, output, path)
    if not _same(output.start, last.end):
        raise _mismatch("the batch does not begin where the last one ended", last, output, path)
    return True


def _same(one: str, other: str) -> bool:
    """Whether two positions are equal as JSON; positions that are no JSON are compared as text."""
    return one == other or _parsed(one) == _parsed(other)


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _mismatch(reason: str, last: LedgerEntry | None, output: Output, path: Path) -> LedgerMismatch:
    stored = "nothing" if last is None else _position(last)
    return LedgerMismatch(
        f"{path}: {reason}. The ledger has {stored}; offered is {_position(output)}. Nothing was written. Restore the "
        "checkpoint that belongs to this file, or remove both the view's checkpoint and its file (with -wal and -shm) "
        "to rebuild the view from the log",
        file=str(path),
    )


def _position(batch: LedgerEntry | Output) -> str:
    return f"batch {batch.batch_id} from {batch.start} to {batch.end} (epoch {batch.epoch})"
