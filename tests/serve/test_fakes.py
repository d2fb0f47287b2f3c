"""The logs and views that the tests of the serve tier use keep the promises of their contracts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.core.contracts import BlockingLogReader
from tests.contracts.live_view import KEPT, LiveViewContract, OpenView, ViewHome
from tests.contracts.log import AdmissionContract, AdmissionHome, WaitContract, spec
from tests.runtime.test_channel_waker import DeafLog
from tests.serve.fakes import FakeLog, FakeView
from tests.serve.query.support import Typed
from tests.serve.test_schedules import Watched, WatchedLog
from tests.serve.test_stream_reader import RecreatedLog
from tests.test_memory_log import MemoryHome


@pytest.fixture(params=[FakeLog, WatchedLog, RecreatedLog, DeafLog])
def log_type(request: pytest.FixtureRequest) -> type[FakeLog]:
    chosen: type[FakeLog] = request.param
    return chosen


class TestFakeLogs(AdmissionContract, WaitContract):
    """`RecreatedLog` while it is stable."""

    @pytest.fixture
    def home(self, log_type: type[FakeLog]) -> AdmissionHome:
        return MemoryHome(log_type)

    @pytest.fixture
    def waiting(self, log_type: type[FakeLog]) -> BlockingLogReader:
        log = log_type()
        log.declare(spec())
        return log


class FakeViewHome:
    def __init__(self, view: FakeView) -> None:
        self.view = view

    def write(self, upserts: Mapping[str, int], deletes: Sequence[str] = ()) -> None:
        self.view.put(upserts, deletes)

    async def shown(self) -> None:
        return

    async def recreate(self) -> None:
        self.view.remake()


class TestFakeViews(LiveViewContract):
    @pytest.fixture(params=[FakeView, Typed, Watched])
    def view_type(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.fixture(params=[True, False], ids=["remembers", "forgets"])
    def open_home(self, view_type: Any, request: pytest.FixtureRequest) -> OpenView:
        @asynccontextmanager
        async def opened() -> AsyncIterator[ViewHome]:
            yield FakeViewHome(view_type(KEPT, remembers=request.param))

        return opened
