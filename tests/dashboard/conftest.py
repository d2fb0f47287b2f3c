from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from tests.browser import browser, page
from tests.dashboard.fake_api import FakeApi, serving
from tests.dashboard.market import Market

__all__ = ["browser", "market", "page"]


@dataclass(frozen=True)
class Running:
    """A running fake app."""

    api: FakeApi
    address: str


@pytest.fixture
def market() -> Iterator[Running]:
    """The trading app in its initial state; nothing changes unless the test does it."""
    api = Market(now=datetime(2024, 5, 1, 10, 0, tzinfo=UTC)).api()
    with serving(api) as address:
        yield Running(api, address)
