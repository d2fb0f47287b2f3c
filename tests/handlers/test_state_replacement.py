"""A handler's state under new code: carried over, or rebuilt from the log, all of it or none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from penstock.app.app import App
from penstock.app.declared import Handler
from penstock.app.loading import load
from penstock.control import HandlerFigures
from penstock.core.contracts import Retention
from penstock.core.errors import DeclarationError
from penstock.core.failpoints import Interrupted
from penstock.runtime import state_replacement
from penstock.runtime.embedded import handler as embedded_handler
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.handler import opened_here
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.store import read_handled
from tests.handlers import meter
from tests.handlers.pipe import HandlerPipe
from tests.harness import edited

pytestmark = pytest.mark.spark
FIRST = Path(meter.__file__)
GROWN = [
    ("class Meter(State):", 'class Meter(State, dropped=["count"], renamed={"total": "sum"}):'),
    ("    count: int = 0\n    total: int = 0\n", "    sum: int = 0\n    most: int = 0\n"),
    (
        "    meter.count += 1\n    meter.total += reading.watts * FACTOR\n",
        "    meter.sum += reading.watts\n    meter.most = max(meter.most, reading.watts)\n",
    ),
    ("watts=meter.total, code=CODE", "watts=meter.sum, code=2"),
]
EVOLVED = [
    ('class Reading(Event, id="reading"):', 'class Reading(Event, id="reading", version=2):'),
    (
        "    watts: int\n\n\nclass Sum",
        "    kilowatts: float\n\n    @staticmethod\n    def migrate(version: int, fields: dict) -> dict:\n"
        '        watts = fields.pop("watts")\n        return {**fields, "kilowatts": watts / 1000}\n\n\nclass Sum',
    ),
    ("reading.watts * FACTOR", "round(reading.kilowatts * 1000) * 2"),
]
"""Another version of the events, and other code: the same events would lead to another state now."""
LOST = [("    count: int = 0\n", ""), ("    meter.count += 1\n", "")]
DOUBLED = [("FACTOR, CODE = 1, 1", "FACTOR, CODE = 2, 2")]


def changed(folder: Path, edits: Sequence[tuple[str, str]], name: str = "meter.py") -> Path:
    """Write the app's file with other code."""
    return edited(FIRST, folder / name, edits)


def given(first: int, count: int) -> list[meter.Reading]:
    numbers = range(first, first + count)
    return [meter.Reading(reading=str(number), meter=f"m{number % 7}", watts=number) for number in numbers]


class Place:
    """A data directory on which one file after the other is run."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root

    def run(self, target: Path, items: Sequence[Any] = ()) -> HandlerFigures:
        app, handler = loaded(target)
        pipe = HandlerPipe(self.spark, self.root, app, target, handler_events_max=40)
        try:
            pipe.append("readings", [convert(handler, item) for item in items])
            return pipe.run(handler)
        finally:
            pipe.close()

    def command(self, name: str, target: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock.cli", name, str(target), "--data", str(self.root)]
        environ = os.environ | {"PENSTOCK_PARTITIONS": "2"}
        return subprocess.run([*command, *arguments], capture_output=True, text=True, env=environ, check=False)

    def states(self, target: Path) -> dict[str, dict[str, Any]]:
        lines = self.command("state", target).stdout.splitlines()
        return {entry["key"]: entry["state"] for entry in map(msgspec.json.decode, lines)}

    def sums(self, target: Path) -> dict[str, dict[str, Any]]:
        """Return the emitted sums, by reading: each must have one answer."""
        app, _ = loaded(target)
        pipe = HandlerPipe(self.spark, self.root, app, target)
        events = [msgspec.json.decode(row) for row in pipe.events("sums")]
        pipe.close()
        answers = {event["reading"]: event for event in events}
        assert len(answers) == len(events)
        return answers

    @property
    def folders(self) -> set[str]:
        return {folder.name for folder in (self.root / "handlers/sums").iterdir() if folder.is_dir()}


def loaded(target: Path) -> tuple[App, Handler]:
    app = load(str(target)).app
    return app, app.handlers[0]


def convert(handler: Handler, item: meter.Reading) -> Any:
    """Convert the reading to the event of the loaded app."""
    cls = handler.function.__globals__["Reading"]
    power = {"watts": item.watts} if "watts" in cls.__struct_fields__ else {"kilowatts": item.watts / 1000}
    return cls(reading=item.reading, meter=item.meter, **power)


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory in which the first code has run on a hundred readings."""
    root = tmp_path_factory.mktemp("renewal")
    Place(spark, root).run(FIRST, given(0, 100))
    return root


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path, begun: Path) -> Place:
    shutil.copytree(begun, tmp_path / "data")
    return Place(spark, tmp_path / "data")


