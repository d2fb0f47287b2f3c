"""Failures of a handler from before a restart, as the gateway reads them from the log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.core.columns import to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.schema import Failed, event_schema
from penstock.core.settings import Settings
from penstock.runtime.problems import Problems
from tests.runtime.guarded import running
from tests.runtime.test_problems import handler, listed


def test_failures_stored_within_the_last_minute_are_a_problem_of_a_gateway_that_has_just_started(
    tmp_path: Path,
) -> None:
    now = datetime.now(UTC)
    event = Failed(stream="a", partition=0, offset=0, key="k", error="ValueError", traceback="", event="{}")
    with running(tmp_path, settings=Settings(recovered_s=600)) as gateway:
        log, status = gateway.gateway.log, gateway.gateway.status
        assert status.problems._failed_lately("h") == []
        log.declare(StreamSpec("h.failed", event_schema(Failed), 1))
        for age_s in (5_000, 20, 10):
            at = now - timedelta(seconds=age_s)
            log.admit("h.failed", {0: to_batch(Failed, [event], ids=[None], keys=["k"], now=at)})
        problems = Problems(status.settings, status.problems._failed_lately)
        problems.note(9_000.0, handler("running", failed=0), {})
    assert listed(problems) == [("handler h", "amber", "handler h failed on 2 events, which are in h.failed")]
