"""Fingerprints of whole apps, without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.harness import ROOT

APPS = (
    "stock",
    "meters",
    "sales",
    "ads",
    "sites",
    "compared",
    "cards",
    "prices",
    "falls",
    "payments",
    "balances",
    "shop_windows",
)


def printed(seed: str, folder: Path) -> str:
    targets = [f"docs/examples/{name}.py" for name in APPS]
    environ = os.environ | {"PYTHONHASHSEED": seed, "TZ": f"UTC+{seed}", "HOME": str(folder)}
    command = [sys.executable, "-m", "tests.fingerprints.printing", *targets]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True).stdout


def test_fingerprints_are_the_same_in_every_process_and_need_nothing_that_cannot_be_compared(tmp_path: Path) -> None:
    """Handlers, patterns, joins, windows, rollups, views: an unstable one would be reported at every start."""
    one, other = printed("1", tmp_path), printed("2", tmp_path)
    assert one == other
    for target, prints in json.loads(one).items():
        nodes = [*prints["views"].values(), *prints["handlers"].values()]
        assert nodes, target
        assert all(node["source"] for node in nodes), f"{target} cannot be compared between versions"
