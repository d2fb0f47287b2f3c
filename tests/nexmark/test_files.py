"""q10's files: each bid in exactly one of them, in the folder of its minute, however often the writer stops."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.nexmark_queries.events import Bid
from examples.nexmark_queries.files import Files
from examples.nexmark_queries.generator import Generator


class Crash(Exception):
    pass


def events(count: int) -> list[dict[str, Any]]:
    bids = [event for event in Generator(count, seed=2, per_second=5) if isinstance(event, Bid)]
    return [
        {
            "auction": bid.auction, "bidder": bid.bidder, "price": bid.price, "dateTime": bid.dateTime.isoformat(),
            "extra": bid.extra, "dt": f"{bid.dateTime:%Y-%m-%d}", "hm": f"{bid.dateTime:%H:%M}",
        }
        for bid in bids
    ]  # fmt: skip


def written(folder: Path) -> Counter[tuple[str, ...]]:
    """Count the rows of all files, each with its folder."""
    rows: Counter[tuple[str, ...]] = Counter()
    for path in folder.glob("dt=*/hm=*/*.csv"):
        with open(path, newline="") as file:
            rows.update((path.parent.parent.name, path.parent.name, *row) for row in csv.reader(file))
    return rows


def wanted(rows: list[dict[str, Any]]) -> Counter[tuple[str, ...]]:
    columns = ("auction", "bidder", "price", "dateTime", "extra")
    return Counter((f"dt={row['dt']}", f"hm={row['hm']}", *(str(row[name]) for name in columns)) for row in rows)


def test_each_bid_is_in_the_folder_of_its_minute(tmp_path: Path) -> None:
    rows = events(1_000)
    files = Files(tmp_path / "bids")
    files.write(rows[:300], "c1")
    files.write(rows[300:], "c2")
    assert written(tmp_path / "bids") == wanted(rows)
    assert len(list((tmp_path / "bids").glob("dt=*/hm=*"))) > 2


def test_what_was_not_finished_is_written_anew_be_it_less_or_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, folder = events(1_000), tmp_path / "bids"
    Files(folder).write(rows[:300], "c1")
    dying = Files(folder)
    with monkeypatch.context() as patch:
        patch.setattr(dying, "_commit", lambda number, cursor: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            dying.write(rows[300:800], "c2")
    again = Files(folder)
    assert again.cursor == "c1", "the stream is read from where the finished files end"
    again.write(rows[300:500], "c3")
    again.write(rows[500:], "c4")
    assert written(folder) == wanted(rows)
    assert Files(folder).cursor == "c4"
