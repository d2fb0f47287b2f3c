"""Readings and alarms of some sites, for `docs/examples/sites.py`: keys of two fields, and conditions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from penstock.app.app import App
from penstock.testing import tick

TARGET = Path(__file__).parents[2] / "docs/examples/sites.py"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
END = [tick(timedelta(minutes=10)), tick(timedelta(seconds=1))]


def items(app: App, seed: int, count: int = 200) -> dict[str, list[Any]]:
    """Return events slightly out of order, some of them to be ignored. Both lists take the same log time."""
    random = Random(seed)
    reading, alarm = (stream.event for stream in app.streams)

    def at(number: int) -> dict[str, Any]:
        late_s = random.choice((0, 10, 40, 200))
        return {"at": NOON + timedelta(seconds=2 * number - late_s), "site": f"site {random.randrange(3)}"}

    event_class: Any = reading
    readings = [
        event_class(
            reading_id=str(number),
            meter=random.randrange(3),
            watts=float(random.randrange(-9, 90)),
            test=random.random() < 0.3,
            **at(number),
        )
        for number in range(count)
    ]
    event_class = alarm
    alarms = [
        event_class(alarm_id=str(number), device=random.randrange(3), severity=random.randrange(1, 6), **at(number))
        for number in range(count)
    ]
    return {"readings": [*readings, *END], "alarms": [*alarms, *END]}
