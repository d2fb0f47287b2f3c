"""Running windows: state in files, rows in a view's file, batch by batch, the same as in plain Python."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock import windows
from penstock.app.loading import load
from penstock.core.shapes import shape_of
from penstock.handlers.evolution import misfit
from penstock.testing import run, tick
from tests.handlers.view_handlers import Keeping
from tests.windows.meters import BEGIN, seconds, window

TARGET = Path(__file__).parents[2] / "docs/examples/meters.py"


def items(event: Any, seed: int) -> list[Any]:
    """Return readings of some meters, slightly out of order, with pauses."""
    random, events = Random(seed), []
    for number in range(300):
        at = BEGIN + timedelta(seconds=number - random.randrange(20))
        watts = float(random.randrange(100))
        events.append(event(reading_id=str(number), at=at, meter=f"m{random.randrange(4)}", watts=watts))
        if number % 50 == 49:
            events.append(tick(seconds(random.choice((1, 20)))))
    return [*events, tick(timedelta(minutes=5))]


@pytest.mark.parametrize("name", ["load", "packets"])
def test_windows_in_files_come_to_the_same_as_in_plain_python(name: str, tmp_path: Path) -> None:
    app = load(str(TARGET)).app
    (view_handler,) = [handler for handler in app.view_handlers if handler.name == name]
    given = items(app.streams[0].event, seed=7)
    expected = run(app, {"readings": given}, shards=2)
    keeping = Keeping(tmp_path, app, view_handler, str(TARGET))
    for first in range(0, len(given), 40):
        keeping.send(given[first : first + 40])
        assert keeping.batch()
    assert keeping.digest() == expected.digest(name)
    assert [row["watts"] for row in keeping.rows()] == [row.watts for row in expected.rows(name)]
    assert keeping.log.events_appended(f"{name}.late") == len(expected.emitted(f"{name}.late"))
    assert keeping.log.events_appended(f"{name}.failed") == 0
    keeping.rebuild()
    keeping.send([tick(seconds(1))])
    assert keeping.batch()
    assert [row["watts"] for row in keeping.rows()] == [row.watts for row in expected.rows(name)]
    keeping.log.close()


@pytest.mark.parametrize(
    "other",
    [
        {"over": windows.sliding(seconds(60), every=seconds(10))},
        {"aggregate": {"n": windows.count(), "total": windows.max("watts")}},
        {"trigger": windows.on_close},
        {"latest": True},
    ],
    ids=str,
)
def test_state_is_not_taken_over_by_windows_that_are_declared_otherwise(other: dict[str, Any]) -> None:
    sound: dict[str, Any] = {"over": windows.sliding(seconds(30), every=seconds(10))}
    _, before = window(**sound)
    _, same = window(**sound, keep=timedelta(days=9))
    _, after = window(**{**sound, **other})
    assert misfit(shape_of(before.state), same.state) is None
    assert "belongs to a different declaration" in str(misfit(shape_of(before.state), after.state))
