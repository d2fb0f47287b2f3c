"""The sink of a handler's batches keeps the promises of the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.core.contracts import Output, Sink
from penstock.handlers.worker import RESULT
from penstock.runtime.handlers import HandlerSink, open_handler
from tests.contracts.sink import SinkContract, SinkHome
from tests.handlers import standing
from tests.handlers.view_handlers import SHARDS, Keeping


class HandlerHome:
    """A handler with a view. Its batches have no output: `tests/contracts/storage.py` is about what they write."""

    def __init__(self, root: Path) -> None:
        [view_handler] = standing.app.view_handlers
        self._keeping = Keeping(root, standing.app, view_handler, str(standing.__file__))

    @contextmanager
    def open(self) -> Iterator[Sink]:
        keeping = self._keeping
        opened = open_handler(keeping.view_handler, keeping.plan, keeping.storage, keeping.log, keeping.table())
        sink = HandlerSink(keeping.view_handler, keeping.plan, keeping.storage, opened)
        try:
            yield sink
        finally:
            sink.close()

    def output(self, batch_id: int, start: int, end: int, epoch: int) -> Output:
        return Output(batch_id, self._position(start), self._position(end), epoch, RESULT.empty_table())

    def _position(self, offset: int) -> str:
        return json.dumps([{f"{self._keeping.stream.name}/{shard}": offset for shard in range(SHARDS)}])

    def written(self) -> object:
        return self._keeping.storage.handled(self._keeping.view_handler.name)

    def close(self) -> None:
        self._keeping.log.close()


class TestHandlerSink(SinkContract):
    @pytest.fixture
    def sink_home(self, tmp_path: Path) -> Iterator[SinkHome]:
        home = HandlerHome(tmp_path)
        yield home
        home.close()
