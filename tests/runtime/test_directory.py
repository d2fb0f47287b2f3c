"""One owner at a time, whoever dies how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import AlreadyRunning, Damaged, NewerFormat
from penstock.runtime.directory import DataDirectory, take

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
