"""A data directory has one owner at a time, whatever process dies and however."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from penstock.core.errors import AlreadyRunning, Damaged, NewerFormat, StorageError
from penstock.runtime.embedded.directory import DataDirectory, await_orphans, held, take
from tests.contracts.ownership import left_behind


def test_whoever_looks_at_the_owner_keeps_no_one_from_owning(tmp_path: Path) -> None:
    """It has the lock for a moment."""
    directory = DataDirectory(tmp_path)
    directory.make()
    looking = os.open(directory.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(looking, fcntl.LOCK_SH)
    tries: list[float] = []

    def sleep(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:
            os.close(looking)

    with patch.object(time, "sleep", sleep):
        os.close(*take(directory, "fleet").inherit)
    assert len(tries) == 3


def test_what_a_killed_owner_has_started_is_waited_for(tmp_path: Path) -> None:
    directory, said = DataDirectory(tmp_path), list[str]()
    with left_behind(str(tmp_path)) as (pid, end):
        with pytest.raises(AlreadyRunning):
            take(directory, "fleet")

        def say(line: str) -> None:
            said.append(line)
            end()

        await_orphans(directory, say, 60)
        os.close(*take(directory, "fleet").inherit)
    assert said == [f"process {pid} has ended, but its children have not; waiting up to 60 s"]


def test_what_a_killed_owner_has_started_is_not_waited_for_without_end(tmp_path: Path) -> None:
    with (
        left_behind(str(tmp_path)) as (pid, _),
        pytest.raises(AlreadyRunning, match=f"process {pid} has ended, but") as error,
    ):
        await_orphans(DataDirectory(tmp_path), lambda line: None, 0.2)
    assert "end those processes" in error.value.message


def test_a_process_that_got_the_id_of_a_killed_owner_later_is_not_the_owner(tmp_path: Path) -> None:
    """This process, which runs, has the id, but it started at another time."""
    directory, said = DataDirectory(tmp_path), list[str]()
    with left_behind(str(tmp_path)) as (_, end):
        stored = json.loads((tmp_path / "owner.json").read_text())
        assert stored["started"] > 0
        (tmp_path / "owner.json").write_text(json.dumps(stored | {"pid": os.getpid()}))

        def say(line: str) -> None:
            said.append(line)
            end()

        await_orphans(directory, say, 60)
    assert len(said) == 1


def test_the_children_of_a_killed_owner_are_named_as_what_uses_the_directory(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    with left_behind(str(tmp_path)) as (pid, _):
        for use in (lambda: take(directory, "fleet"), lambda: held(directory).__enter__()):
            with pytest.raises(AlreadyRunning, match=f"in use by children of process {pid} .*, which has ended; wait"):
                use()


def test_purge_waits_for_what_a_killed_owner_has_started(tmp_path: Path) -> None:
    """Two streams were declared once, and now there is one."""
    (tmp_path / "app.py").write_text(
        "from penstock import App, Event\nclass Fix(Event):\n    car: str\napp = App('fleet')\n"
        "fixes = app.stream('fixes', Fix, key='car')\n"
    )
    data = DataDirectory(tmp_path / "data")
    with left_behind(str(data.root)) as (pid, end):
        (data.streams / "old.db").touch()
        command = [sys.executable, "-m", "penstock.cli", "purge", "app.py", "old", "--data", "data", "--yes"]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as purge:
            assert purge.stdout is not None
            assert f"process {pid} has ended, but its children have not" in purge.stdout.readline()
            assert (data.streams / "old.db").exists()
            end()
            purge.stdout.read()
    assert purge.returncode == 0
    assert not (data.streams / "old.db").exists()


def test_the_parent_of_each_new_folder_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a power cut could lose a folder with all of its data."""
    synced, fsync = list[str](), os.fsync

    def record(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    DataDirectory(tmp_path / "new" / "deep" / "data").make()
    folders = [tmp_path, tmp_path / "new", tmp_path / "new" / "deep", tmp_path / "new" / "deep" / "data"]
    assert synced == [str(folder) for folder in folders]


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
    os.close(*take(DataDirectory(root), "fleet").inherit)
    assert root.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("part", ["", "run", "streams"])
def test_a_directory_that_everyone_may_write_to_is_refused_with_the_command_that_fixes_it(
    tmp_path: Path, part: str
) -> None:
    """Others could put trusted files there: keys, the next app file, the log."""
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    (directory.root / part).chmod(0o777)
    with pytest.raises(StorageError, match=f"chmod go-w {directory.root / part}"):
        take(directory, "fleet")
    (directory.root / part).chmod(0o700)
    os.close(*take(directory, "fleet").inherit)


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
    """A user who may write to a directory above could replace the data directory, with their own keys in it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    directory = DataDirectory(shared / below)
    directory.make()
    shared.chmod(0o777)
    with pytest.raises(StorageError, match=f"chmod \\+t {shared}$"):
        take(directory, "fleet")
    shared.chmod(0o1777)
    os.close(*take(directory, "fleet").inherit)


def test_the_group_of_the_process_may_write_and_no_other(tmp_path: Path) -> None:
    """With a umask of 002 a directory is created so, for a group with one member."""
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    directory.root.chmod(0o775)
    directory.make()
    if os.geteuid() == 0:
        os.chown(directory.root, -1, 12345)
        with pytest.raises(StorageError, match="go-w"):
            directory.make()
