"""The file with a data directory's stored fingerprints. Only the engine and purges write it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.app.fingerprints.stored import FORMAT, Prints
from penstock.core.errors import Damaged, NewerFormat
from penstock.core.files import write_atomic


class _Mark(msgspec.Struct):
    format: int


def read_prints(path: Path) -> Prints | None:
    """Return the stored fingerprints, or None if there is no file, because the directory is new or was created before
    fingerprints existed."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        mark = msgspec.json.decode(data, type=_Mark)
        if mark.format > FORMAT:
            raise NewerFormat(f"{path} has format {mark.format}, but this version of Penstock reads up to {FORMAT}")
        return msgspec.json.decode(data, type=Prints)
    except msgspec.MsgspecError:
        raise Damaged(
            f"{path} is damaged; restore it from a backup, or remove it: the next start then assumes that the "
            "declarations in the app at that time computed the data",
            file=str(path),
        ) from None


def write_prints(path: Path, prints: Prints) -> None:
    """Replace the file of fingerprints atomically and durably."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(prints)), durable=True)
