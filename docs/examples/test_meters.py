from datetime import UTC, datetime, timedelta

from meters import Reading, app, readings

from penstock.testing import CRASH, run, tick

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def reading(second: int, watts: float) -> Reading:
    return Reading(reading_id=str(second), at=NOON + timedelta(seconds=second), meter="m1", watts=watts)


def test_windows_whatever_crashes_and_whatever_the_order() -> None:
    given = [reading(0, 10.0), CRASH, reading(4, 40.0), reading(2, 40.0), CRASH, tick(timedelta(minutes=1))]
    result = run(app, {readings: given})
    (load,) = result.rows("load")
    assert (load.readings, load.watts, load.peak) == (3, 30.0, 40.0)
    (packet,) = result.rows("packets")
    assert (packet.number, packet.watts) == (1, [10.0, 40.0, 40.0])
    assert (packet.start, packet.end) == (NOON, NOON + timedelta(seconds=4))
    assert result.emitted("load.late") == []
