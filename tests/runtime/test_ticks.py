"""The gateway lets time pass in a silent stream, as the engine's word of a view says, and tells how late it is."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import App, Event
from penstock.collect.intake import Hold
from penstock.contracts import Intake, SourceStatus, StreamSpec
from penstock.files import write_status
from penstock.rows import to_micros
from penstock.runtime.directory import DataDirectory
from penstock.runtime.gateway import Gateway
from penstock.schema import KIND_EVENT, KIND_TICK, Late, event_schema
from penstock.settings import Settings

LONG_AGO = datetime(2020, 5, 1, 12, 0, 0, tzinfo=UTC)
SECOND = {"span": 1_000_000, "step": 1_000_000, "origin": 0}
UNTIL_S = 30.0


class Fix(Event, time="at"):
    at: datetime


class Nothing:
    """A source that gives nothing."""

    kind, address = "nothing", "nowhere"

    async def run(self, intake: Intake, status: SourceStatus) -> None: ...


def opened(folder: Path, *, source: bool = False) -> Gateway:
    app = App("fleet")
    stream = app.stream("fixes", Fix, late_after=timedelta(seconds=1), partitions=1)
    app.view("seconds", reads=stream, key="window")(lambda fixes: fixes)
    app.view("untimed", reads=stream, key="at", time="ingest")(lambda fixes: fixes)
    if source:
        app.source("feed", Nothing(), into=stream)
    directory = DataDirectory(folder)
    directory.make()
    return Gateway(app, directory, Settings(quiet_s=0.1))


def engine_says(gateway: Gateway, **told: Any) -> None:
    views = {"seconds": {"state": "running", "closings": [SECOND], **told}}
    status = {"state": "ready", "views": views, "handlers": {}}
    write_status(gateway.directory.engine_status, msgspec.json.encode(status))


def rows(gateway: Gateway) -> list[dict[str, Any]]:
    end = gateway.log.ends("fixes")[0]
    return [row for batch in gateway.log.read("fixes", 0, 0, end) for row in batch.to_pylist()]


async def posted(gateway: Gateway, at: datetime) -> None:
    await gateway.door.post("fixes", msgspec.json.encode({"at": at}))


async def closed(gateway: Gateway) -> None:
    gateway.stop()
    await gateway.door.close()
    gateway.log.close()


def test_a_silent_stream_has_ticks_until_the_last_window_of_its_events_is_over(tmp_path: Path) -> None:
    async def run() -> None:
        gateway = opened(tmp_path)
        engine_says(gateway)
        await posted(gateway, LONG_AGO)
        ticks = asyncio.create_task(gateway._ticks())
        over = LONG_AGO + timedelta(seconds=2)  # the end of the window, and `late_after`
        async with asyncio.timeout(UNTIL_S):
            while (gateway.door.stands()["fixes"].told or 0) < to_micros(over):
                await asyncio.sleep(0.02)
                engine_says(gateway)
        ticks.cancel()
        event, *others = rows(gateway)
        assert event["_kind"] == KIND_EVENT
        assert {each["_kind"] for each in others} == {KIND_TICK}
        for tick in others:  # as much has passed in event time as in the log
            assert tick["at"] - LONG_AGO <= tick["_ingest_time"] - event["_ingest_time"]
        assert len(others) <= 2  # the ends of windows at 12:00:00 and 12:00:01, and no more
        assert gateway.status.idle(datetime.now(UTC) + timedelta(days=1)) == {}
        await closed(gateway)

    asyncio.run(run())


@pytest.mark.parametrize("why", ["held", "cut off", "no view", "off"])
def test_time_stands_still_in_a_stream_that_is_not_idle_or_that_nobody_waits_for(tmp_path: Path, why: str) -> None:
    async def run() -> None:
        gateway = opened(tmp_path, source=True)
        engine_says(gateway)
        await posted(gateway, LONG_AGO)
        later = datetime.now(UTC) + timedelta(seconds=60)
        (told,) = gateway.status.idle(later).values()
        assert told is not None
        if why == "held":
            gateway.door.hold("fixes", Hold("is full", 1))
        elif why == "cut off":
            gateway.sources["feed"].state = "connecting"
        elif why == "no view":
            engine_says(gateway, state="failed")
        else:
            gateway.status.settings = Settings(quiet_s=0)
        assert gateway.status.idle(later) == {}
        await closed(gateway)

    asyncio.run(run())


def test_the_app_tells_watermarks_skew_late_events_and_its_clock(tmp_path: Path) -> None:
    async def run() -> None:
        gateway = opened(tmp_path)
        engine_says(gateway, watermark="2020-05-01T11:59:59.000Z")
        gateway.log.declare(StreamSpec("seconds.late", event_schema(Late), 1))
        await posted(gateway, datetime.now(UTC) - timedelta(hours=1))
        told = gateway.status.describe()
        seconds, untimed = told["views"]
        assert told["clock"] == seconds["watermark"] == LONG_AGO - timedelta(seconds=1)
        assert (seconds["time"], untimed["time"], untimed["watermark"]) == ("event", "ingest", None)
        assert seconds["late"] == 0
        assert 3600 <= seconds["skew_s"] < 3600 + UNTIL_S
        fixes, late = told["streams"]
        assert (late["name"], late["view"], fixes["view"]) == ("seconds.late", "seconds", None)
        assert fixes["skew_s"] == seconds["skew_s"]
        await closed(gateway)

    asyncio.run(run())
