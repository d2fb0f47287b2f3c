"""The figures that the gateway takes from the log: kept events, and how much views and handlers have read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import App, Event
from penstock.control import NodeStatus, ViewStatus
from penstock.core.columns import tick_batch
from penstock.core.contracts import LedgerEntry, Retention
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from penstock.runtime.missing import missing
from penstock.runtime.status import Status
from penstock.runtime.viewrun import ViewRun
from tests.contracts.log import SCHEMA, batch, spec
from tests.holes import holes
from tests.runtime.statuses import engine_status

LONG = 100_000


class Fix(Event):
    n: int


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path, disk_reserve_bytes=0, offsets=holes({0: LONG, LONG + 20: LONG}))
    log.declare(spec(partitions=1))
    yield log
    log.close()


@pytest.fixture
def status(log: EmbeddedLog) -> Status:
    app = App("fixes")
    app.stream("fixes", Fix)
    app.view("v", reads="fixes", key="n")(lambda fixes: fixes)
    control: Any = SimpleNamespace(engine=None, supervisor=None)
    ingress: Any = SimpleNamespace(**dict.fromkeys(("audits", "stream_times", "held", "shedding"), dict), broken={})
    connections: Any = SimpleNamespace()
    return Status(app, control, Settings(), log, ingress, {}, {}, connections)


def note(status: Status, now: float, position: Mapping[int, int] | None) -> None:
    """A second in which the engine tells how far it has read; None if it is down."""
    control: Any = status.control
    node = NodeStatus(state="running", positions={"fixes": dict(position or {})})
    control.engine = None if position is None else engine_status(views={"v": ViewStatus(node=node)})
    status.note_rates(now)


def test_the_rate_of_a_view_counts_rows(status: Status, log: EmbeddedLog) -> None:
    """Gaps are no rows, and what was read before is not counted when the engine comes back."""
    log.append("fixes", 0, batch(range(40)), producer="p", sequence=1)
    note(status, 1.0, {0: 0})
    note(status, 2.0, {0: LONG + 10})
    assert status.rates["node v"].value() == 10.0
    note(status, 3.0, {0: 2 * LONG + 30})
    assert status.rates["node v"].value() == 15.0
    behind = status.behind("fixes")
    assert behind is not None
    assert (behind.events, behind.rate) == (10, 15.0)
    note(status, 4.0, None)
    note(status, 5.0, {0: 2 * LONG + 30})
    assert status.rates["node v"].value() == 7.5


def test_kept_events_are_neither_gaps_nor_ticks(status: Status, log: EmbeddedLog) -> None:
    (stream,) = status.app.streams
    long_ago = datetime.now(UTC) - timedelta(days=2)
    log.append("fixes", 0, batch(range(30), at=long_ago), producer="p", sequence=1)
    assert status._stream(stream)["events"] == 30
    log.append("fixes", 0, batch(range(30, 40)), producer="p", sequence=2)
    log.append("fixes", 0, tick_batch(SCHEMA, datetime.now(UTC)), producer="p", sequence=3)
    assert status._stream(stream)["events"] == status._stream(stream)["end"] == 40
    log.trim("fixes", Retention(timedelta(days=1), 2**40, {}))
    assert status._stream(stream)["events"] in (10, 11)
    assert status._stream(stream)["end"] == 40


def test_what_is_gone_is_told_as_a_bound(log: EmbeddedLog) -> None:
    """A log whose offsets have gaps cannot count the events that it no longer has."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    log.append("fixes", 0, batch(range(10), at=moment), producer="p", sequence=1)
    log.append("fixes", 0, batch(range(10, 20), at=moment + timedelta(seconds=1)), producer="p", sequence=2)
    log.trim("fixes", Retention(timedelta(0), 2**40, {0: LONG + 10}))
    (line,) = missing(log, {"fixes": log.starts("fixes")}, {})
    assert line == (
        "fixes: up to 100,010 of its first events were deleted, in "
        "1 of 1 partitions, all before 2026-01-01 00:00:01 UTC"
    )


def test_a_rebuild_counts_the_rows_that_it_has_read(log: EmbeddedLog) -> None:
    log.append("fixes", 0, batch(range(40)), producer="p", sequence=1)
    entry = LedgerEntry(0, "[]", f'[{{"fixes/0": {2 * LONG + 30}}}]', 0)
    run: Any = ViewRun.__new__(ViewRun)  # without the Spark session that it needs to read
    run.log, run.table = log, SimpleNamespace(last=lambda: entry)
    assert run.events({"fixes": {0: 0}}) == 30
    assert run.events({"fixes": {0: LONG + 15}}) == 15
