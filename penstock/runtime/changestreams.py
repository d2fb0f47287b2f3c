"""Compare the stored streams VIEW.changes with the views as they are declared.

Such a stream keeps its stored events. Its readers rely on the column types and delete rows by key, so a view cannot
continue the stream if its key or column types have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from penstock.app.declared import View
from penstock.core.errors import StorageError
from penstock.runtime.storage import Storage


def arrow_types(columns: pa.Schema) -> dict[str, str]:
    """Return the type of each column of a view as a string, as in `PlanPrint.types`."""
    return {field.name: str(field.type) for field in columns}


def has_changes(storage: Storage, view: View) -> bool:
    """Return whether a view has a stored stream of changes, because something reads it or used to read it."""
    with closing(storage.log_reader()) as log:
        return log.has(view.changes.name)


def changes_problems(storage: Storage, view: View, key_before: Sequence[str], types: Mapping[str, str]) -> list[str]:
    """Return the reasons why a view cannot continue the stored stream of its changes. `types` contains the known types
    of its columns. A stream with a damaged file is skipped, because the engine reports the damage as the stream's own
    failure."""
    if not has_changes(storage, view):
        return []
    if tuple(key_before) != view.key:
        return [] if storage.next_view(view.name).is_taken() else [_changes_key_mismatch(view, key_before)]
    try:
        return list(_changes_type_mismatches(storage, view.changes.name, types))
    except StorageError:
        return []


def _changes_key_mismatch(view: View, before: Sequence[str]) -> str:
    was, now = ", ".join(before), ", ".join(view.key)
    return f"its key was {was} and is now {now}, but readers of {view.changes.name} use the old key"


def _changes_type_mismatches(storage: Storage, stream: str, types: Mapping[str, str]) -> Iterator[str]:
    """Yield each view column whose type differs from its type in stored changes, checking the newest changes first."""
    names = set()
    with closing(storage.log_reader()) as log:
        for schema in reversed(log.schemas(stream)):
            for name, before in arrow_types(schema).items():
                if name in types and before != types[name] and name not in names:
                    names.add(name)
                    yield f"its column {name} is now {types[name]}, but {before} in the stored events of {stream}"
