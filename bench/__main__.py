"""`python -m bench [NAME...]`: runs all benchmarks, or only the named ones, and prints a table."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, datetime

from bench.report import HEADER, machine

NAMES = (
    "ingest", "dedupe", "view", "handlers", "patterns", "windows", "peers", "restore", "recovery",
    "latency", "start", "idle", "fanout",
)  # fmt: skip
LONG = ("layers", "memory", "nexmark")
"""Benchmarks that run only if they are named."""


def main(chosen: list[str]) -> int:
    unknown = [name for name in chosen if name not in (*NAMES, *LONG)]
    if unknown:
        print(f"there is no benchmark {unknown[0]!r}; choose from {', '.join((*NAMES, *LONG))}", file=sys.stderr)
        return 1
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine()}\n\n{HEADER}", flush=True)
    for name in chosen or NAMES:
        for figure in importlib.import_module(f"bench.{name}").run():
            print(figure.row(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
