"""A full disk and a failing one, under the whole app."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests import packages
from tests.e2e.load import Producer
from tests.harness import running, wait_for

pytestmark = [pytest.mark.soak, pytest.mark.spark]
APP = Path(__file__).parent.parent / "e2e" / "counting.py"
DISK_MB = 192
INJECT = "inject=fsync,fdatasync:error=EIO:when=1+"


def event(number: int) -> dict[str, object]:
    return {"hit": f"x{number}", "page": "p", "number": number}


def test_a_full_disk_is_answered_and_nothing_is_lost(tmp_path: Path) -> None:
    """New events get 507 before the disk is full; when space is back, everything continues by itself."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small tmpfs")
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(mount)], check=True)
    try:
        with running(APP, mount / "data", PENSTOCK_DISK_RESERVE_BYTES=str(48 * 2**20)) as app:
            app.ready()
            accepted = app.post("hits", [event(number) for number in range(100)]).json()["accepted"]
            with open(mount / "filler", "wb") as filler:
                filler.write(b"x" * (DISK_MB - 70) * 2**20)
                filler.flush()
                while shutil.disk_usage(mount).free > 40 * 2**20:
                    filler.write(b"x" * 2**20)
                    filler.flush()
            wait_for(lambda: app.post("hits", event(1000)).status_code == 507, 30, "the refusal")
            refused = app.post("hits", event(1000))
            assert refused.json()["code"] == "disk_full"
            assert int(refused.headers["retry-after"]) > 0
            assert httpx.get(f"{app.url}/v1/views/pages").status_code == 200, "reads go on"
            (mount / "filler").unlink()
            wait_for(lambda: app.post("hits", event(1000)).status_code == 200, 30, "events to be taken again")
            wait_for(lambda: [row["hits"] for row in app.view("pages")] == [accepted + 1], 120, "every event, once")
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


def test_a_failed_fsync_is_never_acknowledged_and_the_gateway_starts_anew(tmp_path: Path) -> None:
    program = packages.need("strace")
    with running(APP, tmp_path / "data") as app:
        app.ready()
        app.post("hits", [event(number) for number in range(10)])
        gateway = app.pid("gateway")
        strace = subprocess.Popen(
            [program, "-f", "-qq", "-o", "/dev/null", "-p", str(gateway), "-e", "trace=fsync,fdatasync", "-e", INJECT]
        )
        with Producer(lambda: app.url, 7) as producer:
            try:
                wait_for(lambda: app.pid("gateway") not in (gateway, None), 60, "a new gateway")
            finally:
                strace.terminate()
                strace.wait(10)
            wait_for(lambda: producer.acknowledged > 200, 60, "events to be taken again")
            producer.finish.set()
            producer.join(30)
        expected = dict(producer.expected) | {"p": 10}
        wait_for(lambda: {row["page"]: row["hits"] for row in app.view("pages")} == expected, 120, "every event, once")
        assert app.stop() == 0
        assert "the gateway stopped because a write to disk failed" in app.output
