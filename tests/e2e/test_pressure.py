"""Back-pressure, from a handler that is too slow to the senders; and events that are shed instead."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import slow
from tests.harness import RunningApp, running, wait_for

pytestmark = pytest.mark.spark
MOST = 300
BATCH, PAUSE_S = 100, 0.1
"""With the pause, slightly more than the two shards of a handler can do. With much more, a stream is held, not shed."""
URGENT = 5


def stream(app: RunningApp, name: str) -> dict[str, Any]:
    return next(figures for figures in app.describe()["streams"] if figures["name"] == name)


def lag(app: RunningApp, handler: str) -> int:
    return next(int(figures["lag"]) for figures in app.describe()["handlers"] if figures["name"] == handler)


def states(app: RunningApp, handler: str) -> list[dict[str, Any]]:
    return [httpx.get(f"{app.url}/v1/handlers/{handler}/state/{queue}").json()["state"] for queue in "01"]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    data = tmp_path_factory.mktemp("slow") / "data"
    with running(Path(slow.__file__), data, PENSTOCK_LAG_EVENTS_MAX=str(MOST)) as app:
        yield app.ready()


def test_a_stream_that_is_read_too_slowly_is_held_and_goes_on_by_itself(app: RunningApp) -> None:
    taken = 0

    def send() -> httpx.Response:
        nonlocal taken
        events = [{"job": f"job-{taken + number}", "queue": str(number % 2)} for number in range(BATCH)]
        answer = app.post("jobs", events)
        taken += BATCH if answer.status_code == 200 else 0
        return answer

    refused = wait_for(lambda: (answer := send()).status_code == 429 and answer, 30, "the stream to be held")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert "events ahead of work" in refused.json()["detail"]
    assert "events ahead of work" in stream(app, "jobs")["held"]
    assert stream(app, "jobs")["shedding"] is None
    wait_for(lambda: send().status_code == 200, 60, "the stream to take events again")
    wait_for(lambda: lag(app, "work") == 0, 60, "all jobs to be done")
    assert sum(state["jobs"] for state in states(app, "work")) == taken
    assert stream(app, "jobs")["refused"] >= BATCH


def test_a_stream_that_may_shed_does_so_and_keeps_all_events_again_by_itself(app: RunningApp) -> None:
    """All urgent events are there, and the weights are close to the number sent."""
    sent = accepted = shed = 0

    def send() -> dict[str, Any]:
        nonlocal sent, accepted, shed
        time.sleep(PAUSE_S)  # the rate of sending is part of this test
        answer = app.post("hints", [{"queue": str(number % 2), "urgent": number < URGENT} for number in range(BATCH)])
        if answer.status_code == 200:  # while it is held, at twice the lag, nothing is accepted
            sent += BATCH
            accepted += answer.json()["accepted"]
            shed += answer.json().get("shed", 0)
        return dict(answer.json())

    first = wait_for(lambda: (answer := send()).get("shed") and answer, 30, "the stream to shed")
    assert URGENT <= first["accepted"] < BATCH
    shedding = stream(app, "hints")["shedding"]
    assert "events ahead of listen" in shedding["reason"]
    assert shedding["since"] <= datetime.now(UTC).isoformat()
    for _ in range(20):
        send()
    wait_for(lambda: lag(app, "listen") == 0, 60, "the handler to be up to date")  # until then it may shed again
    wait_for(lambda: stream(app, "hints")["shedding"] is None, 60, "the stream to keep all again")
    assert "shed" not in send()
    wait_for(lambda: lag(app, "listen") == 0, 60, "all hints to be heard")
    heard = states(app, "listen")
    assert accepted + shed == sent
    assert sum(summary["hints"] for summary in heard) == accepted
    assert sum(summary["urgent"] for summary in heard) == sent * URGENT // BATCH
    drawn = sent - sent * URGENT // BATCH
    spread = 5 * math.sqrt(drawn * 0.2 * 0.8) / 0.2
    assert abs(sum(summary["weight"] for summary in heard) - sent) < spread
    figures = stream(app, "hints")
    assert (figures["accepted"], figures["shed"]) == (accepted, shed)
    metrics = httpx.get(f"{app.url}/metrics").text
    assert f'penstock_intake_shed_total{{source="POST",stream="hints"}} {shed:.1f}' in metrics
