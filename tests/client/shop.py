"""The shop of the documentation without its engine: `python -m tests.client.shop FOLDER DESCRIPTOR`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import uvloop

from penstock.app.loading import load
from penstock.core.clock import WallClock
from penstock.core.contracts import Output
from penstock.core.settings import from_environment
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.gateway import Gateway
from penstock.store import ViewSpec
from penstock.store.table import ViewTable
from tests.harness import ROOT

SALES = ViewSpec("sales", ("product",), None, None, None, changes_kept=1_000, changes_bytes=2**30)


class Shop:
    """Takes orders; `sell` replaces the engine, and writes rows of the view `sales`."""

    def __init__(self, folder: Path) -> None:
        directory = DataDirectory(folder)
        directory.make()
        self._table = ViewTable(directory.view_file(SALES.name), SALES, clock=WallClock())
        columns = {"product": pa.string(), "orders": pa.int64(), "pieces": pa.int64()}
        self._table.describe(pa.schema(list(columns.items())))
        self._batches = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        descriptor = self._listener.fileno()
        command = [sys.executable, "-m", "tests.client.shop", str(folder), str(descriptor)]
        self._process = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), pass_fds=[descriptor])

    def sell(self, **pieces: int) -> None:
        counts = list(pieces.values())
        rows = pa.table({"product": list(pieces), "orders": [1] * len(counts), "pieces": counts})
        self._table.commit(Output(self._batches, str(self._batches), str(self._batches + 1), 1, rows))
        self._batches += 1

    def close(self) -> None:
        with self._process as process:
            process.kill()
        self._listener.close()
        self._table.close()


@contextmanager
def running_shop(folder: Path) -> Iterator[Shop]:
    shop = Shop(folder)
    try:
        yield shop
    finally:
        shop.close()


async def serve(folder: str, descriptor: str) -> None:
    app = load(str(ROOT / "docs/examples/shop.py")).app
    await Gateway(app, EmbeddedStorage(DataDirectory(Path(folder))), from_environment()).run(
        socket.socket(fileno=int(descriptor))
    )


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
