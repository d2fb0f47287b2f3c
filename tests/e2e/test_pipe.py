"""The whole system as a user meets it: from POST to every way of reading, and its answers to invalid requests."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from bench.running import descendants
from tests.harness import ROOT, START_S, RunningApp, begun, running, wait_for

APP = Path(__file__).parent / "shop.py"
STOPPED = "penstock: stopping: finishing the work in progress\npenstock: stopped\n"
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with running(APP, tmp_path_factory.mktemp("shop") / "data") as app:
        yield app.ready()


def order(number: int, product: str = "tea", city: str = "Oslo", at: str = "2026-01-01T12:00:00Z") -> dict[str, Any]:
    address = {"city": city}
    return {"order": f"o{number}", "at": at, "product": product, "price": float(number), "address": address}


def test_events_reach_a_ranked_view_and_a_view_on_a_view(shop: RunningApp) -> None:
    products = ["tea", "jam", "rye", "oat"]
    answer = shop.post("orders", [order(number, products[number % 4]) for number in range(1, 13)])
    assert answer.status_code == 200
    assert answer.json()["accepted"] == 12
    wait_for(lambda: sum(row["orders"] for row in shop.view("sales")) == 9, 60, "the top three of four products")
    assert [row["product"] for row in shop.view("sales")] == ["tea", "oat", "rye"]
    wait_for(lambda: shop.view("large") == [{"city": "Oslo", "n": 12}], 60, "the view on a view")


def test_a_window_is_shown_once_it_is_complete(shop: RunningApp) -> None:
    shop.post("orders", [order(50, at="2026-03-01T10:00:30Z")])
    shop.post("orders", [order(51, at="2026-03-01T10:05:00Z")])
    start = "2026-03-01T10:00:00Z"
    wait_for(lambda: start in {row["window"]["start"] for row in shop.view("minutes")}, 60, "the closed window")
    assert "2026-03-01T10:05:00Z" not in {row["window"]["start"] for row in shop.view("minutes")}


def test_a_duplicate_is_acknowledged_and_not_taken(shop: RunningApp) -> None:
    shop.post("orders", order(70))
    receipt = shop.post("orders", order(70)).json()
    assert (receipt["accepted"], receipt["duplicates"]) == (0, 1)


def test_a_stream_is_read_in_pages_by_cursor(shop: RunningApp) -> None:
    here = httpx.get(f"{shop.url}/v1/streams/orders?since=latest").json()["cursor"]
    shop.post("orders", [order(number) for number in range(100, 110)])
    first = httpx.get(f"{shop.url}/v1/streams/orders", params={"since": here, "limit": 4}).json()
    rest = httpx.get(f"{shop.url}/v1/streams/orders", params={"since": first["cursor"], "limit": 100}).json()
    assert [event["order"] for event in first["events"] + rest["events"]] == [
        f"o{number}" for number in range(100, 110)
    ]


def test_two_subscriptions_share_one_socket(shop: RunningApp) -> None:
    with connect(f"{shop.url.replace('http', 'ws')}/v1/live") as live:
        live.send(json.dumps({"op": "subscribe", "id": "a", "view": "sales"}))
        live.send(json.dumps({"op": "subscribe", "id": "b", "stream": "orders"}))
        seen: set[tuple[str, str]] = set()
        while {("a", "snapshot"), ("b", "progress")} - seen:
            message = json.loads(live.recv(timeout=20))
            seen.add((message["id"], message["event"]))
        shop.post("orders", order(200, product="tea"))
        while {("a", "change"), ("b", "change")} - seen:
            message = json.loads(live.recv(timeout=20))
            seen.add((message["id"], message["event"]))


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "code"),
    [
        ("/v1/streams/nowhere", b"{}", {}, 404, "not_found"),
        ("/v1/streams/orders", b'{"order": ', {}, 400, "malformed_body"),
        ("/v1/streams/orders", b"\xff\xfe", {}, 400, "malformed_body"),
        ("/v1/streams/orders", b"", {}, 400, "malformed_body"),
        ("/v1/streams/orders", b'{"order": 5}', {}, 422, "invalid_events"),
        ("/v1/streams/orders", b"[" * 100_000, {}, 400, "malformed_body"),
        ("/v1/streams/orders", b"x" * (9 * 1024 * 1024), {}, 413, "too_large"),
        ("/v1/streams/orders", gzip.compress(b" " * 50_000_000), {"content-encoding": "gzip"}, 413, "too_large"),
        ("/v1/streams/orders", b"nonsense", {"content-encoding": "gzip"}, 400, "malformed_body"),
        ("/v1/streams/orders", b"{}", {"content-encoding": "br"}, 415, "unsupported_media"),
        ("/v1/streams/orders?ack=maybe", b"{}", {}, 400, "bad_parameter"),
        ("/v1/streams/orders", b"{}", {"origin": "http://evil.example"}, 403, "forbidden"),
        ("/v1/streams/orders", b"{}", {"host": "evil.example", "origin": "http://evil.example"}, 403, "forbidden"),
    ],
)
def test_bad_input_gets_a_problem_with_a_code(
    shop: RunningApp, path: str, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    answer = httpx.post(f"{shop.url}{path}", content=body, headers=headers, timeout=30)
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == code
    assert "Traceback" not in answer.text


def test_a_wrong_type_is_reported_with_its_path_and_kept_as_a_dead_letter(shop: RunningApp) -> None:
    bad = order(300) | {"address": {"city": 5}}
    answer = shop.post("orders", [order(301), bad])
    assert answer.status_code == 200
    (fault,) = answer.json()["errors"]
    assert (fault["index"], fault["path"]) == (1, "$.address.city")
    letters = httpx.get(f"{shop.url}/v1/streams/orders.rejected?limit=10000").json()["events"]
    assert letters[-1]["path"] == "$.address.city"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/views/nowhere", 404, "not_found"),
        ("/v1/streams/nowhere/live", 404, "not_found"),
        ("/v1/streams/orders?since=rubbish", 400, "bad_cursor"),
        ("/v1/streams/orders?limit=0", 400, "bad_parameter"),
        ("/v1/streams/orders?colour=red", 400, "bad_parameter"),
        ("/v1/nothing", 404, "not_found"),
    ],
)
def test_a_bad_read_gets_a_problem_with_a_code(shop: RunningApp, path: str, status: int, code: str) -> None:
    answer = httpx.get(f"{shop.url}{path}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_restart_restores_the_views_and_keeps_the_cursors(shop: RunningApp) -> None:
    def cakes(number: int) -> list[dict[str, Any]]:
        """Return expensive ones, so that they rank first."""
        return [order(9_000 + index, "cake") for index in range(number)]

    shop.post("orders", cakes(5))
    best = {"product": "cake", "orders": 5, "total": 45_010.0}
    wait_for(lambda: shop.view("sales")[:1] == [best], 60, "the view")
    before = httpx.get(f"{shop.url}/v1/views/sales").json()
    assert shop.stop() == 0
    shop.start()
    assert httpx.get(f"{shop.url}/v1/views/sales").json() == before, "at once, from disk, before Spark is up"
    shop.ready()
    assert shop.post("orders", cakes(5)).json()["duplicates"] == 5, "ids are remembered over a restart"
    shop.post("orders", cakes(6))
    wait_for(lambda: shop.view("sales")[0]["orders"] == 6, 60, "the view to go on")
    page = httpx.get(f"{shop.url}/v1/views/sales", params={"since": before["cursor"]}).json()
    assert [change["upserts"][0]["orders"] for change in page["changes"]] == [6]


def test_a_view_that_fails_says_so_and_stops_nothing_else(shop: RunningApp) -> None:
    httpx.post(f"{shop.url}/v1/streams/notes", content=b"seven")
    reasons = " ".join(wait_for(lambda: shop.health()["reasons"], 60, "the failure to be noticed"))
    assert "view fragile" in reasons
    assert "shop.py:" in reasons
    assert "CAST_INVALID_INPUT" in reasons
    before = sum(row["n"] for row in shop.view("cities"))
    shop.post("orders", order(400))
    wait_for(lambda: sum(row["n"] for row in shop.view("cities")) > before, 60, "the other views to go on")


def test_a_second_instance_is_refused_with_the_pid_of_the_first(shop: RunningApp) -> None:
    command = [sys.executable, "-m", "penstock.cli", "run", str(APP), "--data", str(shop.data), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 1
    assert shop.process is not None
    assert f"in use by process {shop.process.pid}" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_open_port_is_on_loopback(shop: RunningApp) -> None:
    """The ports of the app's processes, read from the kernel: nothing is reachable from outside."""
    assert shop.process is not None
    sockets = set()
    for pid in [shop.process.pid, *descendants(shop.process.pid)]:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    listening = [line.split() for line in table("tcp") + table("tcp6")]
    ours = [row for row in listening if row[3] == "0A" and row[9] in sockets]
    assert ours
    assert [row[1] for row in ours if not is_loopback(row[1])] == []


