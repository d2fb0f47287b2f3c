"""The demo that `make run` starts, as a new user sees it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import ANSWER_S, DRAIN_S, ROOT, START_S, wait_for

ROWS_S = 2 * START_S
"""Spark's start, and the end of the first window."""
STOP_S = DRAIN_S + 30.0


@pytest.mark.spark
def test_the_demo_shows_all_its_views_and_stops_in_good_order(tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches the whole process group, so the test sends it to the group."""
    command = [sys.executable, "examples/rsvps.py", "--data", str(tmp_path / "data"), "--port", "0"]
    environ = {name: value for name, value in os.environ.items() if name != "RSVP_FEED"}
    environ["PENSTOCK_DRAIN_S"] = f"{DRAIN_S:.0f}"
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        try:
            match = re.search(r"http://\S+:\d+", demo.stdout.readline())
            assert match
            for view in ("top-topics", "countries", "cities"):
                wait_for(partial(_rows, match.group(), view), ROWS_S, f"a row of {view}")
            [feed] = _ask(f"{match.group()}/v1/app")["sources"]
            assert feed["state"] == "connected"
        finally:
            os.killpg(demo.pid, signal.SIGINT)
            status = demo.wait(STOP_S)
    assert status == 0
    wait_for(lambda: not _listens(feed["address"]), STOP_S, "the end of the feed")


def _ask(url: str) -> dict[str, Any]:
    return dict(httpx.get(url, timeout=ANSWER_S).json())


def _rows(address: str, view: str) -> Any:
    try:
        return _ask(f"{address}/v1/views/{view}")["rows"]
    except httpx.TransportError:
        return None


def _listens(address: str) -> bool:
    try:
        httpx.get(address.replace("ws://", "http://"), timeout=5)
    except httpx.ConnectError:
        return False
    return True
