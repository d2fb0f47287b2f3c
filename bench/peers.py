"""Compares the same geofence in other Python stream engines with ours, per core.

A peer runs as one process per partition, all at the same time, each on a separate core with one worker and with the
settings that suit it best: see `peer_bytewax.py` and `peer_pathway.py`. So no event has to move between processes, as
it would in a real cluster. Ours runs as in `handlers`, with two workers and Spark on the same cores. With recovery on,
a peer makes its state durable once a second, and after a crash repeats the output since then. Ours makes state and
output durable with each batch, exactly once. The figures with recovery off are only for information.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from subprocess import PIPE

from bench.fixes import PARTITIONS
from bench.handlers import filled, ours
from bench.report import Absent, Figure

ROOT = Path(__file__).parent.parent
PATHWAY = ROOT / ".venv-pathway/bin/python"
"""Pathway conflicts with the library versions that are pinned here, so it can be installed in a separate
environment."""
LOG_EVENTS = 1_000_000
FIXES_EACH = 4
"""The minimum number of events per vehicle. With only one event, no vehicle could cross the fence."""
LIMIT_S = 180.0
BAR = "1.5 times the fastest"


@dataclass(frozen=True)
class Peer:
    """An engine and one configuration of it. If `log` is true, it reads our log instead of the input that suits it
    best."""

    engine: str
    recovery: str
    log: bool = False

    @property
    def label(self) -> str:
        source = ", from our log" if self.log else ""
        return f"{self.engine}{source}, recovery {self.recovery}"

    def command(self, vehicles: int, partition: int, folder: Path) -> list[str]:
        python = str(PATHWAY) if self.engine == "pathway" and PATHWAY.exists() else sys.executable
        given = [str(folder)] if self.log or self.engine == "pathway" else []
        return [python, "-m", f"bench.peer_{self.engine}", str(vehicles), self.recovery, str(partition), *given]

    @property
    def present(self) -> bool:
        return find_spec(self.engine) is not None or (self.engine == "pathway" and PATHWAY.exists())


PEERS = {
    10_000: [
        Peer("bytewax", "on"),
        Peer("bytewax", "on", log=True),
        Peer("bytewax", "off"),
        Peer("pathway", "on"),
        Peer("pathway", "off"),
    ],
    1_000_000: [Peer("bytewax", "on", log=True), Peer("pathway", "on")],
}


def run() -> Iterator[Figure | Absent]:
    for vehicles, peers in PEERS.items():
        name = f"peers: {vehicles:,} keys, a core"
        for peer in peers:
            if not peer.present:
                yield Absent(name, f"{peer.label}: {peer.engine} is not installed, see docs/benchmarks.md")
                continue
            theirs = measure(peer, vehicles)
            if isinstance(theirs, float):
                bar = BAR if peer.recovery == "on" and peer.log else ""
                yield Figure(name, ours(vehicles), "events/s", theirs, peer.label, bar)
            else:
                yield Absent(name, f"{peer.label}: {theirs}")


def measure(peer: Peer, vehicles: int) -> float | str:
    """Return events per second and core, or the reason why there is no figure."""
    if peer.log:
        with filled(vehicles, max(LOG_EVENTS, FIXES_EACH * vehicles)) as directory:
            return _run(peer, vehicles, directory.streams.resolve())
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        return _run(peer, vehicles, Path(folder))


def _run(peer: Peer, vehicles: int, folder: Path) -> float | str:
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(peer.command(vehicles, partition, folder), env=environ, stdout=PIPE, stderr=PIPE, text=True)
        for partition in range(PARTITIONS)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_S) for process in running]
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_S:.0f} s"
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, outputs, strict=True):
        if process.returncode:
            return " ".join(errors.strip().splitlines()[-1:]) or f"ended with {process.returncode}"
    return fmean(float(output.split()[-1]) for output, _ in outputs)