def test_state_is_carried_over_to_a_class_that_has_changed(place: Place, tmp_path: Path) -> None:
    second = changed(tmp_path, GROWN)
    place.run(second, given(100, 50))
    numbers = [[n for n in range(150) if n % 7 == index] for index in range(7)]
    assert place.states(second) == {
        f"m{index}": {"sum": sum(mine), "most": max(mine)} for index, mine in enumerate(numbers)
    }
    answers = place.sums(second)
    assert {int(key): answer["code"] for key, answer in answers.items()} == {n: 1 + (n >= 100) for n in range(150)}
    assert place.folders == {"1"}
    verified = place.command("replay", second, "--verify")
    assert "50 events" in verified.stdout
    assert "bit for bit" in verified.stdout, verified.stderr


def test_carried_state_is_made_again_from_where_it_began(place: Place, tmp_path: Path) -> None:
    """The log does not lead to it, so it is stored: with that, and the log since, a damaged file is no loss."""
    second = changed(tmp_path, GROWN)
    place.run(second, given(100, 50))
    moved = Place(place.spark, tmp_path / "moved")
    shutil.copytree(place.root, moved.root)
    for file in (moved.root / "handlers/sums/1").rglob("*.delta"):
        file.write_bytes(file.read_bytes()[:-1])
    figures = moved.run(second, given(150, 14))
    assert any("is damaged" in reason for reason in figures.rebuilt)
    assert "bit for bit" in moved.command("replay", second, "--verify").stdout


