"""Files that are dropped into a folder: their formats, their order, and a reader that is killed."""

from __future__ import annotations

import asyncio
import enum
import gzip
import io
import json
import os
import random
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from penstock.collect.sources.files import arrivals as arrivals_module
from penstock.collect.sources.files.arrivals import Arrival, Arrivals, Mark
from penstock.collect.sources.files.folder import FolderSource
from penstock.collect.sources.files.formats import BadFile, format_of, rows
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus
from penstock.core.errors import DeclarationError, SourceFailed
from penstock.core.schema import EpochMillis, Event, Record, wire_class
from penstock.core.settings import Settings
from penstock.queue.writer import MARK_CHARS_MAX
from tests.alone import alone
from tests.clocks import until
from tests.collect.sources import file_workers
from tests.collect.sources.file_workers import KINDS, Crash, CrashingWriter, Row, Worker, as_bytes, file_rows, stored
from tests.collect.support import Rig, at_work, in_loop, opened
from tests.memory_log import MemoryLog

BYTES_MAX = 1000


def read(data: bytes, name: str, event: type[Event] | None = None, skip: int = 0) -> list[bytes]:
    return list(rows(io.BytesIO(data), name, format_of(name) or "", event, BYTES_MAX, skip))


def partly(data: bytes, name: str) -> tuple[list[Any], str]:
    """Return the readable events of a bad file, and the reason why the rest is unreadable."""
    values = []
    try:
        for raw in rows(io.BytesIO(data), name, format_of(name) or "", None, BYTES_MAX, 0):
            values.append(json.loads(raw))
    except BadFile as error:
        return values, str(error)
    raise AssertionError("it is not bad")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 7, 173])
