"""Missing programs are installed before they are used, by one process at a time; failures are reported."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import packages

APT = """#!/bin/sh
mkdir {folder}/busy || exit 100
sleep 0.2
for word in "$@"; do
  case "$word" in tool-*) echo "#!/bin/sh" > {folder}/$word && chmod +x {folder}/$word;; esac
done
echo "no more than that"
rmdir {folder}/busy
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of programs, where an `apt-get` that refuses to run twice at once installs programs named
    `tool-...`."""
    (tmp_path / "apt-get").write_text(APT.format(folder=tmp_path))
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(packages, "_PATH", str(tmp_path))
    monkeypatch.setattr(packages, "_LOCK", tmp_path / "lock")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def test_programs_that_are_needed_at_the_same_time_are_all_installed(machine: Path) -> None:
    names = ["tool-a", "tool-b", "tool-a", "tool-c"]
    with ThreadPoolExecutor(len(names)) as pool:
        assert list(pool.map(packages.need, names)) == [str(machine / name) for name in names]


def test_packages_are_tried_in_turn_until_one_brings_the_program(machine: Path) -> None:
    assert packages.need("tool-b", "other", packages=("other", "tool-b", "tool-c")) == str(machine / "tool-b")
    assert not (machine / "tool-c").exists()


def test_what_may_be_installed_and_is_not_there_afterwards_is_a_failure(machine: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="no more than that"):
        packages.need("other")


def test_where_nothing_may_be_installed_the_test_is_skipped(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="apt-get install tool-a"):
        packages.need("tool-a")
    assert not (machine / "tool-a").exists()
