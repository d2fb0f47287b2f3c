"""Fixtures for every test: one Spark session for all, since it takes seconds to start."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
"""The Javas of tests live for seconds: with the quick compiler only they take half the time."""

os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("nobody.pem"))
"""Tests talk to the loopback only. A client that is made for one call would read all authorities of the world for it:
40 ms, where one that signs nothing takes one."""

ANSWER_S_MAX = 60.0

for phase in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, phase, ANSWER_S_MAX)
"""A request that says nothing of time is not about time, and five seconds may pass on a machine that is shared."""

ARCHIVE_S_MAX = 240.0

hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")
"""How long an example takes is for benchmarks to say: machines are shared."""

random.seed(os.environ.setdefault("TEST_SEED", str(random.randrange(10**9))))
"""What tests draw at random is new in each run, and the same in all of its processes."""


def pytest_report_header() -> str:
    return f"TEST_SEED={os.environ['TEST_SEED']}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with Spark first, and of those the ones that restart it: they take longest, the others fill the gaps."""
    slow = {item.path for item in items if item.get_closest_marker("spark")}
    items.sort(key=lambda item: (item.path not in slow, item.path.stem != "test_faults"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Only with several processes is there something to divide."""
    from tests.lanes import Lanes

    return Lanes(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spark is started dozens of times: with an archive of its classes, in half the time. Where several processes run
    tests, `lanes.py` has it made meanwhile."""
    alone = not hasattr(session.config, "workerinput") and not session.config.option.collectonly
    if not alone or not any(item.get_closest_marker("spark") for item in session.items):
        return
    from penstock.analyze.archive import start_making

    if (making := start_making()) is not None:
        print("\nmaking an archive of Spark's classes: about a minute, once on a machine")
        making.wait(ARCHIVE_S_MAX)


@pytest.fixture(scope="module", autouse=True)
def nobody_is_left() -> Iterator[None]:
    """Who works beside a test is gone before the next file."""
    from tests.beside import left

    yield
    assert left() == []


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from penstock.analyze.session import start_session
    from penstock.settings import Settings

    folder = tmp_path_factory.mktemp("spark")
    session = start_session("tests", Settings(), logs=folder / "log", warehouse=folder / "warehouse")
    yield session
    session.stop()
