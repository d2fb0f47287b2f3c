"""A handler rebuilt while its app runs, under load, as a client sees it. `test_state_replacement.py`
tests it step by step."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.beside import Beside
from tests.handlers.test_state_replacement import DOUBLED, FIRST, changed
from tests.harness import RunningApp, running, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.soak]
METERS = 5


class Meters(Beside):
    """Sends readings until told to finish, each repeatedly until it is acknowledged."""

    def __init__(self, app: RunningApp) -> None:
        super().__init__("meters")
        self.app = app
        self.sent = 0

    def run(self) -> None:
        for number in itertools.count():
            while not self._send(number):
                if self.leave.wait(0.1):
                    return
            self.sent = number + 1
            if self.finish.wait(0.03):
                return

    def _send(self, number: int) -> bool:
        reading = {"reading": str(number), "meter": f"m{number % METERS}", "watts": number}
        try:
            return self.app.post("readings", [reading]).status_code == 200
        except httpx.HTTPError:
            return False


class Client(Beside):
    """Follows the sums by their cursor, whatever happens to the connection."""

    def __init__(self, app: RunningApp) -> None:
        super().__init__("client")
        self.app = app
        self.seen: list[dict[str, Any]] = []

    def run(self) -> None:
        since = "earliest"
        while not self.finish.wait(0.2):
            try:
                page = httpx.get(f"{self.app.url}/v1/streams/sums", params={"since": since, "limit": 1000}).json()
            except httpx.HTTPError:
                continue
            if "cursor" in page:
                self.seen += page["events"]
                since = page["cursor"]


def test_a_running_handler_is_rebuilt_and_taken_over_without_gap_or_repeat(tmp_path: Path) -> None:
    second = changed(tmp_path, DOUBLED)
    with running(FIRST, tmp_path / "data") as app:
        app.ready()
        with Meters(app) as meters, Client(app) as client:
            wait_for(lambda: len(client.seen) > 200, 60, "the old code to be at work")
            command = [sys.executable, "-m", "penstock.cli", "rebuild", str(second), "--data", str(tmp_path / "data")]
            process = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
            assert process.returncode == 0, process.stderr
            assert "the app has switched to the rebuild" in process.stdout
            wait_for(lambda: client.seen[-1]["code"] == 2, 60, "the new code to be at work")
            meters.finish.set()
            meters.join()
            wait_for(lambda: len(client.seen) >= meters.sent, 60, "every reading to be answered")
        client.join()
        assert app.describe()["handlers"][0]["error"] is None
        assert app.stop() == 0
        assert f"switching to {second}" in app.output
    assert sorted(int(answer["reading"]) for answer in client.seen) == list(range(meters.sent))
    for meter in range(METERS):
        require_one_change(meter, sorted(int(answer["reading"]) for answer in client.seen), client.seen)


def require_one_change(meter: int, numbers: list[int], seen: list[dict[str, Any]]) -> None:
    """Check that a meter's answers are in order, first of the old code and then of the new, each with the sum of that
    code."""
    mine = [answer for answer in seen if answer["meter"] == f"m{meter}"]
    assert [int(answer["reading"]) for answer in mine] == [number for number in numbers if number % METERS == meter]
    codes = [answer["code"] for answer in mine]
    assert codes == sorted(codes)
    assert set(codes) == {1, 2}
    totals = itertools.accumulate(int(answer["reading"]) for answer in mine)
    assert [answer["watts"] for answer in mine] == [
        total * answer["code"] for total, answer in zip(totals, mine, strict=True)
    ]
