"""Conversion of old events to the newest version of their class: column by column if all steps are plain data,
otherwise row by row.

Row-by-row conversion calls the class's `migrate` method. Ticks are not events: their only field is the event time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import EventUnreadable
from penstock.core.event_shape import EventSpec
from penstock.core.schema import KIND_EVENT, SYSTEM_COLUMNS
from penstock.core.shapes import NULLABLE
from penstock.queue.codec import adapt
from penstock.queue.migrating import Migration, RowError
from penstock.queue.versions import EventVersion, is_current, next_version

ROWS_MAX = 4_096
"""Number of rows migrated at a time: each becomes a dict of a kilobyte or more."""


@dataclass(frozen=True)
class _Plan:
    """A plan for reading batches of one version: convert them to `schema`, then apply the `migration`, if any.

    `sources` maps each column to its source: the name of a column in the batch, or a one-value array for all events. A
    column without a source is null. `required` lists the columns that must still be checked for nulls.
    """

    schema: pa.Schema
    sources: Mapping[str, Any]
    required: Sequence[str]
    migration: Migration | None = None


class _Rows(NamedTuple):
    """The positions of stored rows. An error reports the position of the first of them."""

    partition: int
    offsets: pa.Array

    def after(self, rows: int) -> _Rows:
        return _Rows(self.partition, self.offsets.slice(rows))

    @property
    def offset(self) -> int:
        return int(self.offsets[0].as_py())


class Upcaster:
    """Converts a stream's stored batches, in any version, to the newest version or, if `spec` is passed, to its class.

    The class does not have to be declared yet. Can be used by several threads at the same time.
    """

    def __init__(self, stream: str, history: Sequence[EventVersion], spec: EventSpec | None) -> None:
        self.stream, self.stored = stream, len(history)
        self._history, self._spec = tuple(history), spec
        declared = spec is None or is_current(history[-1], spec)
        self.target = self.stored if declared else self.stored + 1
        """Number of the version whose batches need no conversion."""
        self._schema = history[-1].schema if spec is None else spec.schema
        self._plans: dict[int, _Plan] = {}

    def read(self, version: int, batch: pa.RecordBatch, partition: int, offsets: pa.Array) -> Iterator[pa.RecordBatch]:
        """Convert a stored batch of an older version to the target version and yield it, in several parts if it is
        migrated.

        `offsets` contains the offset of each row.
        """
        if self._spec is None and self._history[-1].shape is None:
            yield adapt(batch, self._schema)
            return
        at, events = _Rows(partition, offsets), pc.equal(batch.column("_kind"), KIND_EVENT)
        if not pc.any(events).as_py():
            yield self._with_ticks(_null_fields(batch, self._schema), version, batch, events)
            return
        plan = self._plans.get(version) or self._planned(version, at)
        size = ROWS_MAX if plan.migration is not None else batch.num_rows
        for first in range(0, batch.num_rows, size):
            part, mine = batch.slice(first, size), events.slice(first, size)
            output = _arranged_columns(plan, part, mine)
            self._require_values(plan, output, mine, version, at.after(first))
            if plan.migration is not None:
                output = self._migrated(plan.migration, output, mine, version, at.after(first))
            yield self._with_ticks(output, version, part, mine)

    def _with_ticks(
        self, output: pa.RecordBatch, version: int, batch: pa.RecordBatch, events: pa.Array
    ) -> pa.RecordBatch:
        """Return converted events together with the event times of the batch's ticks."""
        shape = self._history[version - 1].shape
        target = self._spec.shape if self._spec is not None else self._history[-1].shape
        assert target is not None
        time_column = shape.time if shape is not None else target.time  # unknown for a version without a class
        if target.time is None or time_column not in batch.schema.names or pc.all(events).as_py():
            return output
        index = output.schema.get_field_index(target.time)
        column = pc.if_else(events, output.column(index), batch.column(time_column))
        return output.set_column(index, output.schema.field(index), column)

    def _planned(self, version: int, at: _Rows) -> _Plan:
        chain = list(self._history)
        if self.target > len(chain):
            assert self._spec is not None
            chain.append(next_version(self.stream, chain, self._spec, version))
        first = version
        while chain[first].shape is None:  # a version without a class is read directly as the first with one
            first += 1
        known: dict[str, Any] = {name: name for name in _event_field_names(chain[version - 1])}
        for number in range(first, len(chain)):
            step = chain[number].step
            if step is None:
                raise self._unreadable(
                    version, at, "no events were stored when its class changed, so the change was not recorded"
                )
            if step.migrates:
                migration = self._migration(chain, number, version, at)
                plan = _Plan(chain[number - 1].schema, known, _required_fields(chain, version, number), migration)
                break
            known = {
                name: self._source(chain[number], name, known, version, at)
                for name in _event_field_names(chain[number])
            }
        else:
            plan = _Plan(self._schema, known, _required_fields(chain, version, len(chain)))
        self._plans[version] = plan
        return plan

    def _source(self, event_version: EventVersion, name: str, known: Mapping[str, Any], version: int, at: _Rows) -> Any:
        assert event_version.step is not None
        assert event_version.shape is not None
        before = event_version.step.source(name, known)
        if before is not None:
            return known[before]
        if event_version.fills is not None and name in event_version.fills.schema.names:
            return event_version.fills.column(name)
        if event_version.shape.fields[name].endswith(NULLABLE):
            return None
        raise self._unreadable(version, at, f"it has no value for {name}")

    def _migration(self, chain: Sequence[EventVersion], number: int, version: int, at: _Rows) -> Migration:
        if self._spec is None or self._spec.load is None:
            raise self._unreadable(
                version, at, "reading it requires the migrate method of its class, which is not available here"
            )
        return Migration(self._spec.load(), chain[number - 1].number, chain[number:])

    def _require_values(self, plan: _Plan, output: pa.RecordBatch, events: pa.Array, version: int, at: _Rows) -> None:
        for name in plan.required:
            if output.column(name).null_count:
                row = pc.index(pc.and_(events, output.column(name).is_null()), True).as_py()
                if row >= 0:
                    why = f"its {name} is null, but {name} is not declared as optional"
                    raise self._unreadable(version, at.after(row), why)

    def _migrated(
        self, migration: Migration, batch: pa.RecordBatch, events: pa.Array, version: int, at: _Rows
    ) -> pa.RecordBatch:
        """Migrate the events in a stored batch. Returns the fields of the class together with the stored system
        columns."""
        rows = [row for row, mine in enumerate(events.to_pylist()) if mine]
        try:
            own = migration.migrate(batch.take(pa.array(rows, pa.int64())))
        except RowError as error:
            given = ", ".join(name for name in batch.schema.names if name not in SYSTEM_COLUMNS)
            hint = f"; its fields are {given}" if isinstance(error.__cause__, KeyError) else ""
            raise self._unreadable(version, at.after(rows[error.row]), f"{error}{hint}") from error.__cause__
        numbers: list[int | None] = [None] * batch.num_rows
        for number, row in enumerate(rows):
            numbers[row] = number
        own = own.take(pa.array(numbers, pa.int64()))
        names = self._schema.names
        columns = [(batch if name in SYSTEM_COLUMNS else own).column(name) for name in names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _unreadable(self, version: int, at: _Rows, why: str) -> EventUnreadable:
        number, spec = self._history[version - 1].number, self._spec
        wanted = f" as {spec.name}, version {spec.shape.version}" if spec is not None else ""
        return EventUnreadable(
            f"stream {self.stream}: the event at partition {at.partition}, offset {at.offset}, which has version "
            f"{number}, cannot be read{wanted}: {why}",
            stream=self.stream,
            partition=at.partition,
            offset=at.offset,
        )


def _event_field_names(version: EventVersion) -> Sequence[str]:
    return [name for name in version.schema.names if name not in SYSTEM_COLUMNS]


def _required_fields(chain: Sequence[EventVersion], version: int, number: int) -> Sequence[str]:
    """Return the event fields of a version that must not be null but can be null in events of an earlier version."""
    shape = chain[number - 1].shape
    if shape is None or chain[version - 1].shape is not None:
        return ()
    return [name for name, kind in shape.fields.items() if not kind.endswith(NULLABLE)]


def _null_fields(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the system columns of a batch together with fields that are all null."""
    columns = [
        batch.column(field.name) if field.name in SYSTEM_COLUMNS else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _arranged_columns(plan: _Plan, batch: pa.RecordBatch, events: pa.Array) -> pa.RecordBatch:
    """Return the columns of the plan's schema. Values that a step adds are set only for events, not for ticks."""
    zeros = pc.if_else(events, pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))
    columns = []
    for field in plan.schema:
        source = field.name if field.name in SYSTEM_COLUMNS else plan.sources.get(field.name)
        if source is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(batch.column(source) if isinstance(source, str) else source.take(zeros))
    return pa.RecordBatch.from_arrays(columns, schema=plan.schema)
