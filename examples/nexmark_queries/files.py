"""Consumer for q10: writes the events in its stream to CSV files, in one folder for each minute of event time.

    python -m examples.nexmark_queries.files --to http://127.0.0.1:8080 --into bids

Each bid is written to exactly one file, even if this program is stopped and restarted. Files are numbered, and the next
number is stored together with the position in the stream in one small file, which is replaced atomically. Files that
already have this number at startup are incomplete and are deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.client import Client, Events, Reset

COLUMNS = ("auction", "bidder", "price", "dateTime", "extra")


class Files:
    """The files in a folder, and the position in the stream up to which they are complete."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._place = folder, folder / "position.json"
        self.number, self.cursor = 0, "earliest"
        if self._place.exists():
            self.number, self.cursor = msgspec.json.decode(self._place.read_bytes(), type=tuple[int, str])
        for unfinished in folder.glob(f"*/*/{self._name}"):
            unfinished.unlink()

    @property
    def _name(self) -> str:
        return f"part-{self.number:08}.csv"

    def write(self, events: Iterable[Mapping[str, Any]], cursor: str) -> None:
        """Write the events to files, and record that the stream has been read up to the cursor. Everything is durable
        when this returns."""
        minutes = defaultdict(list)
        for event in events:
            minutes[event["dt"], event["hm"]].append([event[name] for name in COLUMNS])
        for (day, minute), rows in minutes.items():
            folder = self._folder / f"dt={day}" / f"hm={minute}"
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / self._name, "w", newline="") as file:
                csv.writer(file).writerows(rows)
                _sync(file.fileno())
            _sync_folder(folder)
        self._commit(self.number + 1, cursor)

    def _commit(self, number: int, cursor: str) -> None:
        new = self._place.with_suffix(".new")
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(new, "wb") as file:
            file.write(msgspec.json.encode((number, cursor)))
            file.flush()
            _sync(file.fileno())
        new.replace(self._place)
        _sync_folder(self._folder)
        self.number, self.cursor = number, cursor


def _sync(file: int) -> None:
    os.fsync(file)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        _sync(opened)
    finally:
        os.close(opened)


async def follow(url: str, folder: Path) -> None:
    files = Files(folder)
    async with Client(url) as client, client.follow(stream="q10", since=files.cursor) as messages:
        async for message in messages:
            if isinstance(message, Reset):
                raise RuntimeError(f"some bids were missed and need manual attention: {message.reason}")
            if isinstance(message, Events):
                files.write(message.events, message.cursor)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.nexmark_queries.files", description="Bids to files.")
    parser.add_argument("--to", default="http://127.0.0.1:8080", metavar="URL", help="address of the app")
    parser.add_argument("--into", default="bids", type=Path, metavar="DIR", help="folder for the files (bids)")
    chosen = parser.parse_args()
    asyncio.run(follow(chosen.to, chosen.into))


if __name__ == "__main__":
    main()
