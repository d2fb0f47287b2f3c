"""Working files of a running app, and of one that was killed."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest

from penstock.analyze.scratch import PREFIX
from tests.e2e import decide
from tests.harness import running, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # two starts of an app; tests/analyze tests it without one


def test_working_files_of_an_app_are_its_owners_alone_and_those_of_a_killed_one_go_at_the_next_start(
    tmp_path: Path,
) -> None:
    with (
        tempfile.TemporaryDirectory() as temporary,
        running(Path(decide.__file__), tmp_path / "data", TMPDIR=temporary) as app,
    ):
        folder = Path(temporary)
        app.ready()
        app.post("payments", {"payment": "1", "card": "c", "amount": 1})
        wait_for(lambda: app.view("offered"), 120)
        modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.iterdir()}
        assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
        [killed] = folder.glob(f"{PREFIX}*")
        assert any(killed.glob("blockmgr-*"))
        app.kill_all()
        app.start().ready()
        [after] = folder.glob(f"{PREFIX}*")
        assert after != killed
        app.kill_all()
