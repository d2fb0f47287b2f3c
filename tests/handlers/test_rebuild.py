"""A handler rebuilt while its app runs, under load, and what a client sees. `test_renewal.py` has it step by step."""

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
from tests.handlers.test_renewal import DOUBLED, FIRST, changed
from tests.harness import RunningApp, running, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.soak]
METERS = 5


class Meters(Beside):
    """Sends readings until told to finish, each again until it is acknowledged."""

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
    """Follows the sums by their cursor, through whatever happens to the connection."""

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
            made = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
            assert made.returncode == 0, made.stderr
            assert "took over" in made.stdout
            wait_for(lambda: client.seen[-1]["code"] == 2, 60, "the new code to be at work")
            meters.finish.set()
            meters.join()
            wait_for(lambda: len(client.seen) >= meters.sent, 60, "every reading to be answered")
        client.join()
        assert app.describe()["handlers"][0]["error"] is None
        assert app.stop() == 0
        assert f"going on with {second}" in app.output
    assert sorted(int(each["reading"]) for each in client.seen) == list(range(meters.sent))
    for meter in range(METERS):
        require_one_change(meter, sorted(int(each["reading"]) for each in client.seen), client.seen)


def require_one_change(meter: int, numbers: list[int], seen: list[dict[str, Any]]) -> None:
    """A meter's answers are in order, by the old code and then by the new, each with the sum as that code has it."""
    mine = [each for each in seen if each["meter"] == f"m{meter}"]
    assert [int(each["reading"]) for each in mine] == [number for number in numbers if number % METERS == meter]
    codes = [each["code"] for each in mine]
    assert codes == sorted(codes)
    assert set(codes) == {1, 2}
    totals = itertools.accumulate(int(each["reading"]) for each in mine)
    assert [each["watts"] for each in mine] == [total * each["code"] for total, each in zip(totals, mine, strict=True)]
