"""How Java and Python talk to each other."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.analyze.session import TEMPORARY_CHARS_MAX, _sockets

pytestmark = pytest.mark.spark


def test_java_and_python_talk_by_sockets_that_only_their_owner_may_open(spark: SparkSession) -> None:
    folder = Path(spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir") or "")
    assert spark.sparkContext.parallelize(range(3)).map(lambda number: number + 1).sum() == 6
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.glob(".*.sock"))


@pytest.mark.parametrize(("more", "used"), [(0, True), (1, False)])
def test_where_the_path_of_a_socket_would_be_too_long_there_are_ports(
    more: int, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as made:
        long = Path(made, "x" * (TEMPORARY_CHARS_MAX - len(made) - 1 + more))
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        found = _sockets()
    assert bool(found) is used
    name = ".01234567-89ab-cdef-0123-456789abcdef.sock"  # as Spark calls them
    assert not used or len(found["spark.python.unix.domain.socket.dir"]) + 1 + len(name) < 108
