"""A view's writer as a separate process: `python -m tests.store.writer FILE FIRST LAST TOP`.

Commits the batches FIRST to LAST (not included), the same ones each time it is run, and prints the result of each.
Batch N touches a handful of the keys, so that rows are added, change, expire by `keep` and swap ranks.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

from penstock.core.contracts import Output
from penstock.store import ViewSpec
from tests.store.support import open_view, output, window_counts, windowed


def written_spec(top: int) -> ViewSpec:
    spec = windowed(keep=timedelta(minutes=3), changes_kept=100_000)
    return replace(spec, top=top, by="n") if top else spec


def written_batch(number: int) -> Output:
    random = Random(number)
    rows = [(number // 5, f"k{random.randrange(12)}", random.randrange(100)) for _ in range(4)]
    return output(number, window_counts(*rows))


def main(file: str, first: str, last: str, top: str) -> None:
    with open_view(Path(file), written_spec(int(top))) as view:
        for number in range(int(first), int(last)):
            print(view.commit(written_batch(number)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
