"""Benchmark figures, and a description of the machine that they were measured on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One measured figure. `baseline` is the figure for the bare tool in the same run, and `bar` is the target."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    against: str = ""
    bar: str = ""

    def row(self) -> str:
        ratio = f"{self.value / self.baseline:.0%}" if self.baseline else ""
        base = f"{_shown(self.baseline)} {self.unit}" if self.baseline is not None else ""
        return f"| {self.name} | {_shown(self.value)} {self.unit} | {base} | {ratio} | {self.against} | {self.bar} |"


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 10 else f"{figure:.1f}"


@dataclass(frozen=True)
class Absent:
    """A figure that could not be measured, with the reason. It is a row in the same table."""

    name: str
    why: str

    def row(self) -> str:
        return f"| {self.name} | not measured | | | {self.why} | |"


HEADER = "| figure | Penstock | baseline | ratio | baseline is | bar |\n|---|---|---|---|---|---|"


def machine() -> str:
    """Return a one-line description of the machine."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"{cores} cores of {model}, {platform.system()}, Python {platform.python_version()}, load {load:.1f} before"
