"""Data of declarations that an app no longer has, found in the data directory itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.app import App
from penstock.fingerprints.stored import Prints
from penstock.fingerprints.verdicts import Sort
from penstock.graph import order
from penstock.runtime.directory import DataDirectory

DATABASE = ".db"
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Leftover:
    """All that a data directory has of one name: files, and folders with all in them."""

    sort: Sort
    name: str
    paths: tuple[Path, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for path in self.paths for file in _files(path))

    @property
    def size_text(self) -> str:
        return size_text(self.size_bytes)


def size_text(size: float) -> str:
    """A number of bytes for a person, as in `1.5 MiB`."""
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == UNITS[0] else f"{size:.1f} {unit}"


def leftovers(app: App, directory: DataDirectory, known: Prints) -> list[Leftover]:
    """What is stored under names that the app does not declare, by name."""
    declared = {stream.name for stream in app.streams} | {node.name for node in order(app)}
    found = stored(directory)
    names = {*found, *known.streams, *known.views, *known.handlers} - declared
    return [Leftover(_sort(name, directory, known), name, found.get(name, ())) for name in sorted(names)]


def stored(directory: DataDirectory) -> dict[str, tuple[Path, ...]]:
    """Everything that is stored for streams, views and handlers, by the name of what declared it: `a.rejected` is of
    `a`. Those that a purge has begun with are among them, for as long as anything is left."""
    found: dict[str, list[Path]] = {}
    for path in _data(directory):
        found.setdefault(path.name.partition(".")[0], []).append(path)
    return {name: tuple(sorted(paths)) for name, paths in found.items()}


def _data(directory: DataDirectory) -> Iterator[Path]:
    for folder in (directory.streams, directory.views):
        yield from (path for path in _inside(folder) if path.is_dir() or DATABASE in path.name)
    for folder in (directory.handlers, directory.checkpoints, directory.run / "claims"):
        yield from (path for path in _inside(folder) if path.is_dir())


def _inside(folder: Path) -> Iterable[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _sort(name: str, directory: DataDirectory, known: Prints) -> Sort:
    return _computed_sort(name, directory, known) or "stream"


def other_sort(name: str, sort: Sort, directory: DataDirectory, known: Prints) -> str | None:
    """Return why a declaration cannot use the data stored under its name, if another sort of declaration left it.

    State, checkpoint and batch numbers of a view mean nothing to a handler, and the events of a stream are not those
    that a handler of the same name emits. None if the name has no data, or data of the same sort.
    """
    before = _sort(name, directory, known)
    known_stream = sort == "stream" and name in known.streams
    if before == sort or known_stream or name not in stored(directory):
        return None
    kinds = {"stream": "a stream", "view": "a Spark view", "handler": "a handler (windows and rollups are handlers)"}
    return f"it was {kinds[before]} and is now {kinds[sort]}, which cannot use the stored data"


def _computed_sort(name: str, directory: DataDirectory, known: Prints) -> Sort | None:
    """Whether what a name has was made by a handler or by a view of Spark's; None if neither has made anything."""
    if name in known.handlers or (directory.handlers / name).exists():
        return "handler"
    if name in known.views or directory.view_file(name).exists() or directory.checkpoint(name).exists():
        return "view"
    return None


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (each for each in path.rglob("*") if each.is_file())
    elif path.exists():
        yield path
