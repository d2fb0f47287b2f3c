"""Old events as the newest version of their class: by columns where a step is data, row by row where the class has to
`migrate` them.

A tick is no event: it stays without fields, but for the event time that it tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Position
from penstock.errors import EventUnreadable
from penstock.event_shape import EventSpec
from penstock.evolution import NULLABLE
from penstock.queue.codec import adapt
from penstock.queue.migrating import Migration, RowError
from penstock.queue.versions import Version, is_current, next_version
from penstock.schema import KIND_EVENT, SYSTEM_COLUMNS

ROWS_MAX = 4_096
"""Rows that are migrated at a time: each is a dict meanwhile, of a kilobyte or more."""


@dataclass(frozen=True)
class _Plan:
    """How batches of one version are read: as `schema`, then, if there is a `migration`, by that.

    `sources` says where each column comes from: a column of the batch, by its name; a value for all events, as an array
    of one; or nothing, which is null. `required` has columns that must not be null, where it is not known that they
    are not.
    """

    schema: pa.Schema
    sources: Mapping[str, Any]
    required: Sequence[str]
    migration: Migration | None = None


class Upcaster:
    """Reads stored batches of one stream, of whatever version, as the newest one; or as the class of `spec`, if that is
    given, whether it is declared yet or not. May be used by several threads."""

    def __init__(self, stream: str, history: Sequence[Version], spec: EventSpec | None) -> None:
        self.stream, self.stored = stream, len(history)
        self._history, self._spec = tuple(history), spec
        declared = spec is None or is_current(history[-1], spec)
        self.target = self.stored if declared else self.stored + 1
        """The number of the version of which batches are as they should be."""
        self._schema = history[-1].schema if spec is None else spec.schema
        self._plans: dict[int, _Plan] = {}

    def read(self, version: int, batch: pa.RecordBatch, partition: int, offset: int) -> Iterator[pa.RecordBatch]:
        """A batch that begins at an offset, and is not of the target version, as that. In pieces, if it is migrated."""
        if self._spec is None and self._history[-1].shape is None:
            yield adapt(batch, self._schema)
            return
        at, events = Position(partition, offset), pc.equal(batch.column("_kind"), KIND_EVENT)
        if not pc.any(events).as_py():
            yield self._with_ticks(_nothing(batch, self._schema), version, batch, events)
            return
        plan = self._plans.get(version) or self._planned(version, at)
        size = ROWS_MAX if plan.migration is not None else batch.num_rows
        for first in range(0, batch.num_rows, size):
            part, mine = batch.slice(first, size), events.slice(first, size)
            made = _arranged(plan, part, mine)
            self._require_values(plan, made, mine, version, at.after(first))
            if plan.migration is not None:
                made = self._migrated(plan.migration, made, mine, version, at.after(first))
            yield self._with_ticks(made, version, part, mine)

    def _with_ticks(
        self, made: pa.RecordBatch, version: int, batch: pa.RecordBatch, events: pa.Array
    ) -> pa.RecordBatch:
        """What was made of a batch, with the event time that its ticks tell."""
        shape = self._history[version - 1].shape
        target = self._spec.shape if self._spec is not None else self._history[-1].shape
        assert target is not None
        told = shape.time if shape is not None else target.time  # of columns alone it is not known
        if target.time is None or told not in batch.schema.names or pc.all(events).as_py():
            return made
        index = made.schema.get_field_index(target.time)
        column = pc.if_else(events, made.column(index), batch.column(told))
        return made.set_column(index, made.schema.field(index), column)

    def _planned(self, version: int, at: Position) -> _Plan:
        chain = list(self._history)
        if self.target > len(chain):
            assert self._spec is not None
            chain.append(next_version(self.stream, chain, self._spec, version))
        first = version
        while chain[first].shape is None:  # each version of columns alone is read by itself as the first of a class
            first += 1
        known: dict[str, Any] = {name: name for name in _names(chain[version - 1])}
        for number in range(first, len(chain)):
            step = chain[number].step
            if step is None:
                raise self._unreadable(version, at, "there was no such event when its class was changed")
            if step.migrates:
                migration = self._migration(chain, number, version, at)
                plan = _Plan(chain[number - 1].schema, known, _required(chain, version, number), migration)
                break
            known = {name: self._source(chain[number], name, known, version, at) for name in _names(chain[number])}
        else:
            plan = _Plan(self._schema, known, _required(chain, version, len(chain)))
        self._plans[version] = plan
        return plan

    def _source(self, made: Version, name: str, known: Mapping[str, Any], version: int, at: Position) -> Any:
        assert made.step is not None
        assert made.shape is not None
        before = made.step.source(name, known)
        if before is not None:
            return known[before]
        if made.fills is not None and name in made.fills.schema.names:
            return made.fills.column(name)
        if made.shape.fields[name].endswith(NULLABLE):
            return None
        raise self._unreadable(version, at, f"it has no value for {name}")

    def _migration(self, chain: Sequence[Version], number: int, version: int, at: Position) -> Migration:
        if self._spec is None or self._spec.load is None:
            raise self._unreadable(version, at, "that takes the method migrate of its class, which is not known here")
        return Migration(self._spec.load(), chain[number - 1].number, chain[number:])

    def _require_values(self, plan: _Plan, made: pa.RecordBatch, events: pa.Array, version: int, at: Position) -> None:
        for name in plan.required:
            if made.column(name).null_count:
                row = pc.index(pc.and_(events, made.column(name).is_null()), True).as_py()
                if row >= 0:
                    why = f"its {name} is null, and {name} is not declared as one that may be"
                    raise self._unreadable(version, at.after(row), why)

    def _migrated(
        self, migration: Migration, batch: pa.RecordBatch, events: pa.Array, version: int, at: Position
    ) -> pa.RecordBatch:
        """The fields of events as the class has them, beside the system columns that they were stored with."""
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

    def _unreadable(self, version: int, at: Position, why: str) -> EventUnreadable:
        number, spec = self._history[version - 1].number, self._spec
        wanted = f" as {spec.name}, version {spec.shape.version}" if spec is not None else ""
        return EventUnreadable(
            f"stream {self.stream}: the event at partition {at.partition}, offset {at.offset}, which is of version "
            f"{number}, cannot be read{wanted}: {why}",
            stream=self.stream,
            partition=at.partition,
            offset=at.offset,
        )


def _names(version: Version) -> Sequence[str]:
    return [name for name in version.schema.names if name not in SYSTEM_COLUMNS]


def _required(chain: Sequence[Version], version: int, number: int) -> Sequence[str]:
    """The fields of a version that must not be null, if that is not known of events of an earlier one."""
    shape = chain[number - 1].shape
    if shape is None or chain[version - 1].shape is not None:
        return ()
    return [name for name, kind in shape.fields.items() if not kind.endswith(NULLABLE)]


def _nothing(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The system columns of a batch, beside fields that are all null."""
    columns = [
        batch.column(field.name) if field.name in SYSTEM_COLUMNS else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _arranged(plan: _Plan, batch: pa.RecordBatch, events: pa.Array) -> pa.RecordBatch:
    """The columns of the plan's schema. What a step adds is added to events only."""
    zeros = pc.if_else(events, pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))
    columns = []
    for field in plan.schema:
        source = field.name if field.name in SYSTEM_COLUMNS else plan.sources.get(field.name)
        if source is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(batch.column(source) if isinstance(source, str) else source.take(zeros))
    return pa.RecordBatch.from_arrays(columns, schema=plan.schema)
