"""Compare the stored columns of a view that a handler maintains with the handler's row class.

Stored rows are not rewritten when the class changes. They are read by the names of their columns, so a column that was
removed is left out, and a new column is null until the row changes. Rows with other types, or with values that now have
another name, cannot be read as the new class.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.app.declared import ViewHandler
from penstock.core.lossless import readable_as
from penstock.core.schema import event_schema, shown


def row_problems(handler: ViewHandler, stored: pa.Schema) -> Iterator[str]:
    """Yield the reasons why the stored rows of a handler's view cannot be read as its row class."""
    now, cls = shown(event_schema(handler.row)), handler.row.__name__
    for before in stored:
        name = handler.row.__renamed__.get(before.name)
        if name in now.names and name not in stored.names:
            yield f"the field {before.name} of {cls} is now {name}, but stored rows have the old name"
        elif before.name in now.names and not readable_as(before.type, now.field(before.name).type):
            yield (
                f"the field {before.name} of {cls} was {before.type} and is now {now.field(before.name).type}, but "
                "stored rows have the old type"
            )


def row_notes(handler: ViewHandler, stored: pa.Schema) -> Iterator[str]:
    """Yield what a change to the row class means for the stored rows of a handler's view."""
    new = [name for name in shown(event_schema(handler.row)).names if name not in stored.names]
    if new:
        yield f"in stored rows, the new field {', '.join(new)} is null until the row changes"
