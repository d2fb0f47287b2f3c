"""List and delete the files that a data directory has for each declaration."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.app.fingerprints.stored import Prints
from penstock.core.errors import Damaged
from penstock.core.failpoints import reach
from penstock.core.files import sync_directory, write_atomic
from penstock.runtime.embedded.directory import DataDirectory, held
from penstock.runtime.embedded.prints import read_prints, write_prints

DATABASE = ".db"


class PurgeIntent(msgspec.Struct, frozen=True):
    """Names whose data is being deleted."""

    names: tuple[str, ...]


def stored_files(directory: DataDirectory) -> dict[str, tuple[Path, ...]]:
    """Return all files and folders of streams, views and handlers, grouped by the declaration's name; for example,
    `a.rejected` belongs to `a`. Includes files left by an interrupted purge."""
    files: dict[str, list[Path]] = {}
    for path in _data_paths(directory):
        files.setdefault(path.name.partition(".")[0], []).append(path)
    return {name: tuple(sorted(paths)) for name, paths in files.items()}


def size_bytes(paths: Iterable[Path]) -> int:
    """Return the size of stored files, and of folders with their contents."""
    return sum(file.stat().st_size for path in paths for file in _stored_files_in(path))


def stored_sort(directory: DataDirectory, name: str) -> str | None:
    """Return `handler` or `view` if a handler or view with this name has computed data, or None otherwise."""
    if (directory.handlers / name).exists():
        return "handler"
    if directory.view_file(name).exists() or directory.checkpoint(name).exists():
        return "view"
    return None


def purge(directory: DataDirectory, names: Sequence[str], removed: Callable[[str], Any]) -> None:
    """Delete the data of these declarations' names, and of the names of an interrupted purge. Blocks for the disk.

    The names are first recorded durably, and the record is deleted last. The next purge completes an interrupted one,
    and no app runs before that.
    """
    with held(directory):
        every = tuple(dict.fromkeys((*interrupted(directory), *names)))
        if not every:
            return
        write_atomic(directory.purge, msgspec.json.encode(PurgeIntent(every)), durable=True)
        reach("purge.intended")
        for name in every:
            _purge_files(directory, name)
            removed(name)
        _purge_prints(directory, every)
        reach("purge.forgotten")
        directory.purge.unlink()
        sync_directory(directory.root)


def interrupted(directory: DataDirectory) -> tuple[str, ...]:
    """Return the names of an interrupted purge. The result is empty if there is none."""
    try:
        return msgspec.json.decode(directory.purge.read_bytes(), type=PurgeIntent).names
    except FileNotFoundError:
        return ()
    except msgspec.MsgspecError:
        raise Damaged(f"{directory.purge} is damaged; restore it from a backup", file=str(directory.purge)) from None


def _purge_files(directory: DataDirectory, name: str) -> None:
    """Delete every file and folder of a declaration's name, durably."""
    for path in stored_files(directory).get(name, ()):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        reach("purge.removing")
    for folder in (directory.streams, directory.views, directory.handlers, directory.checkpoints):
        if folder.is_dir():
            sync_directory(folder)


def _purge_prints(directory: DataDirectory, names: Sequence[str]) -> None:
    """Delete the fingerprints of these names."""
    known = read_prints(directory.declarations)
    if known is None:
        return
    prints = Prints(
        {name: fingerprint for name, fingerprint in known.streams.items() if name not in names},
        {name: fingerprint for name, fingerprint in known.views.items() if name not in names},
        {name: fingerprint for name, fingerprint in known.handlers.items() if name not in names},
    )
    write_prints(directory.declarations, prints)


def _data_paths(directory: DataDirectory) -> Iterator[Path]:
    for folder in (directory.streams, directory.views):
        yield from (path for path in _stored_entries(folder) if path.is_dir() or DATABASE in path.name)
    for folder in (directory.handlers, directory.checkpoints, directory.run / "claims"):
        yield from (path for path in _stored_entries(folder) if path.is_dir())


def _stored_entries(folder: Path) -> Iterable[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _stored_files_in(path: Path) -> Iterator[Path]:
    """Yield a stored file, or all files in a stored folder."""
    if path.is_dir():
        yield from (file for file in path.rglob("*") if file.is_file())
    elif path.exists():
        yield path
