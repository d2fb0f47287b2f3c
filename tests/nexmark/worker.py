"""An engine in a separate process, to be killed: runs every query of an app, one after the other, and reports it.

python -m tests.nexmark.worker DATA q4 q5 ...
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.nexmark_log import engine_for, run_each
from examples.nexmark import QUERIES, app_for
from penstock.analyze.session import start_session
from penstock.core.settings import Settings
from penstock.runtime.embedded.directory import DataDirectory

TARGET = Path(__file__).parents[2] / "examples/nexmark.py:every"


def main(data: Path, names: list[str]) -> None:
    directory = DataDirectory(data)
    spark = start_session("nexmark", Settings(), logs=directory.logs, warehouse=directory.run / "warehouse")
    print("ready", flush=True)
    engine = engine_for(app_for(*(names or QUERIES)), str(TARGET), directory, spark)
    for node in run_each(engine):
        print(node.name, flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
