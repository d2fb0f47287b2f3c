"""A view rebuilt from the log and taken over: correct rows, each event once, at every point of a crash."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.app.loading import load
from penstock.core import failpoints
from penstock.core.contracts import Output, Retention
from penstock.core.errors import AlreadyRunning, DeclarationError, StorageError
from penstock.core.failpoints import Interrupted
from penstock.runtime.embedded.next_view import EmbeddedNextView
from penstock.runtime.embedded.rebuild_lock import held_back, hold_back, rebuild_lock
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.retention import floor
from penstock.runtime.viewrun import ViewRun
from penstock.store import History, rebuilt
from tests.runtime.rebuilding import FIRST, MINIMUM, Site, changed, expected, reading, readings

pytestmark = pytest.mark.spark
SWAP_POINTS = [
    "swap.before_adoption",
    "adoption.before_commit",
    "adoption.after_commit",
    "swap.after_late",
    "checkpoint.before_move",
    "checkpoint.after_move",
]
Opened = Callable[[Path], Site]


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed(tmp_path_factory.mktemp("code"), MINIMUM)


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory on which the first code has run on some readings."""
    root = tmp_path_factory.mktemp("begun") / "data"
    site = Site(spark, root)
    for first in (0, 30, 60):
        site.send(readings(first, 30))
    site.run(FIRST)
    return root


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, begun: Path, second: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same, with the view rebuilt for the second code, and more readings processed since."""
    root = tmp_path_factory.mktemp("prepared") / "data"
    shutil.copytree(begun, root)
    site = Site(spark, root)
    site.rebuild(second, "peak")
    site.send(readings(90, 10))
    site.run(FIRST)
    return root


@pytest.fixture
def opened(spark: SparkSession, tmp_path: Path) -> Opened:
    def open_copy(root: Path) -> Site:
        shutil.copytree(root, tmp_path / "data")
        return Site(spark, tmp_path / "data")

    return open_copy


def test_an_edited_view_is_rebuilt_beside_the_old_one_and_taken_over(
    opened: Opened, prepared: Path, second: Path
) -> None:
    site = opened(prepared)
    generation, version, _ = site.reader(FIRST, "peak")
    assert site.peak(FIRST) == expected(max, readings(0, 100))  # the old one is served until then
    site.send(readings(100, 5))
    site.run(second)
    assert site.peak(second) == expected(min, readings(0, 105))
    after = site.reader(second, "peak")
    assert after[0] != generation
    assert after[1] == version + 1
    site.send(readings(105, 20))
    site.run(second)
    assert site.peak(second) == expected(min, readings(0, 125))
    files = EmbeddedNextView(site.directory, "peak")
    assert not files.folder.exists()
    assert not files.checkpoint.path.exists()


def test_a_crash_at_every_point_of_the_swap_is_made_up_for(
    opened: Opened, prepared: Path, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crashes one after the other, each at the next point. `tests/soak` tests each alone, by kill -9."""
    site = opened(prepared)
    for point in SWAP_POINTS:
        monkeypatch.setattr(failpoints, "_traps", failpoints.parse(f"{point}=stop"))
        with pytest.raises(Interrupted):
            site.run(second, clean=False)
    monkeypatch.setattr(failpoints, "_traps", {})
    site.send(readings(100, 5))
    site.run(second, clean=False)
    assert site.peak(second) == expected(min, readings(0, 105))
    assert EmbeddedNextView(site.directory, "peak").read() is None


