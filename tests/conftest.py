"""Fixtures for all tests: one Spark session for all, because it takes seconds to start."""

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
"""The JVMs of tests live for seconds: with the quick compiler alone they take half the time."""

os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("nobody.pem"))
"""Tests connect to loopback only. A client created for one call would read all certificate authorities for it: 40 ms,
instead of one for a file with a certificate that signs nothing."""

ANSWER_S_MAX = 60.0

for phase in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, phase, ANSWER_S_MAX)
"""A request without a timeout is not about time, and five seconds may pass on a shared machine."""

ARCHIVE_S_MAX = 240.0

hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")
"""The duration of an example is a matter for benchmarks: machines are shared."""

random.seed(os.environ.setdefault("TEST_SEED", str(random.randrange(10**9))))
"""Random draws of tests differ in each run, and are the same in all of its processes."""


def pytest_report_header() -> str:
    return f"TEST_SEED={os.environ['TEST_SEED']}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with Spark first, those that restart it before the others: they take longest, the rest fills the
    gaps."""
    slow = {item.path for item in items if item.get_closest_marker("spark")}
    items.sort(key=lambda item: (item.path not in slow, item.path.stem != "test_faults"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Use the project's scheduler if tests run in several processes."""
    from tests.lanes import Lanes

    return Lanes(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spark is started dozens of times, in half the time with an archive of its classes. If tests run in several
    processes, `lanes.py` has it made meanwhile."""
    alone = not hasattr(session.config, "workerinput") and not session.config.option.collectonly
    if not alone or not any(item.get_closest_marker("spark") for item in session.items):
        return
    from penstock.analyze.archive import start_archiving

    if (making := start_archiving()) is not None:
        print("\nmaking an archive of Spark's classes: about a minute, once on a machine")
        making.wait(ARCHIVE_S_MAX)


@pytest.fixture(scope="module", autouse=True)
def nobody_is_left() -> Iterator[None]:
    """Check that clients which run beside a test are gone before the next file."""
    from tests.beside import left

    yield
    assert left() == []


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocate offsets without gaps, for tests that name or count them."""
    from penstock.queue import gaps

    monkeypatch.delenv(gaps.VARIABLE, raising=False)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from penstock.analyze.session import start_session
    from penstock.core.settings import Settings

    folder = tmp_path_factory.mktemp("spark")
    session = start_session("tests", Settings(), logs=folder / "log", warehouse=folder / "warehouse")
    yield session
    session.stop()
