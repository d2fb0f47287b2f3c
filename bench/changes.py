"""The view of the fan-out benchmark, and the process that changes it: `python -m bench.changes FOLDER`.

A line with two numbers on standard input asks for that many changes per second for that many seconds. When all of them
are in the file, the process prints a line. Each change is a version with a single row, committed in the same way as by
the engine.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from penstock import App, Event
from penstock.core.clock import WallClock
from penstock.core.contracts import Output
from penstock.core.settings import Settings
from penstock.runtime.embedded.directory import DataDirectory
from penstock.store import ViewSpec, ViewTable

VIEW = "fixes"
KEYS = 1_000
CITIES = 10
"""The number of filters. Each change passes exactly one of them."""
PADDING = "x" * 64


class Fix(Event):
    vehicle: str


app = App("fanout")
_fixes = app.stream("reports", Fix)


@app.view(VIEW, reads=_fixes, key="vehicle")
def fixes(reports: DataFrame) -> DataFrame:
    return reports


SCHEMA = pa.schema(
    [
        ("vehicle", pa.string()),
        ("city", pa.string()),
        ("number", pa.int64()),
        ("at_ns", pa.int64()),
        ("speed", pa.float64()),
        ("text", pa.string()),
    ]
)


def city(number: int) -> str:
    return f"city{number % CITIES}"


def row(number: int) -> dict[str, object]:
    """Return the row for a change. It contains the current time, according to a clock that all processes share."""
    return {
        "vehicle": f"vehicle{number % KEYS:04}",
        "city": city(number),
        "number": 1_000_000 + number,
        "at_ns": time.monotonic_ns(),
        "speed": 13.5,
        "text": PADDING,
    }


def table(folder: Path) -> ViewTable:
    chosen = Settings()
    view = app.views[0]
    spec = ViewSpec(view.name, view.key, view.keep, view.top, view.by, chosen.changes_kept, chosen.changes_bytes)
    return ViewTable(DataDirectory(folder).view_file(view.name), spec, clock=WallClock())


def main(folder: Path) -> None:
    written = table(folder)
    written.describe(SCHEMA)
    count = 0

    def commit() -> None:
        nonlocal count
        one = pa.Table.from_pylist([row(count)], SCHEMA)
        written.commit(Output(count, f"{count}", f"{count + 1}", 1, one))
        count += 1

    for _ in range(KEYS):
        commit()
    print("ready", flush=True)
    for line in sys.stdin:
        per_second, seconds = map(float, line.split())
        began, first = time.monotonic(), count
        while time.monotonic() - began < seconds:
            early_s = began + (count - first) / per_second - time.monotonic()
            if early_s > 0:
                time.sleep(early_s)
            commit()
        print((count - first) / (time.monotonic() - began), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
