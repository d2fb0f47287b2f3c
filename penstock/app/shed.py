"""Load shedding: the part of a stream's declaration that says which events can be dropped under overload.
`collect/shedding.py` applies it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from penstock.core.errors import BadExpression, DeclarationError
from penstock.core.schema import Event, Field, event_schema


@dataclass(frozen=True)
class Shed:
    """A rule for shedding load: keep a fraction of a stream's events, and all events for which `unless` is true.

    `keep` is the fraction, above 0 and below 1; without it, only events for which `unless` is true are kept. `unless`
    is a SQL condition over the event's fields, such as `severity >= 3 OR kind = 'alarm'`. `weight` names a float field
    with the default 1.0, which is set to the number of events that one kept event represents. To count events, use
    `sum(weight)`.
    """

    keep: float | None = None
    unless: str | None = None
    weight: str | None = None


def problems(shed: Any, event: type[Event], kinds: dict[str, Field]) -> Iterator[str]:
    """Yield the problems with a `shed` declaration, for a stream of this event class with these fields."""
    if not isinstance(shed, Shed):
        yield f"shed is {shed!r}; use Shed(keep=0.1)"
        return
    if shed.keep is None and shed.unless is None:
        yield "Shed needs keep= (a fraction of the events), unless= (a condition for events to keep), or both"
    if shed.keep is not None and not (isinstance(shed.keep, float) and 0 < shed.keep < 1):
        yield f"keep in Shed is {shed.keep!r}; use a fraction above 0 and below 1"
    if shed.weight is not None:
        yield from _weight_problems(shed, event, kinds)
    if shed.unless is not None:
        yield from _unless_problems(shed.unless, event)


def _unless_problems(unless: str, event: type[Event]) -> Iterator[str]:
    from penstock.core.filters import compiled  # imported late: it loads Arrow

    try:
        compiled(event_schema(event), unless, None)
    except BadExpression as error:
        yield f"Shed(unless={str(unless)[:80]!r}): {error.message}"
    except DeclarationError:
        return  # a field without a type, which is reported separately


def _weight_problems(shed: Shed, event: type[Event], kinds: dict[str, Field]) -> Iterator[str]:
    name = shed.weight
    if name not in kinds:
        yield f"the weight {name!r} is not a field of {event.__name__}; its fields are {', '.join(kinds)}"
        return
    info = next(field for field in msgspec.structs.fields(cast(Any, event)) if field.name == name)
    if kinds[name].base is not float or kinds[name].nullable or info.default != 1.0:
        yield f"the weight {name!r} must be a float field with the default 1.0: write `{name}: float = 1.0`"
    if shed.keep is None:
        yield "weight= needs keep=: with unless= alone, no event represents other events"
