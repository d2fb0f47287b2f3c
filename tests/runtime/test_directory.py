"""One owner at a time, whoever dies how."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import AlreadyRunning, Damaged, NewerFormat, StorageError
from penstock.runtime.directory import DataDirectory, await_orphans, take

HOLD = """
import os, sys
from pathlib import Path
from penstock.runtime.directory import DataDirectory, take
print(take(DataDirectory(Path(sys.argv[1])), "fleet").epoch, flush=True)
sys.stdin.read()
"""


def hold(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_second_owner_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with hold(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "1\n"
        with pytest.raises(AlreadyRunning, match=f"process {first.pid} "):
            take(DataDirectory(tmp_path), "fleet")
        first.kill()


LEAVE = """
import os, subprocess, sys
from pathlib import Path
from penstock.runtime.directory import DataDirectory, take
held = take(DataDirectory(Path(sys.argv[1])), "fleet").descriptor
with subprocess.Popen(["cat"], stdin=int(sys.argv[2]), pass_fds=[held]):
    print("held", flush=True)
"""


@contextmanager
def left_behind(root: Path) -> Iterator[tuple[int, Callable[[], None]]]:
    """A directory whose owner was killed, and whose child still has the lock: the pid of the first, and what ends the
    second."""
    reading, writing = os.pipe()
    held = os.fdopen(writing, "wb")

    command = [sys.executable, "-c", LEAVE, str(root), str(reading)]
    with subprocess.Popen(command, pass_fds=[reading], stdout=subprocess.PIPE, text=True) as owner:
        os.close(reading)
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        owner.kill()
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not forgotten yet
        try:
            yield owner.pid, held.close
        finally:
            held.close()


def test_what_a_killed_owner_has_started_is_waited_for(tmp_path: Path) -> None:
    directory, said = DataDirectory(tmp_path), list[str]()
    with left_behind(tmp_path) as (pid, end):
        with pytest.raises(AlreadyRunning):
            take(directory, "fleet")

        def say(line: str) -> None:
            said.append(line)
            end()

        await_orphans(directory, say, 60)
        os.close(take(directory, "fleet").descriptor)
    assert said == [f"process {pid} is gone, but what it started is still ending; waiting up to 60 s"]


def test_what_a_killed_owner_has_started_is_not_waited_for_without_end(tmp_path: Path) -> None:
    with left_behind(tmp_path) as (pid, _), pytest.raises(AlreadyRunning, match=f"process {pid} is gone, but") as error:
        await_orphans(DataDirectory(tmp_path), lambda line: None, 0.2)
    assert "end those processes" in error.value.message


def test_an_owner_that_lives_is_not_waited_for(tmp_path: Path) -> None:
    directory, said = DataDirectory(tmp_path), list[str]()
    await_orphans(directory, said.append)
    with hold(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "1\n"
        await_orphans(directory, said.append)
        first.kill()
    assert said == []


def test_each_owner_has_a_higher_epoch_even_after_kill(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        with hold(tmp_path) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == f"{epoch}\n"
            owner.kill()


def test_another_app_is_refused(tmp_path: Path) -> None:
    os.close(take(DataDirectory(tmp_path), "fleet").descriptor)
    with pytest.raises(AlreadyRunning, match="belongs to the app 'fleet'"):
        take(DataDirectory(tmp_path), "shop")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "owner.json").write_text('{"app": "fleet", "epoch": 1, "pid": 1, "format": 99}')
    with pytest.raises(NewerFormat):
        take(DataDirectory(tmp_path), "fleet")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"app": "fleet"}'])
def test_a_damaged_owner_file_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "owner.json").write_bytes(content)
    with pytest.raises(Damaged, match=r"owner\.json"):
        take(DataDirectory(tmp_path), "fleet")


def test_the_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    root = tmp_path / "data"
    os.close(take(DataDirectory(root), "fleet").descriptor)
    assert root.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("part", ["", "run", "streams"])
def test_a_directory_that_everyone_may_write_to_is_refused_with_the_command_that_fixes_it(
    tmp_path: Path, part: str
) -> None:
    """Others could put files there that are trusted: keys, the next app file, the log."""
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    (directory.root / part).chmod(0o777)
    with pytest.raises(StorageError, match=f"chmod go-w {directory.root / part}"):
        take(directory, "fleet")
    (directory.root / part).chmod(0o700)
    os.close(take(directory, "fleet").descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to someone else")
@pytest.mark.parametrize("part", ["", "run"])
def test_a_directory_of_another_user_is_refused_with_the_command_that_fixes_it(tmp_path: Path, part: str) -> None:
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    os.chown(directory.root / part, 12345, -1)
    with pytest.raises(StorageError, match=r"belongs to user 12345.*chown -R 0 "):
        take(directory, "fleet")


@pytest.mark.parametrize("below", ["data", "more/data"])
def test_a_directory_that_others_may_rename_is_refused_with_the_command_that_fixes_it(
    tmp_path: Path, below: str
) -> None:
    """Who may write to a directory above could put another data directory in its place, with keys of their own."""
    shared = tmp_path / "shared"
    shared.mkdir()
    directory = DataDirectory(shared / below)
    directory.make()
    shared.chmod(0o777)
    with pytest.raises(StorageError, match=f"chmod \\+t {shared}$"):
        take(directory, "fleet")
    shared.chmod(0o1777)
    os.close(take(directory, "fleet").descriptor)


def test_the_group_of_the_process_may_write_and_no_other(tmp_path: Path) -> None:
    """With a umask of 002 a directory is made so, for a group with one member."""
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    directory.root.chmod(0o775)
    directory.make()
    if os.geteuid() == 0:
        os.chown(directory.root, -1, 12345)
        with pytest.raises(StorageError, match="go-w"):
            directory.make()
