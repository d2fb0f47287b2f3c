"""Queries in a whole gateway, over its real log."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx

from tests.gateway import RunningGateway, running_gateway
from tests.harness import wait_for

SOON_S = 30.0


def fix(number: int) -> dict[str, Any]:
    return {
        "fix_id": str(number),
        "at": f"2024-05-01T12:00:{number % 60:02d}Z",
        "vehicle": f"bus-{number % 3}",
        "speed": number / 2,
    }


def query(client: httpx.Client, sql: str) -> list[Any]:
    response = client.post("/v1/query", json={"sql": sql})
    assert response.status_code == 200, response.text
    rows: list[Any] = response.json()["rows"]
    return rows


def process_of(gateway: RunningGateway) -> int:
    assert gateway._process is not None
    return gateway._process.pid


def children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    tasks = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")]
    return sorted({int(child) for part in [text, *tasks] for child in part.split()})


def test_what_was_posted_is_queried_at_once_and_the_gateway_never_loads_the_engine(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path) as gateway,
        httpx.Client(base_url=f"http://127.0.0.1:{gateway.port}", timeout=60) as client,
    ):
        assert query(client, "SELECT count(*) AS n FROM fixes") == [{"n": 0}]
        posted = client.post("/v1/streams/fixes", json=[fix(number) for number in range(100)] + [{"bad": 1}]).json()
        assert posted["accepted"] == 100
        rows = query(
            client, "SELECT vehicle, count(*) AS n, max(at) AS last FROM fixes GROUP BY vehicle ORDER BY vehicle"
        )
        assert [row["n"] for row in rows] == [34, 33, 33]
        assert rows[0]["last"] == "2024-05-01T12:00:57Z"
        response = client.post("/v1/query", json={"sql": "SELECT max(fix_id) AS id FROM fixes"}).json()
        after = client.get("/v1/streams/fixes", params={"since": response["cursors"]["fixes"]}).json()
        assert after["events"] == [], "the cursor of the answer is where the stream goes on"
        (rejected,) = query(client, "SELECT reason, _ingest_time FROM fixes.rejected")
        assert "missing" in rejected["reason"]
        loaded = Path(f"/proc/{process_of(gateway)}/maps").read_text()
        assert "duckdb" not in loaded


def test_a_query_kept_live_follows_the_log_and_ends_with_its_gateway(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path) as gateway,
        httpx.Client(base_url=f"http://127.0.0.1:{gateway.port}", timeout=60) as client,
    ):
        sql = "SELECT count(*) AS n FROM fixes"
        with client.stream("GET", "/v1/query/live", params={"sql": sql}) as response:
            lines = response.iter_lines()
            assert _next_rows(lines) == [{"n": 0}]
            client.post("/v1/streams/fixes", json=[fix(1), fix(2)])
            assert _next_rows(lines) == [{"n": 2}]
            (worker,) = children(process_of(gateway))
            os.kill(process_of(gateway), signal.SIGKILL)
            wait_for(lambda: not Path(f"/proc/{worker}").exists(), SOON_S, "its process goes when the gateway is gone")
        assert gateway._process is not None
        gateway._process.wait()
        gateway._process = None


def _next_rows(lines: Any) -> Any:
    for line in lines:
        if line.startswith("data: ") and "rows" in line:
            return json.loads(line.removeprefix("data: "))["rows"]
    raise AssertionError("the stream ended")
