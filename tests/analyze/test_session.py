"""The connection between Java and Python."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import py4j
import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.analyze.scratch import _create
from penstock.analyze.session import TEMPORARY_CHARS_MAX, _python, _sockets

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
    with tempfile.TemporaryDirectory() as root:
        long = Path(root, "x" * (TEMPORARY_CHARS_MAX - len(root) - 1 + more))
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        options = _sockets(_create())
    assert bool(options) is used
    name = ".01234567-89ab-cdef-0123-456789abcdef.sock"  # as Spark names them
    assert not used or len(options["spark.python.unix.domain.socket.dir"]) + 1 + len(name) < 108


def test_workers_have_pyspark_from_where_it_is_compiled(spark: SparkSession) -> None:
    def module_files(_: object) -> list[str]:
        import py4j
        import pyspark

        return [pyspark.__file__, py4j.__file__]

    assert spark.sparkContext.parallelize([0], 1).flatMap(module_files).collect() == [pyspark.__file__, py4j.__file__]


def test_the_path_of_workers_is_kept_but_for_the_archives_of_spark(tmp_path: Path) -> None:
    home, own = tmp_path / "spark home", tmp_path / "own"
    path = [f"{home}/lib/pyspark.zip", str(own), f"{home}/core.jar", f"{own}/*.zip", f"{home}/python", f"{own}/a b"]
    environ = os.environ | {"PYTHONPATH": ":".join(path), "SPARK_HOME": str(home)}
    script = "import sys, os; print(os.environ['PYTHONPATH'], sys.executable, *sys.argv[1:], sep='\\n')"
    command = [_python(tmp_path), "-c", script, "a  b", "*"]
    lines = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0].split(":") == [path[1], *path[3:]]
    assert lines[1:] == [sys.executable, "a  b", "*"]


def test_where_nothing_may_be_executed_python_is_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert _python(tmp_path) == sys.executable
