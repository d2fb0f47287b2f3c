"""What a stream may give up when it is overloaded, as its declaration says it. `collect/shedding.py` does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from penstock.errors import BadExpression, DeclarationError
from penstock.schema import Event, Field, event_schema


@dataclass(frozen=True)
class Shed:
    """While the stream is overloaded, keep a fraction of its events, and all for which `unless` holds.

    `keep` is the fraction, above 0 and below 1; without it, only those for which `unless` holds are kept. `unless` is a
    condition in SQL over the event's fields: `severity >= 3 OR kind = 'alarm'`. `weight` names a float field with the
    default 1.0, which says in an event for how many it stands: count by `sum(weight)`.
    """

    keep: float | None = None
    unless: str | None = None
    weight: str | None = None


def problems(shed: Any, event: type[Event], kinds: dict[str, Field]) -> Iterator[str]:
    """What is wrong with a declaration, for a stream of this class, which has these fields."""
    if not isinstance(shed, Shed):
        yield f"shed is {shed!r}; use Shed(keep=0.1)"
        return
    if shed.keep is None and shed.unless is None:
        yield "Shed needs keep, the fraction of events to keep, or unless, a condition for those to keep, or both"
    if shed.keep is not None and not (isinstance(shed.keep, float) and 0 < shed.keep < 1):
        yield f"Shed keeps {shed.keep!r}; use a fraction above 0 and below 1"
    if shed.weight is not None:
        yield from _weight(shed, event, kinds)
    if shed.unless is not None:
        yield from _condition(shed.unless, event)


def _condition(unless: str, event: type[Event]) -> Iterator[str]:
    from penstock.filters import compiled  # not before it is needed: it loads Arrow

    try:
        compiled(event_schema(event), unless, None)
    except BadExpression as error:
        yield f"Shed(unless={str(unless)[:80]!r}): {error.message}"
    except DeclarationError:
        return  # of a field without a type, which is told by itself


def _weight(shed: Shed, event: type[Event], kinds: dict[str, Field]) -> Iterator[str]:
    name = shed.weight
    if name not in kinds:
        yield f"the weight {name!r} is no field of {event.__name__}; it has {', '.join(kinds)}"
        return
    info = next(each for each in msgspec.structs.fields(cast(Any, event)) if each.name == name)
    if kinds[name].base is not float or kinds[name].nullable or info.default != 1.0:
        yield f"the weight {name!r} must be a float field with the default 1.0: write `{name}: float = 1.0`"
    if shed.keep is None:
        yield "a weight needs keep: of those that are not kept by unless, nothing is left to weigh"
