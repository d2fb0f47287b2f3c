"""A class of events with a field of each type that needs no default, and its parts, for tests that add others."""

from __future__ import annotations

import enum
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

from penstock import EpochMillis, Event, Record


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Spot(Record):
    lat: float
    seen: list[datetime] | None = None
    costs: dict[str, Decimal] | None = None


class EveryType(Event, id="name", time="at"):
    name: str
    at: datetime
    number: int
    share: float
    flag: bool
    data: bytes
    day: date
    price: Decimal
    code: UUID
    colour: Colour
    sent: EpochMillis
