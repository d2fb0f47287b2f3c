"""A simulated power cut: the file system stops accepting writes at once, and pending writes are lost."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import packages
from tests.e2e.load import Producer
from tests.harness import RunningApp, wait_for

pytestmark = [pytest.mark.soak, pytest.mark.spark]
APP = Path(__file__).parent.parent / "e2e" / "counting.py"
CUTS = 6
PACKAGES = {"xfs_io": "xfsprogs", "mkfs.xfs": "xfsprogs", "mkfs.ext4": "e2fsprogs", "losetup": "mount"}
IMAGE_BYTES = 600 * 1024 * 1024


def require_tools(kind: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("a simulated power cut needs root, to mount a file system of its own")
    for program in ("xfs_io", f"mkfs.{kind}", "losetup"):
        packages.need(program, packages=(PACKAGES[program],))


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True)


@contextlib.contextmanager
def disk(folder: Path, kind: str) -> Iterator[Path]:
    """Mount a separate file system, in a file."""
    image, mount = folder / "disk.img", folder / "disk"
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(IMAGE_BYTES)
    run(f"mkfs.{kind}", "-q", image)
    try:
        run("mount", "-o", "loop", image, mount)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"cannot mount a loop device here: {error.stderr.decode().strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True)


def cut_power(app: RunningApp, mount: Path) -> None:
    """Stop the file system, then the processes, then mount the data that had reached the disk."""
    run("xfs_io", "-x", "-c", "shutdown", mount)
    app.kill_all()
    run("umount", "-l", mount)
    image = mount.with_name("disk.img")
    wait_for(lambda: not _is_attached(image), 30, "the loop device to be let go")
    run("mount", "-o", "loop", image, mount)


def _is_attached(image: Path) -> bool:
    done = subprocess.run(["losetup", "-j", str(image)], check=True, capture_output=True, text=True)
    return bool(done.stdout.strip())


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_power_cut_loses_no_acknowledged_event(tmp_path: Path, kind: str) -> None:
    require_tools(kind)
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"seed {seed}, {kind}")
    chance = random.Random(seed)
    with disk(tmp_path, kind) as mount:
        app = RunningApp(APP, mount / "data").start()
        try:
            with Producer(lambda: app.url, seed, pause_s=0.005) as producer:
                for _ in range(CUTS):
                    app.ready()
                    time.sleep(chance.uniform(0.5, 5.0))  # the moment of the cut is the random part of this test
                    cut_power(app, mount)
                    app.start()
                app.ready(180)
                producer.finish.set()
                producer.join(60)
                expected = dict(producer.expected)

                def counted() -> dict[str, int]:
                    return {row["page"]: row["hits"] for row in app.view("pages")}

                wait_for(lambda: counted() == expected, 180, "every acknowledged event to be counted once")
                print(f"{kind}: {CUTS} cuts, {producer.acknowledged} acknowledged, 0 lost, {producer.retries} retries")
        finally:
            app.kill_all()
