"""Fixtures for every test: one Spark session for all, since it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from penstock.analyze.session import start_session
    from penstock.settings import Settings

    folder = tmp_path_factory.mktemp("spark")
    session = start_session("tests", Settings(), logs=folder / "log", warehouse=folder / "warehouse")
    yield session
    session.stop()
