"""The receiver in the documentation works: as a separate process, with a gateway that is killed."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.collect.support import fix
from tests.gateway import running_gateway
from tests.harness import ROOT, wait_for
from tests.network import unlikely_port

EXAMPLE = ROOT / "docs/examples/webhooks/receiver.py"


@contextmanager
def receiver(folder: Path, port: int, secret: str) -> Iterator[None]:
    environ = os.environ | {"HOOK_SECRET": secret, "HOOK_PORT": str(port), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(EXAMPLE)]
    with subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: _is_open(port), 20, "the receiver")
            yield
        finally:
            process.kill()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def kept(folder: Path) -> list[Any]:
    with sqlite3.connect(f"file:{folder / 'received.db'}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT body FROM message ORDER BY rowid").fetchall()
    connection.close()
    return [event["fix_id"] for (body,) in rows for event in json.loads(body)["data"]["events"]]


def test_the_receiver_of_the_documentation_does_each_message_once(tmp_path: Path) -> None:
    port, home = unlikely_port(), tmp_path / "receiver"
    home.mkdir()
    quick = {"PENSTOCK_WEBHOOK_PRIVATE": "127.0.0.1/32", "PENSTOCK_WEBHOOK_BACKOFF_S": "0.1"}
    with running_gateway(tmp_path / "data", **quick) as gateway:
        with httpx.Client(base_url=f"http://127.0.0.1:{gateway.port}") as client:
            wanted = {"url": f"http://127.0.0.1:{port}/", "stream": "fixes", "where": "vehicle <> 'other'"}
            hook = client.post("/v1/webhooks", json=wanted).raise_for_status().json()
            with receiver(home, port, hook["secret"]):
                assert client.post(f"/v1/webhooks/{hook['id']}/verify").json()["state"] == "active"
                client.post("/v1/streams/fixes", json=[fix(1), fix(2, "other"), fix(3)]).raise_for_status()
                wait_for(lambda: kept(home) == ["f1", "f3"])
                unsigned = httpx.post(wanted["url"], json={"type": "stream.change"})
                assert unsigned.status_code == 401
            client.post("/v1/streams/fixes", json=[fix(4)]).raise_for_status()
        gateway.kill()
        gateway.start()
        with receiver(home, port, hook["secret"]):
            wait_for(lambda: kept(home) == ["f1", "f3", "f4"])
