"""The archive of Spark's classes is used only if it is complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.analyze.archive import _remove_stale, archive_file, java_options, make
from penstock.analyze.java import find_java

START = """
import sys
from pathlib import Path
from penstock.analyze.session import start_session
from penstock.core.settings import Settings
folder = Path(sys.argv[1])
shown = ["-Xlog:class+load:file=" + str(folder / "classes.log")]
start_session("test", Settings(), logs=folder, warehouse=folder / "warehouse", java_options=shown).stop()
"""


def test_an_archive_belongs_to_one_java_and_one_place() -> None:
    java = find_java()
    assert archive_file(java, {"HOME": "/home/a"}).parent == Path("/home/a/.cache/penstock")
    assert archive_file(java, {"XDG_CACHE_HOME": "/b"}).parent == Path("/b/penstock")
    other = type(java)(Path("/elsewhere"), java.version, "PATH")
    assert archive_file(java).name != archive_file(other).name


def test_an_archive_that_is_not_what_was_written_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "a.jsa"
    assert java_options(file) == []
    file.write_bytes(b"classes")
    assert java_options(file) == []
    file.with_suffix(".crc").write_text("6ed95d53")
    assert java_options(file) == []
    file.with_suffix(".crc").write_text("02ed7ec5")
    assert java_options(file)[0] == f"-XX:SharedArchiveFile={file}"
    file.write_bytes(b"klasses")
    assert java_options(file) == []


def test_archives_of_environments_that_are_gone_go(tmp_path: Path) -> None:
    for name, spark in (("here", __file__), ("gone", str(tmp_path / "nowhere"))):
        (tmp_path / f"spark-{name}.crc").write_text(f"00000000\n{spark}")
        (tmp_path / f"spark-{name}.jsa").touch()
    _remove_stale(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"spark-here.crc", "spark-here.jsa"}


@pytest.mark.spark
def test_spark_loads_its_classes_from_the_archive(tmp_path: Path) -> None:
    file = archive_file(find_java())
    if not java_options(file):
        make(file)
    subprocess.run([sys.executable, "-c", START, str(tmp_path)], check=True, capture_output=True)
    lines = (tmp_path / "classes.log").read_text().splitlines()
    spark = [line for line in lines if " org.apache.spark." in line and "$$Lambda" not in line]
    assert len(spark) > 1000
    shared = [line for line in spark if "shared objects file" in line]
    assert len(shared) > 0.95 * len(spark)
