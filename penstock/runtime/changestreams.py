"""The stored streams VIEW.changes against the views as they are declared.

Events that are in such a stream stay: whoever reads it has their columns by type, and deletes rows by their key. A view
whose column has another type now, or that has another key, could not go on with the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from penstock.declared import View
from penstock.errors import StorageError
from penstock.queue import EmbeddedLog
from penstock.runtime.directory import DataDirectory
from penstock.runtime.nextview import NextView


def arrow_types(columns: pa.Schema) -> dict[str, str]:
    """The type of each column as text, as in `PlanPrint.types`."""
    return {field.name: str(field.type) for field in columns}


def has_changes(directory: DataDirectory, view: View) -> bool:
    """Whether there is a stream of the view's changes: someone reads it, or has."""
    with closing(EmbeddedLog(directory.streams, read_only=True)) as log:
        return log.has(view.changes.name)


def changes_problems(
    directory: DataDirectory, view: View, key_before: Sequence[str], types: Mapping[str, str]
) -> list[str]:
    """Why a view cannot go on with the stored stream of its changes. `types` are those of its columns, as far as they
    are known. A stream whose file is damaged is passed over: that is its own failure, which the engine reports."""
    if not has_changes(directory, view):
        return []
    if tuple(key_before) != view.key:
        return [] if NextView(directory, view.name).is_taken() else [_other_key(view, key_before)]
    try:
        return list(_other_types(directory, view.changes.name, types))
    except StorageError:
        return []


def _other_key(view: View, before: Sequence[str]) -> str:
    was, now = ", ".join(before), ", ".join(view.key)
    return f"its key was {was} and is {now}, and those who read {view.changes.name} go by the former"


def _other_types(directory: DataDirectory, stream: str, types: Mapping[str, str]) -> Iterator[str]:
    """Each column whose type is not the one that stored changes have, the newest of them first."""
    told = set()
    with closing(EmbeddedLog(directory.streams, read_only=True)) as log:
        for schema in reversed(log.schemas(stream)):
            for name, before in arrow_types(schema).items():
                if name in types and before != types[name] and name not in told:
                    told.add(name)
                    yield f"its column {name} is now {types[name]}, and stored events of {stream} have it as {before}"
