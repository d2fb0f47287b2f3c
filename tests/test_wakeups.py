"""Wake-ups between processes: whoever watches a file notices each commit, and nobody misses one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.core import wakeups
from penstock.core.files import connect, transaction, write_atomic
from penstock.core.wakeups import AsyncWatch, BlockingWatch, FileWatch, file_watch, ring
from tests.contracts.watch import WakingWatchContract, WatchHome, wait_for_count
from tests.harness import wait_for

DEADLINE_S = 30.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.db"
    path.touch()
    return path


@contextlib.contextmanager
def watching(path: Path) -> Iterator[tuple[FileWatch, list[int]]]:
    """A watch, and the numbers of its wake-ups."""
    heard: list[int] = []
    watch = FileWatch(path, lambda: heard.append(len(heard)))
    yield watch, heard
    watch.close()


@dataclass
class WatchedFile:
    """A file that writers ring."""

    path: Path

    def watch(self, wake: Callable[[], None]) -> FileWatch:
        return FileWatch(self.path, wake)

    def change(self) -> None:
        ring(self.path)


class TestFileWatch(WakingWatchContract):
    @pytest.fixture
    def home(self, file: Path) -> WatchHome:
        return WatchedFile(file)


def test_a_file_that_is_created_or_replaced_wakes(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with watching(path) as (watch, heard):
        for number in range(1, 4):
            assert watch.arm()
            write_atomic(path, b"1", durable=False)
            wait_for_count(heard, number)


def test_a_removed_file_wakes(file: Path) -> None:
    with watching(file) as (watch, heard):
        assert watch.arm()
        file.unlink()
        wait_for(lambda: heard)


def test_a_missing_directory_cannot_be_watched(tmp_path: Path) -> None:
    with watching(tmp_path / "none" / "x") as (watch, _):
        assert not watch.arm()


def test_a_commit_by_another_process_wakes(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = connect(path)
    with transaction(connection, path):
        connection.execute("CREATE TABLE t (n)")
    program = (
        "import sys; from pathlib import Path; from penstock.core.files import connect, transaction\n"
        "path = Path(sys.argv[1]); connection = connect(path)\n"
        "with transaction(connection, path): connection.execute('INSERT INTO t VALUES (1)')\n"
    )
    with BlockingWatch(file_watch(path)) as watch:
        watch.arm()
        began = time.monotonic()
        process = subprocess.Popen([sys.executable, "-c", program, str(path)])
        while connection.execute("SELECT count(*) FROM t").fetchone() == (0,):
            assert time.monotonic() - began < DEADLINE_S
            watch.arm()
            if connection.execute("SELECT count(*) FROM t").fetchone() == (0,):
                watch.wait(DEADLINE_S)
        assert process.wait(DEADLINE_S) == 0
    connection.close()


def test_no_commit_is_missed_while_two_threads_race(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look after a while, which would hide a missed wake-up."""
    monkeypatch.setattr(wakeups, "SURE_S", DEADLINE_S)
    rounds, seen = 2_000, [0]
    count = 0
    answered = threading.Event()

    def follow() -> None:
        with BlockingWatch(file_watch(file)) as watch:
            while seen[0] < rounds:
                watch.arm()
                if seen[0] == count:
                    watch.wait(DEADLINE_S)
                seen[0] = count
                answered.set()

    follower = threading.Thread(target=follow)
    began = time.monotonic()
    follower.start()
    for number in range(1, rounds + 1):
        answered.clear()
        count = number
        ring(file)
        while seen[0] < number:
            assert answered.wait(DEADLINE_S), f"change {number} was missed"
            answered.clear()
    follower.join(DEADLINE_S)
    assert not follower.is_alive()
    assert time.monotonic() - began < DEADLINE_S, "a wake-up was missed, and a wait ended by its limit"


def test_a_forked_process_hears_its_own_and_takes_none_of_its_parents(file: Path) -> None:
    with watching(file) as (watch, heard):
        assert watch.arm()
        child = os.fork()
        if child == 0:
            with BlockingWatch(file_watch(file)) as own:
                own.arm()
                ring(file)
                own.wait(DEADLINE_S)
                os._exit(0 if own._rung.is_set() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        wait_for(lambda: heard)


def test_a_task_wakes_for_any_of_its_files(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]

    async def follow() -> None:
        watch = AsyncWatch(*map(file_watch, paths))
        for path in (*paths, *paths):
            watch.arm()
            write_atomic(path, b"1", durable=False)
            await asyncio.wait_for(watch._rung.wait(), DEADLINE_S)
        watch.close()

    asyncio.run(follow())


def test_a_wake_up_after_the_end_of_its_loop_is_dropped(file: Path) -> None:
    async def leave_armed() -> AsyncWatch:
        watch = AsyncWatch(file_watch(file))
        watch.arm()
        return watch

    watch = asyncio.run(leave_armed())
    with watching(file) as (other, heard):
        assert other.arm()
        ring(file)
        wait_for(lambda: heard)
        assert other.arm()
        ring(file)
        wait_for(lambda: len(heard) == 2)
    watch.close()


def test_without_wake_ups_waits_are_short(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has a limited number of descriptors for them; containers may have none."""
    monkeypatch.setattr(wakeups, "_current", None)
    monkeypatch.setattr(wakeups._libc, "inotify_init1", lambda flags: -1)
    with watching(file) as (watch, _):
        assert not watch.arm()
    with BlockingWatch(file_watch(file)) as blocking:
        blocking.arm()
        began = time.monotonic()
        blocking.wait(DEADLINE_S)
        assert time.monotonic() - began < DEADLINE_S / 2


def test_more_events_than_the_kernel_keeps_wake_everyone(file: Path) -> None:
    with watching(file) as (watch, heard):
        assert watch.arm()
        inotify = wakeups._inotify()
        overflow = wakeups._HEADER.pack(-1, wakeups._OVERFLOW, 0, 0)
        assert inotify._due(overflow) == {watch}
        assert watch.arm()
        ring(file)
        wait_for(lambda: heard)
