"""The stored fingerprints of the declarations from which an app's data was computed. Only the engine writes them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from platform import python_version

import msgspec

from penstock import __version__
from penstock.app.fingerprints.values import FORM

FORMAT = 1
"""The version of the stored format."""


PLAN_FORM = 2
"""The version of the digest of plans. In form 1, some constants were missing."""


class Versions(msgspec.Struct, frozen=True):
    """The versions that a fingerprint was computed with. Exact digests can be compared only if all versions are equal.
    `form` is the version of the fingerprint's format, which determines what it covers."""

    penstock: str
    spark: str
    python: str
    form: int = 1

    def __str__(self) -> str:
        return f"Penstock {self.penstock}, Spark {self.spark}, Python {self.python}, fingerprint format {self.form}"


def versions() -> Versions:
    """Return the versions that this process runs. The Python version is shortened to its first two numbers, which
    determine the bytecode."""
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        spark = "none"
    return Versions(__version__, spark, ".".join(python_version().split(".")[:2]), FORM)


class StreamPrint(msgspec.Struct, frozen=True):
    """The parts of a stream's declaration that its stored events depend on. `key` is the first name of the key field.
    `reading` changes when events from earlier versions of their class are read differently, and is None if it was not
    recorded."""

    key: str | None
    partitions: int
    id: str | None
    time: str | None
    reading: str | None = None


class PlanPrint(msgspec.Struct, frozen=True):
    """Spark's plan of a view. `query` is a digest of the plan, and `functions` contains a digest for each Python
    function in it. For each input, `inputs` contains the columns that the plan uses, with their types. `lateness`
    contains the inputs whose watermark decides which events are late, each with its event time and `late_after` in
    milliseconds. `types` contains the Arrow types of the columns, and is empty if an earlier version of Penstock
    recorded the plan. `form` is the version of the digest `query`, and `queries` contains the digests of the same plan
    in earlier forms."""

    query: str
    functions: tuple[str, ...]
    columns: dict[str, str]
    inputs: dict[str, dict[str, str]]
    lateness: dict[str, tuple[str, int]]
    types: dict[str, str] = {}
    form: int = 1
    queries: dict[int, str] = {}

    def query_for(self, other: PlanPrint) -> str:
        """Return the digest to compare with the `query` of another plan."""
        return self.query if other.form == self.form else self.queries.get(other.form, self.query)


class ViewPrint(msgspec.Struct, frozen=True):
    """The fingerprint of a view. `surface` is a digest of its function or query and of everything that it refers to,
    exact for one set of versions. `source` is a similar digest that does not depend on versions, or None if it is
    unknown; `sources` contains the same digest in earlier forms of fingerprints. If `surface` is equal, so is the plan,
    except for anything that a function reads while it runs, such as the environment. `generations` contains the
    generation of each log stream that its data was computed from."""

    reads: tuple[str, ...]
    key: tuple[str, ...]
    options: dict[str, str]
    surface: str
    source: str | None
    versions: Versions
    readings: dict[str, str] = {}
    plan: PlanPrint | None = None
    sources: dict[int, str | None] = {}
    generations: dict[str, int] = {}

    def source_for(self, other: Versions) -> str | None:
        """Return the digest to compare with the `source` of a fingerprint that other versions computed."""
        return self.source if other.form == self.versions.form else self.sources.get(other.form)


class HandlerPrint(msgspec.Struct, frozen=True):
    """The fingerprint of a handler. `code`, `source` and `sources` are digests of the user's functions, as for a view.
    `keys` contains the first names of the key fields for each input. For each input, `where` contains the condition,
    `times` the event time and lateness, and `readings` a string that changes when events from earlier versions are read
    differently. Four more fields contain digests of parts: `columns`, of the aggregates in windows and rollups;
    `classes`, of the methods of its state and events; `members`, of the members of their enums; and `defaults`, of its
    state's default values. `generations` contains the generation of each log stream that the handler has read."""

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
    classes: dict[str, str] = {}
    defaults: dict[str, str] = {}
    members: dict[str, str] = {}
    sources: dict[int, str | None] = {}
    generations: dict[str, int] = {}

    def source_for(self, other: Versions) -> str | None:
        """Return the digest to compare with the `source` of a fingerprint that other versions computed."""
        return self.source if other.form == self.versions.form else self.sources.get(other.form)


class Prints(msgspec.Struct, frozen=True):
    """The fingerprints of all declarations that have data in a data directory, including declarations that have since
    been removed."""

    streams: dict[str, StreamPrint] = {}
    views: dict[str, ViewPrint] = {}
    handlers: dict[str, HandlerPrint] = {}
    format: int = FORMAT
