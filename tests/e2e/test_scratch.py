"""Working files of an app that runs, and of one that was killed."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest

from penstock.analyze.scratch import PREFIX
from tests.e2e import decide
from tests.harness import running, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # two starts of an app; tests/analyze has it without one


def test_working_files_of_an_app_are_its_owners_alone_and_those_of_a_killed_one_go_at_the_next_start(
    tmp_path: Path,
) -> None:
    with tempfile.TemporaryDirectory() as made, running(Path(decide.__file__), tmp_path / "data", TMPDIR=made) as app:
        folder = Path(made)
        app.ready()
        app.post("payments", {"payment": "1", "card": "c", "amount": 1})
        wait_for(lambda: app.view("offered"), 120)
        modes = {each.name: stat.S_IMODE(each.lstat().st_mode) for each in folder.iterdir()}
        assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
        [killed] = folder.glob(f"{PREFIX}*")
        assert any(killed.glob("blockmgr-*"))
        app.kill_all()
        app.start().ready()
        [after] = folder.glob(f"{PREFIX}*")
        assert after != killed
        app.kill_all()
