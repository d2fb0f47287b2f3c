"""What a data directory remembers of the declarations that made it: one JSON file, written by the engine alone."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

import msgspec

from penstock import __version__
from penstock.errors import Damaged, NewerFormat
from penstock.files import write_atomic
from penstock.fingerprints.values import FORM

FORMAT = 1
"""Of the file."""


class Versions(msgspec.Struct, frozen=True):
    """What a fingerprint was made with. Its exact digests can be compared only if these are equal. `form` says what a
    fingerprint sees."""

    penstock: str
    spark: str
    python: str
    form: int = 1

    def __str__(self) -> str:
        return f"Penstock {self.penstock}, Spark {self.spark}, Python {self.python}, fingerprints of form {self.form}"


def versions() -> Versions:
    """Those of this process. Of Python the first two numbers, which fix its instructions."""
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        spark = "none"
    return Versions(__version__, spark, ".".join(python_version().split(".")[:2]), FORM)


class StreamPrint(msgspec.Struct, frozen=True):
    """The parts of a stream's declaration that its stored events depend on. `key` is the first name that the key's
    field had. `reading` says how events of earlier versions of their class are read; None if that was not recorded."""

    key: str | None
    partitions: int
    id: str | None
    time: str | None
    reading: str | None = None


class PlanPrint(msgspec.Struct, frozen=True):
    """What Spark makes of a view. `query` is a digest of the plan, `functions` one for each Python function in it.
    `inputs` has the columns that it uses with their types, `lateness` the inputs whose watermark decides which events
    count, each with its event time and `late_after` in milliseconds. `types` are those of the columns as Arrow has
    them; empty if an earlier Penstock made the plan."""

    query: str
    functions: tuple[str, ...]
    columns: dict[str, str]
    inputs: dict[str, dict[str, str]]
    lateness: dict[str, tuple[str, int]]
    types: dict[str, str] = {}


class ViewPrint(msgspec.Struct, frozen=True):
    """`surface` is a digest of the view's text and all that it refers to, exact for one set of versions; `source` is
    the same for any, None if it cannot be told, and `earlier` the same as fingerprints of the first form had it. If
    `surface` is equal the plan is equal too, but for what a function reads while it runs, such as the environment.
    `generations` has the generation of each stream of the log that its data was computed from."""

    reads: tuple[str, ...]
    key: tuple[str, ...]
    options: dict[str, str]
    surface: str
    source: str | None
    versions: Versions
    readings: dict[str, str] = {}
    plan: PlanPrint | None = None
    earlier: str | None = None
    generations: dict[str, int] = {}

    def source_for(self, other: Versions) -> str | None:
        """The digest that can be compared with `source` of a fingerprint that was made with other versions."""
        return self.source if other.form == self.versions.form else self.earlier


class HandlerPrint(msgspec.Struct, frozen=True):
    """`code`, `source` and `earlier` are digests of the functions that the user wrote. `keys` has, for each input, the
    first names of the fields of its key. By the names of what it reads, `where` has the conditions, `times` the event
    times and lateness that it goes by, and `readings` how events of earlier versions of their class are read. `columns`
    has digests of the aggregates of windows and rollups, `generations` the generation of each stream of the log that it
    has read.
    """

    reads: tuple[str, ...]
    keys: tuple[str, ...]
    code: str
    source: str | None
    versions: Versions
    outputs: dict[str, str] = {}
    view: tuple[str, ...] | None = None
    options: dict[str, str] = {}
    readings: dict[str, str] = {}
    where: dict[str, str] = {}
    times: dict[str, str] = {}
    columns: dict[str, str] = {}
    earlier: str | None = None
    generations: dict[str, int] = {}

    def source_for(self, other: Versions) -> str | None:
        """The digest that can be compared with `source` of a fingerprint that was made with other versions."""
        return self.source if other.form == self.versions.form else self.earlier


class Prints(msgspec.Struct, frozen=True):
    """The fingerprints of all declarations whose data is in a directory, those that were removed included."""

    streams: dict[str, StreamPrint] = {}
    views: dict[str, ViewPrint] = {}
    handlers: dict[str, HandlerPrint] = {}
    format: int = FORMAT


class _Mark(msgspec.Struct):
    format: int


def read_prints(path: Path) -> Prints | None:
    """None if there is no such file: the directory is new, or older than fingerprints."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        mark = msgspec.json.decode(data, type=_Mark)
        if mark.format > FORMAT:
            raise NewerFormat(f"{path} has format {mark.format}, this Penstock reads up to {FORMAT}")
        return msgspec.json.decode(data, type=Prints)
    except msgspec.MsgspecError:
        raise Damaged(
            f"{path} is damaged; restore it from a backup, or remove it: the next start takes the declarations as they "
            "are then for those that made the data",
            file=str(path),
        ) from None


def write_prints(path: Path, prints: Prints) -> None:
    """Replace the file, durably, whole or not at all."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(prints)), durable=True)