def table(name: str) -> list[str]:
    return Path(f"/proc/net/{name}").read_text().splitlines()[1:]


def is_loopback(address: str) -> bool:
    number = address.split(":")[0]
    packed = b"".join(bytes.fromhex(number[index : index + 8])[::-1] for index in range(0, len(number), 8))
    text = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return text == "::1" or text.startswith(("127.", "::ffff:127."))


def test_a_restart_right_after_a_kill_of_the_supervisor_waits_for_its_children(shop: RunningApp) -> None:
    gateway, supervisor = shop.pid("gateway"), shop.process
    assert gateway is not None
    assert supervisor is not None
    assert supervisor.stdout is not None
    os.kill(gateway, signal.SIGSTOP)  # it cannot notice yet that the supervisor has ended
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    restart = threading.Thread(target=shop.begin)
    restart.start()
    said = f"process {supervisor.pid} has ended, but its children have not; waiting up to"
    wait_for(lambda: said in shop.output, START_S, "the message about the children")
    os.kill(gateway, signal.SIGCONT)
    restart.join(START_S)
    assert shop.health()["state"] in ("starting", "ready", "degraded")


def test_a_stop_before_anything_has_begun_is_in_good_order(tmp_path: Path) -> None:
    """Gateway and engine exist, and have not yet installed their signal handlers."""
    with begun(APP, tmp_path / "data") as app:
        wait_for(lambda: app.pid("engine"), START_S, "an engine")
        assert app.stop() == 0
        assert app.output.endswith(STOPPED)


def test_a_stop_while_spark_starts_is_in_good_order(tmp_path: Path) -> None:
    with running(APP, tmp_path / "data") as app:
        assert app.stop() == 0
        assert app.output.endswith(STOPPED)  # before that it may log what it is doing
