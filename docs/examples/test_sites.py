from datetime import UTC, datetime, timedelta

from sites import Alarm, Alarmed, Reading, alarmed, alarms, app, energy, load, readings

from penstock.testing import run, tick

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def reading(second: int, site: str, meter: int, watts: float, test: bool = False) -> Reading:
    at = NOON + timedelta(seconds=second)
    return Reading(reading_id=f"{site} {meter} {second}", at=at, site=site, meter=meter, watts=watts, test=test)


def alarm(second: int, site: str, device: int, severity: int) -> Alarm:
    at = NOON + timedelta(seconds=second)
    return Alarm(alarm_id=f"{site} {device} {second}", at=at, site=site, device=device, severity=severity)


GIVEN = {
    readings: [
        reading(1, "north", 1, 10.0),
        reading(2, "north", 2, 20.0),
        reading(3, "south", 1, 30.0),
        reading(5, "north", 1, 40.0),
        reading(500, "north", 1, 99.0, test=True),
        reading(6, "north", 1, -4.0),
        tick(timedelta(minutes=3)),
    ],
    alarms: [alarm(4, "north", 2, 3), alarm(4, "north", 1, 1), alarm(4, "south", 2, 5), tick(timedelta(minutes=3))],
}


def test_each_meter_of_a_site_has_windows_of_its_own() -> None:
    """The test reading 500 seconds later is not in a window, and does not make other readings late."""
    result = run(app, GIVEN)
    rows = [(row.site, row.meter, row.readings, row.watts) for row in result.rows(load)]
    assert rows == [("north", 1, 3, 46.0 / 3), ("north", 2, 1, 20.0), ("south", 1, 1, 30.0)]
    assert result.emitted("load.late") == []
    assert sorted(result.states(energy)) == ['["north","1"]', '["north","2"]', '["south","1"]']


def test_each_meter_of_a_site_has_a_rollup_of_its_own() -> None:
    rows = [(row.site, row.meter, row.readings, row.watts) for row in run(app, GIVEN).rows(energy) if row.per == "hour"]
    assert rows == [("north", 1, 2, 50.0), ("north", 2, 1, 20.0), ("south", 1, 1, 30.0)]


def test_an_alarm_is_joined_with_readings_of_the_same_site_and_meter() -> None:
    assert run(app, GIVEN).emitted(alarmed) == [
        Alarmed(site="north", meter=2, watts=20.0),
        Alarmed(site="south", meter=2, watts=None),
    ]