@pytest.mark.parametrize("point", ["renewal.before_adopt", "renewal.after_adopt"])
def test_a_crash_while_state_is_carried_over_changes_nothing(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def stop(name: str) -> None:
        if name == point:
            raise Interrupted(name)

    second = changed(tmp_path, GROWN)
    with monkeypatch.context() as patched:
        patched.setattr(embedded_handler, "reach", stop)
        with pytest.raises(Interrupted):
            place.run(second)
    place.run(second, given(100, 50))
    assert sum(state["sum"] for state in place.states(second).values()) == sum(range(150))
    assert place.folders == {"1"}
    assert len(place.sums(second)) == 150


def test_a_class_that_does_not_fit_is_refused_and_nothing_is_touched(place: Place, tmp_path: Path) -> None:
    second = changed(tmp_path, LOST)
    process = place.command("run", second, "--port", "0")
    assert process.returncode == 1
    assert (
        "handler sums: incompatible: its state has a field 'count', but Meter does not: rename or drop it"
        in process.stderr
    )
    assert "penstock rebuild" in process.stderr
    with pytest.raises(DeclarationError, match="has a field 'count'"):
        place.run(second)
    assert place.folders == {"0"}
    place.run(FIRST, given(100, 1))


def test_a_damaged_ledger_is_the_handlers_own_failure(place: Place, tmp_path: Path) -> None:
    """It does not keep the rest of the app from starting; commands that inspect the handler report the error."""
    (place.root / "handlers/sums/ledger.db").write_bytes(b"rubbish" * 1000)
    _, handler = loaded(changed(tmp_path, LOST))
    assert state_replacement.problem_of(handler, EmbeddedStorage(DataDirectory(place.root))) is None
    assert "ledger.db is damaged" in place.command("rebuild", FIRST).stderr


def test_a_rebuilt_handler_goes_on_where_the_old_one_ended(place: Place, tmp_path: Path) -> None:
    """Its state is that of the new code from the beginning of the log; emitted events are not emitted again."""
    second = changed(tmp_path, [*DOUBLED, *LOST])
    process = place.command("rebuild", second)
    assert "sums: 100 events, 7 keys" in process.stdout, process.stderr
    assert "the next `penstock run" in process.stdout
    place.run(FIRST, given(100, 20))  # the old code continues until the new one takes over
    place.run(second, given(120, 30))
    total = {index: 2 * sum(n for n in range(150) if n % 7 == index) for index in range(7)}
    assert place.states(second) == {f"m{index}": {"total": total[index]} for index in range(7)}
    answers = place.sums(second)
    assert {int(key): answer["code"] for key, answer in answers.items()} == {n: 1 + (n >= 120) for n in range(150)}
    assert answers["149"]["watts"] == total[149 % 7]
    assert place.folders == {"1"}
    verified = place.command("replay", second, "--verify")
    assert "150 events" in verified.stdout
    assert "bit for bit" in verified.stdout, verified.stderr
    latest = place.command("replay", second, "--verify", "--latest")  # there is a snapshot of where it took over
    assert "sums: 30 events" in latest.stdout
    assert "bit for bit" in latest.stdout, latest.stderr


def test_state_prepared_for_other_code_is_left_alone(place: Place, tmp_path: Path) -> None:
    place.command("rebuild", changed(tmp_path, DOUBLED), "--prepare")
    place.run(FIRST, given(100, 7))
    assert place.states(FIRST)["m0"]["total"] == sum(n for n in range(107) if n % 7 == 0)
    assert place.folders == {"0", "next"}


def test_a_batch_that_is_half_done_must_end_as_it_began(place: Place, tmp_path: Path) -> None:
    handled = read_handled(place.root / "handlers/sums/ledger.db")
    assert handled is not None
    app, handler = loaded(FIRST)
    pipe = HandlerPipe(place.spark, place.root, app, FIRST)
    ledger = opened_here(pipe.sink(handler).opened).ledger
    ledger._put(msgspec.structs.replace(ledger.state, intended=handled.end))
    ledger.close()
    pipe.close()
    with pytest.raises(DeclarationError, match="was started by the previous code and is half done"):
        place.run(changed(tmp_path, GROWN))


def test_a_new_version_of_events_is_a_new_beginning(place: Place, tmp_path: Path) -> None:
    """The state stays as it is. A replay, and the repair of damaged state, start from there: the earlier events
    would lead elsewhere through the new class. A rebuild reads the old events as the new class."""
    second = changed(tmp_path, EVOLVED)
    early = place.command("replay", second, "--verify")
    says = "handler sums: the handler ran with a different version of the event class of readings; verify it with"
    assert says in early.stderr
    place.run(second, given(100, 50))
    before, after = ([n for n in range(150) if (n >= 100) is new] for new in (False, True))
    totals = {
        f"m{index}": sum(n for n in before if n % 7 == index) + 2 * sum(n for n in after if n % 7 == index)
        for index in range(7)
    }
    assert {key: state["total"] for key, state in place.states(second).items()} == totals
    assert place.folders == {"1"}
    verified = place.command("replay", second, "--verify")
    assert "50 events" in verified.stdout, verified.stderr
    assert "bit for bit" in verified.stdout, verified.stderr
    for file in (place.root / "handlers/sums/1").rglob("*.delta"):
        file.write_bytes(file.read_bytes()[:-1])
    moved = Place(place.spark, tmp_path / "moved")
    shutil.copytree(place.root, moved.root)
    figures = moved.run(second, given(150, 14))
    assert any("is damaged" in reason for reason in figures.rebuilt)
    assert "bit for bit" in moved.command("replay", second, "--verify").stdout
    assert moved.folders == {"1"}, "the same classes again are no new beginning"
    process = moved.command("rebuild", second)
    assert "sums: 164 events, 7 keys" in process.stdout, process.stderr
    moved.run(second)
    assert sum(state["total"] for state in moved.states(second).values()) == 2 * sum(range(164))
    assert "bit for bit" in moved.command("replay", second, "--verify").stdout


@pytest.mark.parametrize("point", ["renewal.before_adopt", "renewal.after_adopt"])
def test_a_crash_while_a_handler_begins_anew_changes_nothing(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def stop(name: str) -> None:
        if name == point:
            raise Interrupted(name)

    second = changed(tmp_path, EVOLVED)
    with monkeypatch.context() as patched:
        patched.setattr(embedded_handler, "reach", stop)
        with pytest.raises(Interrupted):
            place.run(second)
    place.run(second, given(100, 50))
    assert sum(state["total"] for state in place.states(second).values()) == sum(range(100)) + 2 * sum(range(100, 150))
    assert place.folders == {"1"}
    assert len(place.sums(second)) == 150
    assert "50 events" in place.command("replay", second, "--verify").stdout


def test_an_edited_migrate_is_a_new_beginning(place: Place, tmp_path: Path) -> None:
    """It reads old events differently, so they would lead to another state, although the version of the
    events is the same."""
    place.run(changed(tmp_path, EVOLVED, "second.py"), given(100, 20))
    edited = changed(tmp_path, [*EVOLVED, ("watts / 1000}", "watts / 500}")], "third.py")
    place.run(edited, given(120, 30))
    assert place.folders == {"2"}
    total = sum(range(100)) + 2 * sum(range(100, 150))
    assert sum(state["total"] for state in place.states(edited).values()) == total
    verified = place.command("replay", edited, "--verify")
    assert "30 events" in verified.stdout, verified.stderr
    assert "bit for bit" in verified.stdout, verified.stderr
    place.run(edited, given(150, 1))
    assert place.folders == {"2"}, "the same migrate again is no new beginning"


@pytest.mark.parametrize(("edits", "anew"), [(DOUBLED, False), (EVOLVED, True)])
def test_a_ledger_that_does_not_say_how_events_were_read_adopts_it(
    place: Place, tmp_path: Path, edits: list[tuple[str, str]], anew: bool
) -> None:
    """It is from before event classes could change. If the class changes at that moment, it is a new beginning too."""
    rewrite(place, inputs=None)
    second = changed(tmp_path, edits)
    place.run(second, given(100, 1))
    handled = read_handled(place.root / "handlers/sums/ledger.db")
    assert handled is not None
    assert handled.inputs is not None
    assert handled.inputs["readings"].version == (2 if anew else 1)
    assert (place.folders == {"1"}) is anew


def rewrite(place: Place, **changes: Any) -> None:
    """Change the content of the handler's ledger."""
    app, handler = loaded(FIRST)
    pipe = HandlerPipe(place.spark, place.root, app, FIRST)
    ledger = opened_here(pipe.sink(handler).opened).ledger
    ledger._put(msgspec.structs.replace(ledger.state, **changes))
    ledger.close()
    pipe.close()


def test_a_batch_that_is_half_done_keeps_newer_events_from_being_declared(place: Place, tmp_path: Path) -> None:
    """If they were declared, the code that has to finish the batch could not run any more."""
    handled = read_handled(place.root / "handlers/sums/ledger.db")
    assert handled is not None
    rewrite(place, intended=handled.end)
    process = place.command("run", changed(tmp_path, EVOLVED), "--port", "0")
    assert process.returncode == 1
    assert "handler sums: incompatible: batch" in process.stderr
    assert "was started by the previous code and is half done" in process.stderr
    assert "Run the previous code once more, until the app is ready; then run this code" in process.stderr
    shape = HandlerPipe(place.spark, place.root, loaded(FIRST)[0], FIRST).log.event_shape("readings")
    assert shape is not None
    assert shape.version == 1


def test_a_migrate_that_fails_is_known_before_anything_starts(place: Place, tmp_path: Path) -> None:
    broken = [*EVOLVED, ('fields.pop("watts")', 'fields.pop("what")')]
    process = place.command("run", changed(tmp_path, broken), "--port", "0")
    assert process.returncode == 1
    says = "the event at partition 0, offset 0, which has version 1, cannot be read as Reading"
    assert f"{says}, version 2: KeyError: 'what'" in process.stderr
    rebuilt = place.command("rebuild", changed(tmp_path, broken))
    assert rebuilt.returncode == 1
    assert says in rebuilt.stderr


ELSEWHERE = [("reads=readings,", "reads=others,"), ("\n\n@app", '\nothers = app.stream("others", Reading)\n\n@app')]
RENAMED = [('"sums", reads', '"others", reads')]


@pytest.mark.parametrize(
    ("edits", "reason"),
    [(ELSEWHERE, "same streams"), (RENAMED, "holds no data for the handler 'others'")],
)
def test_what_cannot_be_rebuilt_is_refused(
    place: Place, tmp_path: Path, edits: list[tuple[str, str]], reason: str
) -> None:
    process = place.command("rebuild", changed(tmp_path, edits))
    assert process.returncode == 1
    assert reason in process.stderr
    assert "Traceback" not in process.stderr


def test_a_log_whose_beginning_is_gone_is_rebuilt_only_if_told_so(place: Place, tmp_path: Path) -> None:
    second = changed(tmp_path, DOUBLED)
    pipe = HandlerPipe(place.spark, place.root, loaded(FIRST)[0], FIRST)
    pipe.log.trim("readings", Retention(timedelta(0), 1, {0: 10, 1: 10}))
    assert any(pipe.log.starts("readings").values())
    pipe.close()
    process = place.command("rebuild", second)
    assert process.returncode == 1
    assert "the first events of sums; to rebuild it from the kept events, pass --kept" in process.stderr
    place.command("rebuild", second, "--kept")
    place.run(second)
    totals = sum(state["total"] for state in place.states(second).values())
    assert 0 < totals < 2 * sum(range(100))
    assert "bit for bit" in place.command("replay", second, "--verify").stdout
