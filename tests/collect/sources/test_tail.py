"""Following a file: its lines, its rotations, and a reader that is killed."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
import random
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.collect.sources.files.follow import Follower
from penstock.collect.sources.files.lines import LineSplitter
from penstock.collect.sources.files.logfile import HEAD_BYTES, FilePosition
from penstock.collect.sources.files.rotation import Family, family
from penstock.collect.sources.files.tail import TailSource
from penstock.core.contracts import SourceStatus
from penstock.core.errors import DeclarationError, SourceFailed
from penstock.core.settings import Settings
from tests.clocks import until
from tests.collect.sources import file_workers
from tests.collect.sources.file_workers import Crash, CrashingWriter, Rotator, Worker, log_lines, stored
from tests.collect.support import Rig, at_work, body, fix, in_loop, opened
from tests.memory_log import MemoryLog

LINE_MAX = 100


class Reader:
    """A follower whose process can end: the lines read are kept, and another follower continues from there."""

    def __init__(self, path: Path, *, from_start: bool = True, wait_s: float = 0.0) -> None:
        self.path, self.from_start, self.wait_s = path, from_start, wait_s
        self.lines: list[bytes] = []
        self.position: FilePosition | None = None
        self.begin()

    def begin(self) -> None:
        self.follower = Follower(self.path, self.position, self.from_start, LINE_MAX, self.wait_s)

    def restart(self) -> None:
        self.follower.close()
        self.begin()

    def read(self) -> list[bytes]:
        """Return the new lines, until there is nothing to do but wait."""
        before = len(self.lines)
        for _ in range(1000):
            step = self.follower.step()
            self.position = step.note or self.position
            for line, position in step.lines:
                self.lines.append(line)
                self.position = position
            if not step.more:
                return self.lines[before:]
        raise AssertionError("it goes on and on")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


@pytest.fixture
def reader(path: Path) -> Any:
    reader = Reader(path)
    yield reader
    reader.follower.close()


def append(path: Path, *lines: bytes) -> None:
    with open(path, "ab") as file:
        file.write(b"".join(line + b"\n" for line in lines))


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def rotate(path: Path, count: int = 1) -> None:
    for number in range(count, 0, -1):
        old = beside(path, f".{number}")
        if old.exists():
            old.rename(beside(path, f".{number + 1}"))
    path.rename(beside(path, ".1"))


def test_an_incomplete_line_waits_for_its_end(path: Path, reader: Reader) -> None:
    path.write_bytes(b"one\r\ntw")
    assert reader.read() == [b"one"]
    with open(path, "ab") as file:
        file.write(b"o\n\n  \nthree")
    assert reader.read() == [b"two"]
    append(path, b"!")
    assert reader.read() == [b"three!"]


def test_a_file_that_is_not_there_yet_is_waited_for(path: Path, reader: Reader) -> None:
    assert reader.read() == []
    append(path, b"one")
    assert reader.read() == [b"one"]


def test_a_file_that_came_and_was_rotated_while_nobody_looked_is_read(path: Path, reader: Reader) -> None:
    append(beside(path, ".1"), b"long ago")
    assert reader.read() == []
    reader.restart()
    append(path, b"one")
    rotate(path)
    append(path, b"two")
    assert reader.read() == [b"one", b"two"]


def test_without_the_start_only_lines_that_are_not_complete_yet_are_read(path: Path) -> None:
    path.write_bytes(b"old\nbeg")
    reader = Reader(path, from_start=False)
    assert reader.read() == []
    reader.restart()
    append(path, b"un", b"new")
    assert reader.read() == [b"begun", b"new"]
    reader.follower.close()


def test_without_the_start_a_file_that_comes_later_is_read_whole(path: Path) -> None:
    reader = Reader(path, from_start=False)
    assert reader.read() == []
    reader.restart()
    append(path, b"one")
    assert reader.read() == [b"one"]
    reader.follower.close()


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("rotations", [1, 3])
def test_rotation_by_renaming_loses_and_repeats_nothing(
    path: Path, reader: Reader, rotations: int, stopped: bool
) -> None:
    append(path, b"one", b"two")
    assert reader.read() == [b"one", b"two"]
    append(path, b"three")
    for number in range(rotations):
        rotate(path, rotations)
        append(path, b"after %d" % number)
    if stopped:
        reader.restart()
    assert reader.read() == [b"three", *(b"after %d" % number for number in range(rotations))]


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("rotations", [1, 3])
def test_copytruncate_loses_and_repeats_nothing(path: Path, reader: Reader, rotations: int, stopped: bool) -> None:
    append(path, b"one", b"two")
    assert reader.read() == [b"one", b"two"]
    append(path, b"three")
    for number in range(rotations):
        for older in range(rotations, 0, -1):
            if beside(path, f".{older}").exists():
                beside(path, f".{older}").rename(beside(path, f".{older + 1}"))
        shutil.copyfile(path, beside(path, ".1"))
        os.truncate(path, 0)
        append(path, b"after %d, and longer than what was there before" % number)
    if stopped:
        reader.restart()
    expected = [b"after %d, and longer than what was there before" % number for number in range(rotations)]
    assert reader.read() == [b"three", *expected]


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("start", [b"", b"on"])
def test_a_file_of_which_no_line_was_read_may_be_copied_and_truncated_too(
    path: Path, reader: Reader, start: bytes, stopped: bool
) -> None:
    append(beside(path, ".1"), b"long ago")
    os.utime(beside(path, ".1"), (1, 1))
    path.write_bytes(start)
    os.utime(path, (2, 2))
    assert reader.read() == []
    path.write_bytes(b"one\ntwo\n")
    shutil.copyfile(path, beside(path, ".0"))
    os.truncate(path, 0)
    append(path, b"three")
    if stopped:
        reader.restart()
    assert [*reader.read(), *reader.read()] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("stopped", [False, True])
def test_packed_files_are_read_where_they_hold_what_was_being_read(path: Path, reader: Reader, stopped: bool) -> None:
    append(path, *(b"line %d" % number for number in range(500)))
    assert len(reader.read()) == 500
    append(path, b"the last")
    rotate(path)
    append(path, b"one")
    rotate(path)
    for number in (2, 1):
        file_workers._pack(beside(path, f".{number}"))
    append(path, b"two")
    if stopped:
        reader.restart()
    assert reader.read() == [b"the last", b"one", b"two"]


def test_a_packed_file_that_is_cut_short_is_read_up_to_there(
    path: Path, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    append(path, b"one")
    assert reader.read() == [b"one"]
    rotate(path)
    append(path, *(b"%d" % random.getrandbits(100) for _ in range(20_000)))
    rotate(path)
    packed = gzip.compress(beside(path, ".1").read_bytes())
    beside(path, ".1.gz").write_bytes(packed[: len(packed) // 2])
    beside(path, ".1").unlink()
    append(path, b"after")
    lines = reader.read()
    assert (len(lines) > 1000, lines[-1]) == (True, b"after")
    assert "app.log.1.gz is damaged" in caplog.text


def test_a_truncated_file_begins_again_and_the_log_says_so(
    path: Path, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    append(path, b"one", b"two")
    reader.read()
    path.write_bytes(b"new\n")
    assert reader.read() == [b"new"]
    assert "app.log was truncated or rewritten" in caplog.text


def test_a_truncated_file_that_has_grown_past_the_position_is_noticed(path: Path, reader: Reader) -> None:
    append(path, b"one", b"two")
    reader.read()
    path.write_bytes(b"other lines, and more of them\n")
    assert reader.read() == [b"other lines, and more of them"]


def test_history_that_was_there_before_is_not_read_when_a_file_is_truncated(path: Path, reader: Reader) -> None:
    append(beside(path, ".1"), b"header", b"long ago")
    os.utime(beside(path, ".1"), (1, 1))
    append(path, b"header")
    assert reader.read() == [b"header"]
    os.truncate(path, 0)
    append(path, b"x")
    assert reader.read() == [b"x"]


def test_an_inode_that_is_used_again_is_not_taken_for_the_old_file(path: Path, reader: Reader) -> None:
    append(path, b"one", b"two")
    reader.read()
    assert reader.position is not None
    path.unlink()
    append(path, b"uno", b"dos", b"tres")
    reader.position = FilePosition(
        path.stat().st_ino, *(getattr(reader.position, name) for name in ("offset", "print", "mtime", "live"))
    )
    reader.restart()
    assert reader.read() == [b"uno", b"dos", b"tres"]


def test_files_that_begin_alike_are_told_apart(path: Path, reader: Reader) -> None:
    header = b"#" * 90
    append(path, *[header] * 20)
    assert len(reader.read()) == 20
    for number in range(3):
        rotate(path, 3)
        append(path, *[header] * 20, b"after %d" % number)
        reader.restart()
        assert reader.read()[-1] == b"after %d" % number
        assert len(reader.lines) == 20 + 21 * (number + 1)


def test_when_the_old_file_was_removed_all_newer_ones_are_read(
    path: Path, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    append(beside(path, ".1"), b"long ago")
    os.utime(beside(path, ".1"), (1, 1))
    append(path, b"one")
    reader.read()
    for number in range(3):
        rotate(path, 5)
        append(path, b"after %d" % number)
        os.utime(path, (time.time() + number, time.time() + number))  # the clock may be too coarse to tell them apart
    beside(path, ".3").unlink()
    reader.restart()
    assert reader.read() == [b"after 0", b"after 1", b"after 2"]
    assert "no longer exists; continuing at the start of app.log.2" in caplog.text


def test_a_file_that_was_copied_and_not_yet_truncated_is_read_once(path: Path, reader: Reader) -> None:
    append(path, b"one")
    reader.read()
    shutil.copyfile(path, beside(path, ".2"))
    os.truncate(path, 0)
    append(path, *(b"line %d of many" % number for number in range(100)))
    shutil.copyfile(path, beside(path, ".1"))
    assert len(reader.read()) == 100
    append(path, b"before")
    shutil.copyfile(path, beside(path, ".1"))
    os.truncate(path, 0)
    append(path, b"after")
    assert reader.read() == [b"before", b"after"]


@pytest.mark.parametrize("same_moment", [True, False])
def test_a_file_that_is_renamed_while_it_is_looked_for_is_not_passed_over(
    path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch, same_moment: bool
) -> None:
    """A rotation renames the copy that holds our position between the listing and the opening. Then the next newer file
    is not the one to continue with, though the copy was written to in the moment in which we last read."""
    copies = [path.with_name(f"app.log.{number}") for number in (1, 2, 3)]
    path.write_bytes(b"1\n2\n")
    assert reader.read() == [b"1", b"2"]
    assert reader.position is not None
    copies[1].write_bytes(b"1\n2\n3\n4\n")
    copies[0].write_bytes(b"5\n6\n")
    path.write_bytes(b"7\n")
    for copy, later_ns in ((copies[1], 0 if same_moment else 1_000), (copies[0], 2_000_000)):
        os.utime(copy, ns=(0, reader.position.mtime + later_ns))
    reader.restart()

    def listed_and_then_renamed(path: Path) -> Family | None:
        listing = family(path)
        monkeypatch.undo()
        copies[1].rename(copies[2])  # the highest number first, as all tools do
        return listing

    monkeypatch.setattr("penstock.collect.sources.files.follow.family", listed_and_then_renamed)
    assert reader.read() == []
    copies[0].rename(copies[1])
    assert reader.read() == [b"3", b"4", b"5", b"6", b"7"]


def test_who_still_writes_to_a_rotated_file_is_waited_for(path: Path) -> None:
    reader = Reader(path, wait_s=60.0)
    append(path, b"one")
    reader.read()
    rotate(path)
    append(path, b"three")
    assert reader.read() == []
    append(beside(path, ".1"), b"two")
    assert reader.read() == [b"two"]
    reader.follower.rotated_wait_s = 0.0
    assert reader.read() == [b"three"]
    reader.follower.close()


def test_the_last_line_of_a_rotated_file_needs_no_end(path: Path, reader: Reader) -> None:
    path.write_bytes(b"one\ntwo")
    assert reader.read() == [b"one"]
    rotate(path)
    append(path, b"three")
    assert reader.read() == [b"two", b"three"]


def test_a_restored_copy_of_the_file_is_gone_on_with(path: Path, reader: Reader) -> None:
    append(path, *(b"line %d" % number for number in range(100)))
    reader.read()
    shutil.copyfile(path, beside(path, ".new"))
    beside(path, ".new").replace(path)
    append(path, b"after")
    reader.restart()
    assert reader.read() == [b"after"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["x.log.10", "x.log.9.gz", "x.log.1", "x.log.2.gz", "x.log"], ["10", "9.gz", "2.gz", "1"]),
        (["x.log-20260102", "x.log-20251231.gz", "x.log-20260101"], ["20251231.gz", "20260101", "20260102"]),
        (["x-2026-01-02.log", "x-2026-01-01-10.log.gz", "x-2026-01-01-9.log"], ["1-9.log", "1-10.log.gz", "2.log"]),
        (["x.log.1", "x.log.1.gz", "x.log.err", "x.log.tmp", "x-errors.log", "y.log.1", "x.log.1.bz2"], ["1"]),
    ],
)
def test_rotated_files_are_known_by_name_and_come_oldest_first(
    tmp_path: Path, names: list[str], expected: list[str]
) -> None:
    for name in names:
        (tmp_path / name).touch()
    listing = family(tmp_path / "x.log")
    assert listing is not None
    assert len(listing.older) == len(expected)
    assert all(seen.path.name.endswith(ending) for seen, ending in zip(listing.older, expected, strict=True))


def test_lines_are_the_same_however_the_bytes_are_cut() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    whole = b"".join(draw.choice((b"\n", b"\r", b"\r\n", b"a", b"b" * 30, b"c" * 200)) for _ in range(300))
    expected = [line.removesuffix(b"\r") for line in whole.split(b"\n")[:-1]]
    for _ in range(50):
        splitter, lines, at = LineSplitter(0, LINE_MAX), [], 0
        while at < len(whole):
            size = draw.randrange(1, 80)
            lines += splitter.feed(whole[at : at + size])
            at += size
        assert [line.data for line in lines] == [line[: LINE_MAX + 1] for line in expected]
        assert all(whole[line.end - 1 : line.end] == b"\n" for line in lines)


def test_a_line_of_the_largest_size_is_whole_with_either_end() -> None:
    lines = LineSplitter(0, 3).feed(b"abc\r\nabc\nabcd\nab\r\r\nabc\r\r\n")
    assert [line.data for line in lines] == [b"abc", b"abc", b"abcd", b"ab\r", b"abc\r"]


@asynccontextmanager
async def following(rig: Rig, path: Path, stream: str = "raw", **options: float) -> AsyncIterator[SourceStatus]:
    source = TailSource(path, poll_s=0.005, rotated_wait_s=0.0, **options)  # type: ignore[arg-type]
    async with at_work(rig, source, stream) as status:
        yield status


@in_loop
async def test_lines_become_events_and_bad_ones_dead_letters(path: Path) -> None:
    log = MemoryLog()
    async with opened(log) as rig, following(rig, path, "fixes") as status:
        await until(lambda: status.state == "waiting")
        assert status.error == f"{path} does not exist yet"
        append(path, body(fix(1)), b"not JSON", body(fix(2)))
        await until(lambda: len(log.events("fixes")) == 2 and len(log.events("fixes.rejected")) == 1)
        await until(lambda: (status.state, status.error, status.received) == ("connected", None, 3))


@in_loop
async def test_a_line_over_the_bound_is_a_dead_letter_and_not_held_whole(path: Path) -> None:
    log = MemoryLog()
    append(path, b"before", b"x" * 1_000_000, b"after")
    async with opened(log, Settings(event_bytes_max=LINE_MAX)) as rig, following(rig, path):
        await until(lambda: len(log.events("raw")) == 2)
        assert [row["data"] for row in log.events("raw")] == [b"before", b"after"]
        assert [row["raw"] for row in log.events("raw.rejected")] == [b"x" * (LINE_MAX + 1)]


@in_loop
async def test_a_full_queue_stops_the_reading(path: Path) -> None:
    log = MemoryLog()
    append(path, *(b"%d" % number for number in range(1000)))
    limits = Settings(request_events_max=10, pending_events_max=10)
    async with opened(log, limits) as rig, following(rig, path) as status:
        log.gate.clear()
        await until(lambda: status.received >= 10)
        for _ in range(100):
            await asyncio.sleep(0)
        assert status.received <= 21
        log.gate.set()
        await until(lambda: len(log.rows["raw"][0]) == 1000)


@in_loop
async def test_a_file_that_cannot_be_read_is_tried_again_and_the_status_says_why(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    log = MemoryLog()
    async with opened(log) as rig:
        path = tmp_path / "folder" / "x"
        (tmp_path / "folder").rmdir()
        (tmp_path / "folder").write_text("no folder")
        async with following(rig, path) as status:
            await until(lambda: status.error is not None and status.error.startswith("could not read: "))
            (tmp_path / "folder").unlink()
            (tmp_path / "folder").mkdir()
            append(path, b"one")
            await until(lambda: len(log.rows["raw"][0]) == 1)


@in_loop
async def test_a_mark_of_another_kind_of_source_is_refused(path: Path) -> None:
    async with opened(MemoryLog()) as rig:
        source_writer = rig.ingress.writer_for_source("feed", "raw")
        await (await source_writer.note('{"file":"a.csv"}'))
        with pytest.raises(SourceFailed, match="rename this source"):
            await TailSource(path).run(source_writer, SourceStatus())


def test_what_makes_no_sense_is_refused_when_it_is_declared() -> None:
    for options in ({"path": ""}, {"path": "x", "poll_s": 0}, {"path": "x", "rotated_wait_s": -1}):
        with pytest.raises(DeclarationError):
            TailSource(**options)
    assert (TailSource("/var/log/x").kind, TailSource(Path("/var/log/x")).address) == ("tail", "/var/log/x")


def test_a_mark_is_small_whatever_the_file_holds(path: Path, reader: Reader) -> None:
    append(path, *[b'\xff\x00"\\' * 20] * 100)
    reader.read()
    assert reader.position is not None
    assert len(reader.position.text()) < 200
    assert path.stat().st_size > HEAD_BYTES


@in_loop
@pytest.mark.parametrize("mode", ["rename", "date", "copytruncate", "compress"])
async def test_lines_come_once_and_in_order_wherever_the_process_ends(path: Path, mode: str) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    rotator, upcoming = Rotator(path, mode, draw), log_lines()
    source_writer, crashes, written = CrashingWriter(draw), 0, 0
    while written < 2000 or len(source_writer.events) < written:
        crashes += 1
        assert crashes < 1000
        source_writer.restart(events_max=100)
        for _ in range(draw.randrange(5) if written < 2000 else 0):
            lines = list(itertools.islice(upcoming, draw.randrange(60)))
            rotator.rotate(lines) if draw.random() < 0.6 and source_writer.events else os.write(
                rotator.file, b"".join(lines)
            )
            written += len(lines)
        source = TailSource(path, poll_s=0.001, rotated_wait_s=0.0)
        with suppress(Crash, TimeoutError):
            await asyncio.wait_for(source.run(source_writer, SourceStatus()), 0.2)
    os.close(rotator.file)
    assert [line + b"\n" for line in source_writer.events] == list(itertools.islice(log_lines(), written))
    assert crashes > 20


@in_loop
async def _begin(directory: Path, spec: dict[str, Any]) -> None:
    """Record that there is no file yet: a source that never ran does not read files rotated before."""
    async with file_workers.reading(directory, spec) as (_, status):
        await until(lambda: status.state == "waiting")


FINISH_S = 60.0


@in_loop
async def _finish(directory: Path, spec: dict[str, Any], count: int) -> None:
    """Read the rest in this process; then check a few more times that nothing else arrives."""
    async with file_workers.reading(directory, spec) as (log, status):
        try:
            async with asyncio.timeout(FINISH_S):
                while log.events_appended("raw") < count:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            there = [row["data"] for row in stored(log, "raw")]
            lines = (line.rstrip(b"\n") for line in itertools.islice(log_lines(), count))
            wrong = next(
                (index for index, pair in enumerate(zip(there, lines, strict=False)) if pair[0] != pair[1]), None
            )
            raise AssertionError(f"{len(there)} lines of {count}, and from {wrong} on others: {status}") from None
        received = status.received
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await until(lambda: status.received > received)
        stored_lines = [row["data"] for row in stored(log, "raw")]
    assert stored_lines == [line.rstrip(b"\n") for line in itertools.islice(log_lines(), count)]


def _killed_over_and_over(tmp_path: Path, mode: str, rounds: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    path, directory = tmp_path / "app.log", tmp_path / "log"
    directory.mkdir()
    spec = {"kind": "tail", "path": str(path), "poll_s": 0.02, "rotated_wait_s": 0.05}
    _begin(directory, spec)
    reader, writer = Worker("read", directory, json.dumps(spec)), Worker("log", path, mode, seed)
    for _ in range(rounds):
        reader.run_and_kill(draw.random() ** 2)
    reader.end()
    _finish(directory, spec, int(writer.end()))


MODES = pytest.mark.parametrize("mode", ["rename", "date", "copytruncate", "compress"])


@MODES
def test_every_line_is_in_the_log_once_though_the_reader_is_killed(tmp_path: Path, mode: str) -> None:
    _killed_over_and_over(tmp_path, mode, rounds=3)


@MODES
@pytest.mark.soak
def test_every_line_is_in_the_log_once_though_the_reader_is_killed_for_long(tmp_path: Path, mode: str) -> None:
    _killed_over_and_over(tmp_path, mode, rounds=150)