def test_what_was_begun_is_finished_by_other_code_too(
    opened: Opened, prepared: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the rows and the checkpoint there is no view that could run."""
    site = opened(prepared)
    monkeypatch.setattr(failpoints, "_traps", failpoints.parse("checkpoint.before_move=stop"))
    with pytest.raises(Interrupted):
        site.run(second)
    monkeypatch.setattr(failpoints, "_traps", {})
    with pytest.raises(StorageError, match="has not finished switching to an earlier rebuild"):
        site.rebuild(second, "peak")
    third = changed(tmp_path, [*MINIMUM, ("app = App", "# other text\napp = App")], "third.py")
    site.run(third, clean=False)
    assert site.peak(third) == expected(min, readings(0, 100))


def test_what_is_prepared_is_left_aside_by_other_code(opened: Opened, prepared: Path) -> None:
    site = opened(prepared)
    site.run(FIRST)
    assert site.peak(FIRST) == expected(max, readings(0, 100))
    assert EmbeddedNextView(site.directory, "peak").read() is not None


@pytest.mark.parametrize(("point", "counts"), [("rebuild.before_mark", False), ("rebuild.after_mark", True)])
def test_a_crash_of_the_preparation_leaves_all_of_it_or_nothing(
    opened: Opened, begun: Path, second: Path, monkeypatch: pytest.MonkeyPatch, point: str, counts: bool
) -> None:
    site = opened(begun)
    monkeypatch.setattr(failpoints, "_traps", failpoints.parse(f"{point}=stop"))
    with pytest.raises(Interrupted):
        site.rebuild(second, "peak")
    monkeypatch.setattr(failpoints, "_traps", {})
    assert (EmbeddedNextView(site.directory, "peak").read() is not None) == counts
    site.rebuild(second, "peak")  # which starts again
    site.run(second)
    assert site.peak(second) == expected(min, readings(0, 90))


def test_a_batch_that_was_torn_while_it_was_brought_up_to_date_is_run_again(
    opened: Opened, prepared: Path, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = opened(prepared)
    commit = ViewRun.commit

    def torn(run: ViewRun, output: Output) -> bool:
        commit(run, output)
        raise OSError("the disk is gone")

    monkeypatch.setattr(ViewRun, "commit", torn)
    with pytest.raises(AssertionError, match="the disk is gone"):
        site.run(second)
    monkeypatch.setattr(ViewRun, "commit", commit)
    site.run(second, clean=False)
    assert site.peak(second) == expected(min, readings(0, 100))


def test_an_acknowledgement_from_before_still_answers(opened: Opened, prepared: Path, second: Path) -> None:
    site = opened(prepared)
    site.run(second)
    past = History(site.directory.view_file("peak"))
    with site.log() as log:
        ends = log.ends("readings")
    _, version, _ = site.reader(second, "peak")
    for partition, end in ends.items():
        for offset in range(end):
            batch = past.find("readings", partition, offset)
            assert batch is not None
            assert batch.done.version <= version
        assert past.find("readings", partition, end) is None
    past.close()


def test_late_events_are_told_once_before_and_after_the_swap(opened: Opened, begun: Path, second: Path) -> None:
    """Spark numbers batches from 0 again: under the old numbers, late events would look like a repetition."""
    site = opened(begun)
    site.send([reading(600)])
    site.run(FIRST, view="minutes")
    site.send([reading(601, at=0)], came=601)
    site.run(FIRST, view="minutes")
    assert site.late() == [601]
    site.rebuild(second, "minutes")  # which reads it in one batch, in which nothing is late
    site.run(second, view="minutes")
    assert site.late() == [601]
    for number in (602, 603):
        site.send([reading(number, at=number - 602)], came=number)
        site.run(second, view="minutes")
    assert site.late() == [601, 602, 603]


def test_events_that_are_late_for_the_rebuilt_view_alone_are_told_once(
    opened: Opened, begun: Path, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = opened(begun)
    site.send(readings(600, 40))
    site.send([reading(700, at=0), reading(701, at=1)], came=640)  # in the same batch: not late
    site.run(FIRST, view="minutes")
    assert site.late() == []
    site.settings = type(site.settings)(partitions=2, disk_reserve_bytes=0, batch_events_max=20)
    site.rebuild(second, "minutes")
    site.settings = type(site.settings)(partitions=2, disk_reserve_bytes=0)
    monkeypatch.setattr(failpoints, "_traps", failpoints.parse("swap.after_late=stop"))
    with pytest.raises(Interrupted):
        site.run(second, view="minutes")
    monkeypatch.setattr(failpoints, "_traps", {})
    numbers = site.late()
    site.run(second, clean=False, view="minutes")
    assert site.late() == numbers
    missed = [row["n"] for row in site.reader(second, "minutes")[2]]
    assert sum(missed) + len(numbers) == 132
    assert numbers == [700, 701]


def trim(site: Site) -> None:
    with site.log() as log:
        log.trim("readings", Retention(timedelta(0), 1, {0: 6, 1: 24}))
        assert any(log.starts("readings").values())


def test_a_log_that_no_longer_reaches_back_is_rebuilt_only_if_told_so(
    opened: Opened, begun: Path, second: Path, tmp_path: Path
) -> None:
    site = opened(begun)
    trim(site)
    with site.log() as log:
        gone = sum(log.starts("readings").values())
    with pytest.raises(DeclarationError, match="events of peak; to rebuild it from the kept events") as refused:
        site.rebuild(second, "peak")
    line = f"readings: up to {gone:,} of its first events were deleted, in"
    assert line in refused.value.message
    assert "all before 2026-01-01 12:00:59 UTC" in refused.value.message
    said = site.rebuild(second, "peak", kept=True)
    assert any("rebuilding peak without the deleted events" in message and line in message for message in said)
    site.run(second)
    assert sum(n for _, n in site.peak(second).values()) == 90 - gone
    site.rebuild(second, "peak")  # the view began there, so nothing of it is missing
    rebuild = rebuilt(site.directory.view_file("peak"))
    assert rebuild is not None
    assert "readings/0" in rebuild.origin


def test_two_rebuilds_at_once_are_refused_and_a_start_beside_one_waits(
    opened: Opened, prepared: Path, second: Path
) -> None:
    site = opened(prepared)
    with rebuild_lock(site.directory):
        with pytest.raises(AlreadyRunning, match="another rebuild is running in"):
            site.rebuild(second, "peak")
        with pytest.raises(AssertionError, match="the rebuilt view peak will be adopted later"):  # restarted later
            site.run(second)
        assert EmbeddedNextView(site.directory, "peak").read() is not None
    site.run(second)
    assert EmbeddedNextView(site.directory, "peak").read() is None
    assert site.peak(second) == expected(min, readings(0, 100))


def test_retention_keeps_what_a_rebuild_has_to_read(
    opened: Opened, begun: Path, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, app = opened(begun), load(str(FIRST)).app
    seen: list[Mapping[int, int]] = []
    advance = ViewRun.advance

    def watched(run: ViewRun, *arguments: Any) -> int:
        seen.append(held_back(site.directory, "readings"))
        with site.log() as log:
            hold_back(site.directory, {"others": {0: 3}})
            assert floor(app, EmbeddedStorage(site.directory), log, "others") == {0: 3}  # which no view reads
        return advance(run, *arguments)

    monkeypatch.setattr(ViewRun, "advance", watched)
    site.rebuild(second, "peak")
    assert seen == [{0: 0, 1: 0}]
    assert held_back(site.directory, "readings") == {}
    hold_back(site.directory, {"readings": {0: 0}})  # as one that was killed leaves it
    assert held_back(site.directory, "readings") == {}


def test_rows_expire_by_the_time_of_the_log(opened: Opened, begun: Path, tmp_path: Path) -> None:
    """The time of the rebuild, at which all of them are new, does not matter."""
    site = opened(begun)
    for day in (1, 2):  # meter m4 only
        site.send([reading(number) for number in range(day * 86_400 + 4, day * 86_400 + 204, 5)])
    other = changed(
        tmp_path, [('GROUP BY meter", key="meter"', 'GROUP BY meter", key="meter", keep=timedelta(hours=1)')]
    )
    site.settings = type(site.settings)(partitions=2, disk_reserve_bytes=0, batch_events_max=30)
    site.rebuild(other, "peak")
    site.run(other)
    assert set(site.peak(other)) == {"m4"}


def test_a_view_with_another_key_is_taken_over(opened: Opened, begun: Path, tmp_path: Path) -> None:
    site = opened(begun)
    other = changed(
        tmp_path,
        [
            (
                'SELECT meter, max(watts) AS watts, count(*) AS n FROM readings GROUP BY meter", key="meter"',
                'SELECT meter, watts, count(*) AS n FROM readings GROUP BY meter, watts", key=["meter", "watts"]',
            ),
        ],
    )
    site.rebuild(other, "peak")
    site.run(other)
    assert sum(row["n"] for row in site.reader(other, "peak")[2]) == 90


def test_an_app_of_another_name_is_refused(opened: Opened, begun: Path, tmp_path: Path) -> None:
    site = opened(begun)
    other = changed(tmp_path, [('App("meters")', 'App("others")')])
    with pytest.raises(DeclarationError, match="belongs to the app 'meters', not 'others'"):
        site.rebuild(other, "peak")


def test_a_view_of_a_stream_that_is_not_there_is_refused(opened: Opened, begun: Path, tmp_path: Path) -> None:
    site = opened(begun)
    other = changed(tmp_path, [('app.stream("readings"', 'app.stream("fresh"'), ("FROM readings", "FROM fresh")])
    with pytest.raises(
        DeclarationError, match=r"there is no stream 'fresh' in .*, so there is nothing to rebuild it from"
    ):
        site.rebuild(other, "peak")


def test_the_stream_of_changes_leads_to_the_rebuilt_rows(opened: Opened, begun: Path, tmp_path: Path) -> None:
    """Rows that no longer exist are deleted in it, and versions increase."""
    query = "SELECT meter, count(*) AS n FROM `peak.changes` GROUP BY meter"
    minutes = 'app.sql(\n    "minutes"'
    edit = (minutes, f'app.sql("told", "{query}", key="meter")\n{minutes}')
    first = changed(tmp_path, [edit], "first.py")
    second = changed(
        tmp_path, [edit, ("FROM readings GROUP BY meter", "FROM readings WHERE meter > 'm1' GROUP BY meter")]
    )
    site = opened(begun)
    site.run(first)
    site.rebuild(second, "peak")
    site.send(readings(90, 10))
    site.run(second)
    assert site.peak(second) == {k: v for k, v in expected(max, readings(0, 100)).items() if k > "m1"}
    rows: dict[str, tuple[int, int]] = {}
    versions: list[int] = []
    with site.log() as log:
        for batch in log.read("peak.changes", 0, 0, log.ends("peak.changes")[0]):
            for row in batch.to_pylist():
                versions.append(row["_version"])
                if row["_change"] == "delete":
                    del rows[row["meter"]]
                else:
                    rows[row["meter"]] = row["watts"], row["n"]
    assert rows == site.peak(second)
    assert versions == sorted(versions)


def test_stored_events_are_read_as_the_new_version_of_their_class(opened: Opened, begun: Path, tmp_path: Path) -> None:
    other = changed(
        tmp_path,
        [
            ('time="at")', 'time="at", version=2, renamed={"watts": "power"})'),
            ("    watts: int", "    power: int"),
            ("max(watts)", "min(power)"),
            ("sum(watts)", "sum(power)"),
        ],
    )
    site = opened(begun)
    site.rebuild(other, "peak")
    site.run(other)
    assert site.peak(other) == expected(min, readings(0, 90))
