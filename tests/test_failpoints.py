"""Failpoints end a process exactly where they are set, and only once with a marker."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core import failpoints


def run(setting: str, reached: str) -> int:
    code = f"from penstock.core.failpoints import reach\nfor name in {reached.split()!r}: reach(name)"
    return subprocess.run([sys.executable, "-c", code], env={failpoints.VARIABLE: setting}, check=False).returncode


def test_a_point_that_is_not_set_does_nothing() -> None:
    assert run("", "a b c") == 0


def test_kill_ends_the_process_at_the_nth_time() -> None:
    assert run("a@3=kill", "a a") == 0
    assert run("a@3=kill", "a b a a") == -signal.SIGKILL


def test_a_marker_makes_it_happen_once_over_restarts(tmp_path: Path) -> None:
    marker = tmp_path / "done"
    assert run(f"a=kill:{marker}", "a") == -signal.SIGKILL
    assert marker.exists()
    assert run(f"a=kill:{marker}", "a") == 0


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="use kill or stop"):
        failpoints.parse("a=explode")


def test_a_test_kills_a_process_at_every_failpoint() -> None:
    package, tests = Path(failpoints.__file__).parents[1], Path(__file__).parent
    named = {
        name for file in package.rglob("*.py") for name in re.findall(r'\breach\(\s*"([a-z_.]+)"', file.read_text())
    }
    texts = [file.read_text() for file in tests.rglob("test_*.py") if file != Path(__file__)]
    assert named
    assert sorted(name for name in named if not any(f'"{name}' in text for text in texts)) == []
