"""The gateway advances time in a silent stream, as the engine's view status requires, and reports how late it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import App, Event
from penstock.collect.group_commit import Hold
from penstock.control import NodeState, NodeStatus, ViewStatus, WindowTiming
from penstock.core.contracts import Source, SourceStatus, SourceWriter, StreamSpec
from penstock.core.schema import KIND_EVENT, KIND_TICK, Late, event_schema
from penstock.core.settings import Settings
from penstock.core.times import to_micros
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.gateway import Gateway
from tests.contracts.source import SourceContract
from tests.runtime.statuses import engine_status

LONG_AGO = datetime(2020, 5, 1, 12, 0, 0, tzinfo=UTC)
SECOND = WindowTiming(1_000_000, 1_000_000)
UNTIL_S = 30.0


class Fix(Event, time="at"):
    at: datetime


@dataclass(frozen=True)
class Nothing:
    """A source without events."""

    kind: str = "nothing"
    address: str = "nowhere"

    async def run(self, source_writer: SourceWriter, status: SourceStatus) -> None:
        status.state = "connected"
        await asyncio.Event().wait()


class TestNothing(SourceContract):
    KIND, ADDRESS = "nothing", "nowhere"

    def declared(self) -> Source:
        return Nothing()

    def absent(self, tmp_path: Path) -> Source:
        return Nothing()


def opened(folder: Path, *, source: bool = False) -> Gateway:
    app = App("fleet")
    stream = app.stream("fixes", Fix, late_after=timedelta(seconds=1), partitions=1)
    app.view("seconds", reads=stream, key="window")(lambda fixes: fixes)
    app.view("untimed", reads=stream, key="at", time="ingest")(lambda fixes: fixes)
    if source:
        app.source("feed", Nothing(), into=stream)
    directory = DataDirectory(folder)
    directory.make()
    return Gateway(app, EmbeddedStorage(directory), Settings(quiet_s=0.1))


def engine_says(gateway: Gateway, *, state: NodeState = "running", watermark: datetime | None = None) -> None:
    view = ViewStatus(node=NodeStatus(state=state), watermark=watermark, window_timings=(SECOND,))
    gateway.channel.publish(engine_status(views={"seconds": view}))
    gateway.control.look()


def rows(gateway: Gateway) -> list[dict[str, Any]]:
    end = gateway.log.ends("fixes")[0]
    return [row for batch in gateway.log.read("fixes", 0, 0, end) for row in batch.to_pylist()]


async def posted(gateway: Gateway, at: datetime) -> None:
    await gateway.ingress.post("fixes", msgspec.json.encode({"at": at}))


async def closed(gateway: Gateway) -> None:
    gateway.stop()
    await gateway.ingress.close()
    gateway.log.close()


def test_a_silent_stream_has_ticks_until_the_last_window_of_its_events_is_over(tmp_path: Path) -> None:
    async def run() -> None:
        gateway = opened(tmp_path)
        engine_says(gateway)
        await posted(gateway, LONG_AGO)
        ticks = asyncio.create_task(gateway._ticks())
        over = LONG_AGO + timedelta(seconds=2)  # the end of the window, and `late_after`
        async with asyncio.timeout(UNTIL_S):
            while (gateway.ingress.stream_times()["fixes"].event_time or 0) < to_micros(over):
                await asyncio.sleep(0.02)
                engine_says(gateway)
        ticks.cancel()
        event, *others = rows(gateway)
        assert event["_kind"] == KIND_EVENT
        assert {tick["_kind"] for tick in others} == {KIND_TICK}
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
        (moment,) = gateway.status.idle(later).values()
        assert moment is not None
        if why == "held":
            gateway.ingress.hold("fixes", Hold("is full", 1))
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
        engine_says(gateway, watermark=LONG_AGO - timedelta(seconds=1))
        gateway.log.declare(StreamSpec("seconds.late", event_schema(Late), 1))
        await posted(gateway, datetime.now(UTC) - timedelta(hours=1))
        description = gateway.status.describe()
        seconds, untimed = description["views"]
        assert description["clock"] == seconds["watermark"] == LONG_AGO - timedelta(seconds=1)
        assert (seconds["time"], untimed["time"], untimed["watermark"]) == ("event", "ingest", None)
        assert seconds["late"] == 0
        assert 3600 <= seconds["skew_s"] < 3600 + UNTIL_S
        fixes, late = description["streams"]
        assert (late["name"], late["view"], fixes["view"]) == ("seconds.late", "seconds", None)
        assert fixes["skew_s"] == seconds["skew_s"]
        await closed(gateway)

    asyncio.run(run())
