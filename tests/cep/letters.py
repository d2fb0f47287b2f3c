"""Events in a short notation: `a1 c b1` are three, a second apart; `a1@0 b1@90` have explicit seconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import Event, cep
from penstock.cep.pattern import On

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


class Letter(Event, time="at"):
    at: datetime
    kind: str
    number: int = 0
    key: str = "k"

    @property
    def text(self) -> str:
        return f"{self.kind}{self.number or ''}"


def second(number: float) -> datetime:
    return BEGIN + timedelta(seconds=number)


def letters(text: str) -> list[Letter]:
    events: list[Letter] = []
    for word in text.split():
        name, _, at = word.partition("@")
        place = float(at) if at else len(events)
        events.append(Letter(at=second(place), kind=name[0], number=int(name[1:] or 0)))
    return events


def on(kinds: str, name: str | None = None) -> On:
    """Return a step for an event of one of these kinds."""
    return cep.on(name or kinds, Letter, lambda event, match: event.kind in kinds)


def shown(matches: list[cep.Match]) -> list[str]:
    """Return each match as the texts of its events."""
    return [" ".join(event.text for event in match.events) for match in matches]


def matches_of(pattern: cep.Pattern, text: str, **options: Any) -> list[str]:
    return shown(cep.find(pattern, letters(text), **options))
