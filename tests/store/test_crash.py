"""A kill at the worst moment costs nothing: the batch is there whole or not at all, and offering it again is safe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.contracts import LedgerEntry
from penstock.store import ledger
from tests.harness import ROOT
from tests.store.support import changes, open_view, served
from tests.store.writer import written_batch, written_spec

BATCHES = 6


def write(file: Path, first: int, last: int, top: int, failpoints: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.store.writer", str(file), str(first), str(last), str(top)],
        env=os.environ | {"PENSTOCK_FAILPOINTS": failpoints},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("top", [0, 3])
@pytest.mark.parametrize(("point", "durable"), [("ledger.before_commit", False), ("ledger.after_commit", True)])
def test_a_batch_killed_around_its_commit_is_offered_again_with_the_same_result(
    tmp_path: Path, point: str, durable: bool, top: int
) -> None:
    spec, file, whole = written_spec(top), tmp_path / "killed.db", tmp_path / "whole.db"
    killed = write(file, 0, BATCHES, top, f"{point}@4=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout.split() == ["True"] * 3

    last = written_batch(3 if durable else 2)
    assert ledger(file) == LedgerEntry(last.batch_id, last.start, last.end, last.epoch)
    again = write(file, 3, BATCHES, top)
    assert again.stdout.split() == [str(not durable), "True", "True"], again.stderr

    with open_view(whole, spec) as view:
        for number in range(BATCHES):
            view.commit(written_batch(number))
    assert (served(file, spec).version, served(file, spec).rows) == (
        served(whole, spec).version,
        served(whole, spec).rows,
    )
    assert changes(file, spec, 0) == changes(whole, spec, 0)