def test_every_format_gives_the_same_rows_from_any_row_on(kind: str, count: int) -> None:
    expected = [file_workers.row("f", number) for number in range(count)]
    data = as_bytes(kind, expected)
    for skip in {0, count // 3, 60 % (count + 1), count}:
        values = [json.loads(raw) for raw in read(data, f"x.{kind}", Row, skip)]
        assert [{"note": None} | value for value in values] == expected[skip:]


def test_json_is_an_array_or_lines_or_one_value() -> None:
    assert read(b'\xef\xbb\xbf [ {"a": 1} , {"a": [2, "]"]} ] \n', "x.json") == [b'{"a": 1}', b'{"a": [2, "]"]}']
    assert read(b'\n{"a": 1}\n\n{"a": 2}', "x.json") == [b'{"a": 1}', b'{"a": 2}']
    assert read(b'{"a":\n 1}\n', "x.json") == [b'{"a":\n 1}']
    assert read(b" [ ] ", "x.json") == read(b" \n", "x.json") == []


def test_an_array_of_any_size_is_read_with_little_memory() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    texts = ("a", "ü", "€", "𝄞", '"', "\\", "\n", "]", "}", ",", "x" * 40)
    items = [{"n": draw.random(), "t": "".join(draw.choices(texts, k=draw.randrange(20)))} for _ in range(3000)]
    for compact in (False, True):
        separators = (",", ":") if compact else None
        data = json.dumps(items, ensure_ascii=compact, separators=separators).encode()
        assert len(data) > 3 * 64 * 1024
        assert [json.loads(raw) for raw in read(data, "x.json")] == items


def test_of_a_file_that_is_half_rubbish_the_good_half_is_read() -> None:
    assert partly(b'[{"a":1},{"a":2},{"a":%s' % (b"rubbish " * 9), "x.json") == (
        [{"a": 1}, {"a": 2}],
        "not JSON: Expecting value",
    )
    assert partly(b'[{"a":1},{"a":', "x.json") == ([{"a": 1}], "the array ends too early")
    assert partly(b'[{"a":1} {"a":2}]', "x.json") == ([{"a": 1}], "a comma is missing in the array")
    assert partly(b'[{"a":1}] x', "x.json") == ([{"a": 1}], "unexpected data after the array")
    assert partly(b'[1,"%s"]' % (b"x" * 200_000), "x.json") == ([1], "an item is larger than 1000 bytes")
    assert partly(b"[" * 100_000, "x.json")[0] == []
    zipped = gzip.compress(b"".join(b'{"a":%d}\n' % random.getrandbits(60) for _ in range(50_000)))
    values, why = partly(zipped[: len(zipped) // 2], "x.jsonl.gz")
    assert len(values) > 1000
    assert "end-of-stream" in why
    assert partly(b"no gzip", "x.csv.gz")[0] == []
    assert partly(b"rubbish", "x.txt")[1].startswith("its name has no known suffix")


def test_of_a_damaged_parquet_file_the_row_groups_before_are_read() -> None:
    data = bytearray(as_bytes("parquet", [file_workers.row("f", number) for number in range(200)]))
    data[len(data) // 3 : len(data) // 2] = os.urandom(len(data) // 2 - len(data) // 3)
    values, why = partly(bytes(data), "x.parquet")
    assert values == [file_workers.row("f", number) for number in range(len(values))]
    assert why
    assert partly(b"PAR1 rubbish PAR1", "x.parquet")[0] == []


class Colour(enum.Enum):
    RED = "red"


class Place(Record):
    lat: float


class Every(Event):
    text: str
    number: int
    part: float = 0.5
    yes: bool = False
    price: Decimal | None = None
    at: datetime | None = None
    day: date | None = None
    sent: EpochMillis | None = None
    colour: Colour | None = None
    size: Literal[1, 2] | None = None
    place: Place | None = None
    tags: list[str] | None = None


def csv_event(header: str, row: str) -> Any:
    (raw,) = read(f"{header}\n{row}\n".encode(), "x.csv", Every)
    return msgspec.json.decode(raw, type=wire_class(Every))


def test_the_cells_of_a_csv_become_values_of_their_fields() -> None:
    header = "text, number ,part,yes,price,at,day,sent,colour,size,place,tags,other"
    row = '007, +12 ,.5,YES,1.10,2026-01-01T10:00:00Z,2026-01-02,1767225600000,red,2,"{""lat"": 1}","[""a"", ""b""]",x'
    event = csv_event(header, row)
    assert (event.text, event.number, event.part, event.yes, event.price) == ("007", 12, 0.5, True, Decimal("1.10"))
    assert (event.at, event.day, event.sent) == (datetime(2026, 1, 1, 10, tzinfo=UTC), date(2026, 1, 2), 1767225600000)
    assert (event.colour, event.size, event.place.lat, event.tags) == (Colour.RED, 2, 1.0, ["a", "b"])


def test_an_empty_cell_is_null_or_the_default_or_empty_text() -> None:
    event = csv_event("text,number,part,yes,price,at", ",1,, ,,")
    assert (event.text, event.part, event.yes, event.price, event.at) == ("", 0.5, False, None, None)
    with pytest.raises(msgspec.ValidationError, match="missing required field `number`"):
        csv_event("text,number", "a,")


@pytest.mark.parametrize(("column", "cell"), [("number", "1.5"), ("part", "nan"), ("part", "1e999"), ("yes", "maybe")])
def test_a_cell_that_is_no_value_of_its_field_stays_text_and_is_refused(column: str, cell: str) -> None:
    base = {"text": "a", "number": "1"} | {column: cell}
    with pytest.raises(msgspec.ValidationError, match=f"got `str` - at `\\$.{column}`"):
        csv_event(",".join(base), ",".join(base.values()))


def test_without_a_class_the_cells_of_a_csv_are_text() -> None:
    assert read(b"\xef\xbb\xbfa,b\r\n1,\r\n\r\n2\r\n", "x.csv") == [b'{"a":"1","b":""}', b'{"a":"2"}']


def test_a_row_of_a_csv_that_is_none_is_given_as_it_stands_and_the_next_ones_are_read() -> None:
    data = b'a,b\n1,2\n1,2,3\n"x"y,2\n\xff,2\n' + b"x" * 5000 + b',3\n3,4\n"never closed,\n'
    lines = read(data, "x.csv")
    assert lines[:4] == [b'{"a":"1","b":"2"}', b"1,2,3", b'"x"y,2', b"\xff,2"]
    assert lines[4:] == [b"x" * (BYTES_MAX + 1), b'{"a":"3","b":"4"}', b'"never closed,']
    assert partly(b"a,a\n1,2\n", "x.csv") == ([], "the first row must contain a different name for each column")


@alone
def test_a_large_parquet_file_is_not_in_memory_as_a_whole(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, count = tmp_path / "x.parquet", 100_000
    column = pa.array([os.urandom(50).hex() for _ in range(count)])
    pq.write_table(pa.table({"a": column}), path, row_group_size=count)
    del column
    pa.default_memory_pool().release_unused()
    before, most, rows_read = pa.total_allocated_bytes(), 0, 0
    tracemalloc.start()
    with open(path, "rb") as file:
        for _ in rows(file, path.name, "parquet", None, BYTES_MAX, 0):
            rows_read += 1
            if rows_read % 5000 == 0:
                most = max(most, pa.total_allocated_bytes() - before)
    python = tracemalloc.get_traced_memory()[1]
    assert rows_read == count, rows_read
    assert most + python < path.stat().st_size / 2, (most, python)


class Shelf:
    """A folder, and its reader; the events read are kept, and another reader can continue from there."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.options, self.mark, self.names = folder, options, "{}", []  # type: ignore[var-annotated]
        self.begin()

    def begin(self) -> None:
        done = self.options.get("done", "keep")
        self.arrivals = Arrivals(
            self.folder,
            FolderSource(self.folder)._accepts,
            keep=done == "keep",
            delete=done == "delete",
            settle_s=self.options.get("settle_s", 0.0),
            poll_s=0.0,
            noted=msgspec.json.decode(self.mark, type=Mark),
        )

    def drop(self, *names: str) -> None:
        for name in names:
            (self.folder / name).write_text(name)

    def take(self) -> Arrival | None:
        """Read one file."""
        arrival = self.arrivals.next()
        if arrival is not None:
            self.names.append(arrival.name)
            self.mark = self.arrivals.finished(arrival, failed=False)
            assert len(self.mark) <= MARK_CHARS_MAX
            if not self.arrivals.keep:
                self.arrivals.put_away()
        return arrival

    def read(self) -> list[str]:
        before = len(self.names)
        while self.take():
            pass
        return self.names[before:]


def test_files_come_once_in_the_order_of_their_names_and_temporary_ones_are_left_alone(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.drop("b.csv", "a.csv", ".c.csv", "_d.csv", "e.csv.tmp", "f.part", "g.csv~", "h\n.csv")
    (tmp_path / "folder").mkdir()
    assert shelf.read() == ["a.csv", "b.csv"]
    shelf.drop("c.csv", "0.csv")
    assert shelf.read() == ["0.csv", "c.csv"]
    shelf.begin()
    assert shelf.read() == []


def test_a_file_that_is_being_written_is_waited_for_and_those_after_it_too(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, settle_s=60.0)
    shelf.drop("a.csv", "b.csv")
    os.utime(tmp_path / "b.csv", (1, 1))
    assert shelf.read() == []
    assert shelf.arrivals.waiting_for == "a.csv"
    os.utime(tmp_path / "a.csv", (1, 1))
    assert shelf.read() == ["a.csv", "b.csv"]


def test_a_file_of_the_future_is_complete_once_it_was_watched_long_enough(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, settle_s=0.05)
    shelf.drop("a.csv")
    os.utime(tmp_path / "a.csv", (time.time() + 1000, time.time() + 1000))
    assert shelf.take() is None
    deadline = time.monotonic() + 10
    while shelf.take() is None:
        assert time.monotonic() < deadline
    assert shelf.names == ["a.csv"]


def test_the_mark_does_not_grow_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    monkeypatch.setattr(arrivals_module, "DONE_MAX", 20)
    shelf = Shelf(tmp_path)
    names = [f"{number:04}.csv" for number in range(300)]
    order = sorted(names, key=lambda name: int(name[:4]) + draw.randrange(8))
    for at in range(0, len(order), 7):
        shelf.drop(*order[at : at + 7])
        if draw.random() < 0.5:
            shelf.begin()
        shelf.read()
        assert len(shelf.mark) < 20 * 8 + 100
    assert sorted(shelf.names) == names


def test_a_file_that_comes_far_too_late_is_reported_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(arrivals_module, "DONE_MAX", 5)
    shelf = Shelf(tmp_path)
    shelf.drop(*(f"{number}.csv" for number in range(10, 30)))
    assert len(shelf.read()) == 20
    shelf.begin()
    assert (shelf.read(), shelf.arrivals.late) == ([], [])
    deadline = time.monotonic() + 10
    while not shelf.arrivals.late:  # until its modification time differs from that of the last file before
        shelf.drop("11.ndjson")
        shelf.begin()
        assert shelf.read() == []
        assert time.monotonic() < deadline
    assert shelf.arrivals.late == ["11.ndjson"]
    assert "11.ndjson and 0 more files are skipped, because they arrived after 5 files with later names" in caplog.text


def test_the_mark_has_room_in_the_worst_case(tmp_path: Path) -> None:
    """There is always an earlier name that waits, so that no name can be forgotten, and names have the maximum
    length."""
    arrivals = Shelf(tmp_path).arrivals
    longest = "x" * 250
    for number in range(arrivals_module.DONE_AT_MOST + 100):
        arrivals._pending = [" "]
        text = arrivals.finished(Arrival(f"{number:05}{longest}", 2**63, 2**63, 2**63, 2**63), failed=False)
        assert len(text) + len(longest) + 200 < MARK_CHARS_MAX
    arrivals._begun(Arrival(longest, 2**63, 2**63, 2**63, 2**63))
    assert arrivals_module.DONE_AT_MOST * 8 < len(arrivals.mark(2**63)) < MARK_CHARS_MAX


@pytest.mark.parametrize("done", ["move", "delete"])
def test_done_files_leave_the_folder_and_a_name_can_come_again(tmp_path: Path, done: str) -> None:
    shelf = Shelf(tmp_path, done=done)
    for _ in range(3):
        shelf.drop("a.csv", "b.csv")
        assert shelf.read() == ["a.csv", "b.csv"]
        shelf.begin()
        assert shelf.read() == []
    left = [] if done == "delete" else ["a.csv", "a.csv.1", "a.csv.2", "b.csv", "b.csv.1", "b.csv.2"]
    assert sorted(path.name for path in tmp_path.glob("**/*") if path.is_file()) == left


@pytest.mark.parametrize("done", ["move", "delete"])
def test_a_file_that_was_done_and_not_yet_put_away_is_not_read_again(tmp_path: Path, done: str) -> None:
    shelf = Shelf(tmp_path, done=done)
    shelf.drop("a.csv", "b.csv")
    arrival = shelf.arrivals.next()
    assert arrival is not None
    shelf.mark = shelf.arrivals.finished(arrival, failed=False)
    shelf.begin()
    assert shelf.read() == ["b.csv"]
    assert not (tmp_path / "a.csv").exists()
    shelf.drop("a.csv")  # and if a new file of that name comes in between, that one is
    assert shelf.read() == ["a.csv"]


def test_a_file_in_hand_is_gone_on_with_and_the_names_that_are_done_stay_noted(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.drop("a.csv", "b.csv", "c.csv")
    shelf.take()
    arrival = shelf.arrivals.next()
    assert arrival is not None
    shelf.mark = shelf.arrivals.mark(17)
    shelf.drop("0.csv")
    shelf.begin()
    resumed = shelf.arrivals.next()
    assert resumed == arrival._replace(row=17)
    shelf.mark = shelf.arrivals.finished(resumed, failed=False)
    shelf.begin()
    assert shelf.read() == ["0.csv", "c.csv"]


def test_a_file_in_hand_that_was_changed_meanwhile_is_read_from_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf(tmp_path)
    shelf.drop("a.csv")
    assert shelf.arrivals.next() is not None
    shelf.mark = shelf.arrivals.mark(17)
    (tmp_path / "a.csv").write_text("another")
    shelf.begin()
    arrival = shelf.arrivals.next()
    assert arrival is not None
    assert (arrival.name, arrival.row) == ("a.csv", 0)
    assert "a.csv was changed or removed after 17 of its rows were read" in caplog.text


@asynccontextmanager
async def pulling(rig: Rig, folder: Path, stream: str = "raw", **options: Any) -> AsyncIterator[SourceStatus]:
    source = FolderSource(folder, **{"poll_s": 0.005, "settle_s": 0.0} | options)
    async with at_work(rig, source, stream) as status:
        yield status


def numbers(log: MemoryLog) -> list[int]:
    return [json.loads(row["data"])["n"] for row in log.rows["raw"][0]]


@in_loop
async def test_a_bad_file_is_reported_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "1.json").write_bytes(b'[{"n": 1}, {"n": 2}, rubbish and more rubbish]')
    (tmp_path / "2.parquet").write_bytes(b"rubbish")
    (tmp_path / "3.json").write_bytes(b'{"n": 3}')
    log = MemoryLog()
    for _ in range(2):
        async with opened(log) as rig, pulling(rig, tmp_path, done="delete") as status:
            await until(lambda: not (tmp_path / "3.json").exists())
            await until(lambda: status.state == "connected")
            assert numbers(log) == [1, 2, 3]
    assert caplog.text.count("is skipped, because it could not be read to its end") == 2
    assert sorted(path.name for path in (tmp_path / "failed").iterdir()) == ["1.json", "2.parquet"]


@in_loop
async def test_the_status_names_the_bad_file(tmp_path: Path) -> None:
    (tmp_path / "2.parquet").write_bytes(b"rubbish")
    (tmp_path / "3.json").write_bytes(b'{"n": 3}')
    log = MemoryLog()
    async with opened(log) as rig, pulling(rig, tmp_path) as status:
        await until(lambda: numbers(log) == [3])
        await until(lambda: status.error is not None)
        assert status.state == "connected"
        assert str(status.error).startswith("2.parquet is skipped, because it could not be read to its end: ")


@in_loop
async def test_files_that_come_while_it_runs_are_read_and_a_full_queue_stops_the_reading(tmp_path: Path) -> None:
    log, folder = MemoryLog(), tmp_path / "later"
    limits = Settings(request_events_max=10, pending_events_max=10)
    async with opened(log, limits) as rig, pulling(rig, folder, backoff=Backoff(0.001, 0.01)) as status:
        await until(lambda: status.state == "waiting")
        log.gate.clear()
        folder.mkdir()
        (folder / ".1").write_bytes(b"".join(b'{"n":%d}\n' % number for number in range(1000)))
        (folder / ".1").rename(folder / "1.ndjson")
        await until(lambda: status.received >= 20)
        for _ in range(100):
            await asyncio.sleep(0)
        assert status.received <= 21
        log.gate.set()
        await until(lambda: len(log.rows["raw"][0]) == 1000)
        (folder / "2.json").write_bytes(b'{"n":-1}')
        await until(lambda: numbers(log)[-1] == -1)


@in_loop
async def test_a_mark_of_another_kind_of_source_is_refused(tmp_path: Path) -> None:
    async with opened(MemoryLog()) as rig:
        source_writer = rig.ingress.writer_for_source("feed", "raw")
        await (await source_writer.note('{"inode":1,"offset":2}'))
        with pytest.raises(SourceFailed, match="rename this source"):
            await FolderSource(tmp_path).run(source_writer, SourceStatus())


def test_what_makes_no_sense_is_refused_when_it_is_declared() -> None:
    for options in ({"format": "xml"}, {"done": "burn"}, {"poll_s": 0}, {"settle_s": -1}):
        with pytest.raises(DeclarationError):
            FolderSource("x", **options)
    assert (FolderSource("in").kind, FolderSource(Path("in")).address) == ("folder", "in")


@in_loop
@pytest.mark.parametrize("done", ["keep", "move", "delete"])
async def test_rows_come_once_and_in_order_wherever_the_process_ends(tmp_path: Path, done: str) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    names = [f"{index:05}" for index in range(25)]
    for index, name in enumerate(names):
        kind = KINDS[index % len(KINDS)]
        (tmp_path / f"{name}.{kind}").write_bytes(as_bytes(kind, file_rows(index)))
    expected = [row for index in range(25) for row in file_rows(index)]
    source_writer, crashes = CrashingWriter(draw), 0
    while [msgspec.json.decode(raw) for raw in source_writer.events] != expected or source_writer.mark is None:
        crashes += 1
        assert crashes < 500
        source_writer.restart(events_max=300)
        source = FolderSource(tmp_path, done=done, settle_s=0.0, poll_s=0.001)
        with suppress(Crash, TimeoutError):
            await asyncio.wait_for(source.run(source_writer, SourceStatus()), 0.5)
    assert crashes > 20


@in_loop
async def _finish(directory: Path, spec: dict[str, Any], count: int) -> None:
    """Read the rest in this process; then check a few more times that nothing else arrives."""
    expected = [row for index in range(count) for row in file_rows(index)]
    async with file_workers.reading(directory, spec) as (log, status):
        await until(lambda: log.events_appended("rows") >= len(expected))
        received = status.received
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await until(lambda: status.received > received)
        assert stored(log, "rows.rejected") == []
        stored_rows = [{name: row[name] for name in Row.__struct_fields__} for row in stored(log, "rows")]
    assert stored_rows == expected


def _killed_over_and_over(tmp_path: Path, done: str, rounds: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    folder, directory = tmp_path / "folder", tmp_path / "log"
    folder.mkdir()
    directory.mkdir()
    spec = {"kind": "folder", "path": str(folder), "poll_s": 0.02, "settle_s": 3.0, "done": done}
    reader, writer = Worker("read", directory, json.dumps(spec)), Worker("drop", folder, seed)
    for _ in range(rounds):
        reader.run_and_kill(draw.random() ** 2)
    reader.end()
    _finish(directory, spec, int(writer.end()))


DONE = pytest.mark.parametrize("done", ["keep", "move", "delete"])


@DONE
def test_every_row_is_in_the_log_once_though_the_reader_is_killed(tmp_path: Path, done: str) -> None:
    _killed_over_and_over(tmp_path, done, rounds=4)


@DONE
@pytest.mark.soak
def test_every_row_is_in_the_log_once_though_the_reader_is_killed_for_long(tmp_path: Path, done: str) -> None:
    _killed_over_and_over(tmp_path, done, rounds=150)
