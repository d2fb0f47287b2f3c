"""Back-pressure, from a handler that is too slow to whoever sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import slow
from tests.harness import RunningApp, running, wait_for

pytestmark = pytest.mark.spark
MOST = 300
BATCH = 100


def stream(app: RunningApp) -> dict[str, Any]:
    return dict(app.describe()["streams"][0])


def test_a_stream_that_is_read_too_slowly_is_held_and_goes_on_by_itself(tmp_path: Path) -> None:
    with running(Path(slow.__file__), tmp_path / "data", PENSTOCK_LAG_EVENTS_MAX=str(MOST)) as app:
        app.ready()
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
        assert "events ahead of work" in stream(app)["held"]
        wait_for(lambda: send().status_code == 200, 60, "the stream to take events again")
        wait_for(lambda: app.describe()["handlers"][0]["lag"] == 0, 60, "all jobs to be done")
        states = [httpx.get(f"{app.url}/v1/handlers/work/state/{queue}").json()["state"]["jobs"] for queue in "01"]
        assert sum(states) == taken
        assert stream(app)["refused"] >= BATCH
