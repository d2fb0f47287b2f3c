"""A full or failing disk: nothing half written, nothing acknowledged that is not stored."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core import files
from penstock.core.errors import DiskFull, SyncFailed
from penstock.queue import EmbeddedLog
from tests import packages
from tests.contracts.log import batch, numbers, spec
from tests.queue.conftest import EmbeddedHome
from tests.queue.workers import command, run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(log: EmbeddedLog) -> int:
    """Admit events until the disk is full; returns how many were accepted."""
    for first in range(0, 1_000_000, 100):
        try:
            log.admit("fixes", {0: batch(range(first, first + 100))})
        except DiskFull:
            return first
    raise AssertionError("the disk was never full")


def test_a_full_disk_leaves_nothing_behind_and_passes(small_disk: Path) -> None:
    """Appends to a full disk raise DiskFull and leave no row and no id; when there is room again, they succeed."""
    ballast = small_disk / "ballast"
    log = EmbeddedLog(small_disk, disk_reserve_bytes=0)
    log.declare(spec(unique_ids=100_000))
    ballast.write_bytes(bytes(1_200_000))
    taken = fill(log)
    assert numbers(log, "fixes", 0) == list(range(taken))
    ballast.unlink()
    assert log.admit("fixes", {0: batch(range(taken, taken + 100))}).duplicates == {0: []}
    assert numbers(log, "fixes", 0) == list(range(taken + 100))
    log.close()
    again = EmbeddedLog(small_disk, disk_reserve_bytes=0)
    assert numbers(again, "fixes", 0) == list(range(taken + 100))
    again.close()


def test_events_are_refused_before_the_disk_is_full(home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the reserve, appends are refused with a time to retry; above it they are accepted again."""
    log = EmbeddedLog(home.directory, disk_reserve_bytes=1_000)
    log.declare(spec(unique_ids=100))
    monkeypatch.setattr(files, "free_bytes", lambda path: 999)
    for _ in range(2):
        with pytest.raises(DiskFull, match="reserve") as caught:
            log.admit("fixes", {0: batch([1])})
        assert caught.value.retry_after_s > 0
    monkeypatch.setattr(files, "free_bytes", lambda path: 1_000)
    assert log.admit("fixes", {0: batch([1])}).duplicates == {0: []}
    log.close()


def injected(home: EmbeddedHome, tmp_path: Path, injection: str) -> list[str]:
    """Return the report of a worker whose Nth kernel call fails. Skips where strace cannot do that."""
    strace = packages.need("strace")
    log = home.open()
    log.declare(spec(unique_ids=10_000))
    log.close()
    trace = tmp_path / "trace"
    done = run([strace, "-f", "-o", str(trace), "-e", f"inject={injection}", *command("admit", home.directory, 8)])
    if "Operation not permitted" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip("strace may not trace here")
    assert "INJECTED" in trace.read_text(), done.stderr
    return done.stdout.splitlines()


def stored(home: EmbeddedHome) -> list[int]:
    log = home.open()
    log.declare(spec(unique_ids=10_000))
    pairs = [numbers(log, "fixes", partition) for partition in (0, 1)]
    log.close()
    assert [number + 1 for number in pairs[0]] == pairs[1]
    return [number // 2 for number in pairs[0]]


def test_a_write_without_space_is_refused_and_the_next_taken(home: EmbeddedHome, tmp_path: Path) -> None:
    """ENOSPC in the middle of a commit refuses only that commit, and nothing of it stays."""
    report = injected(home, tmp_path, "pwrite64:error=ENOSPC:when=12")
    refused = [int(line.split()[1]) for line in report if line.startswith("refused")]
    assert [line for line in report if line.startswith("refused")] == [
        f"refused {number} disk_full" for number in refused
    ]
    assert len(refused) == 1
    assert stored(home) == [number for number in range(8) if number not in refused]


@pytest.mark.parametrize(("call", "when"), [("fdatasync", 6), ("pwrite64", 40)])
def test_a_failed_sync_is_final(home: EmbeddedHome, tmp_path: Path, call: str, when: int) -> None:
    """After one EIO nothing is acknowledged any more, although later writes would succeed; a restart continues."""
    report = injected(home, tmp_path, f"{call}:error=EIO:when={when}")
    taken = [int(line.split()[1]) for line in report if line.startswith("took")]
    assert taken == list(range(len(taken)))
    assert report[len(taken) :] == [f"refused {number} sync_failed" for number in range(len(taken), 8)]
    assert 0 < len(taken) < 8
    assert stored(home) in (taken, [*taken, len(taken)])


def test_no_stream_of_the_log_is_written_after_a_failed_sync(
    home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is shared, and so is its failure: other streams of the log refuse too."""
    log = home.open()
    for name in ("fixes", "others"):
        log.declare(spec(name))
    with monkeypatch.context() as patched:
        patched.setattr("penstock.queue.committer.reach", _failing)
        with pytest.raises(SyncFailed):
            log.append("fixes", 0, batch([1]), producer="p", sequence=1)
    with pytest.raises(SyncFailed):
        log.append("others", 0, batch([1]), producer="p", sequence=1)
    assert log.ends("others") == {0: 0, 1: 0}
    log.close()


def _failing(point: str) -> None:
    raise SyncFailed("the disk is gone")
