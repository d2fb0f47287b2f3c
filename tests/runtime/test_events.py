"""The event classes of an app compared with its data directory, and how they reach other processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from penstock.app.app import App
from penstock.app.loading import load
from penstock.core.columns import to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.event_shape import event_spec
from penstock.handlers.samples import BEGIN
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.events import carried_classes, event_classes, event_problems, open_log, stored_shapes
from tests.harness import ROOT

FIRST = """
from __future__ import annotations
from penstock import App, Event, Record

class Order(Event):
    order: str
    city: str

app = App("orders")
orders = app.stream("orders", Order)
others = app.stream("others", Order)
"""
SECOND = """
from __future__ import annotations
from typing import Any
from penstock import App, Event, Record
from names import PREFIX

class Address(Record):
    city: str

def declared() -> App:
    class Order(Event, version=2):
        order: str
        address: Address

        @staticmethod
        def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
            return {"order": PREFIX + fields["order"], "address": Address(city=fields["city"])}

    app = App("orders")
    app.stream("orders", Order)
    app.stream("others", Order)
    return app

app = declared()
"""
PROGRAM = """
import pickle, sys
from pathlib import Path
from penstock.queue import EmbeddedLog
log = EmbeddedLog(Path(sys.argv[1]), read_only=True, classes=pickle.loads(Path(sys.argv[2]).read_bytes()))
rows = log.read("orders", 0, 0, log.ends("orders")[0])
print([row for batch in rows for row in batch.select(["order", "address"]).to_pylist()])
"""


def written(folder: Path, text: str) -> Path:
    (folder / "names.py").write_text('PREFIX = "no. "\n')
    file = folder / "app.py"
    file.write_text(text)
    return file


def begun(folder: Path) -> tuple[DataDirectory, App]:
    """Return a data directory with two orders, and the app that they were sent to."""
    app = load(str(written(folder, FIRST))).app
    directory = DataDirectory(folder / "data")
    directory.make()
    log, cls = EmbeddedLog(directory.streams), app.streams[0].event
    events = [cast(Any, cls)(order=str(number), city="Oslo") for number in range(2)]
    for stream in app.streams:
        log.declare(StreamSpec.of(stream.name, event_spec(cls), 1))
        batch = to_batch(cls, events, ids=[None, None], keys=[None, None], now=BEGIN)
        log.append(stream.name, 0, batch, producer="p", sequence=1)
    log.close()
    return directory, app


def test_a_class_is_carried_to_a_process_that_has_no_such_class(tmp_path: Path) -> None:
    """It is passed as the text of the app's file: even if the file has changed since, and for a class within a
    function."""
    directory, _ = begun(tmp_path)
    file = written(tmp_path, SECOND)
    classes = carried_classes(load(str(file)).app, str(file))
    (tmp_path / "classes").write_bytes(pickle.dumps(classes))
    file.write_text("this is no Python")
    command = [sys.executable, "-c", PROGRAM, str(directory.streams), str(tmp_path / "classes")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=ROOT)
    expected = [{"order": f"no. {number}", "address": {"city": "Oslo"}} for number in range(2)]
    assert done.stdout == f"{expected}\n", done.stderr


def test_a_class_without_migrate_is_carried_as_data(tmp_path: Path) -> None:
    _, app = begun(tmp_path)
    carried = carried_classes(app, str(tmp_path / "app.py"))
    assert all(spec.load is None for spec in carried.values())
    assert {"orders", "others", "orders.rejected", "others.rejected"} == carried.keys() == event_classes(app).keys()


def test_problems_are_told_of_each_stream_and_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    directory, app = begun(tmp_path)
    assert list(event_problems(app, EmbeddedStorage(directory))) == []
    changed = load(str(written(tmp_path, FIRST.replace("city: str", "town: str")))).app
    problems = list(event_problems(changed, EmbeddedStorage(directory)))
    lines = [stream.where.line for stream in changed.streams]
    assert [problem.partition(": its events")[0] for problem in problems] == [
        f"{tmp_path / 'app.py'}:{line}: stream {name}" for line, name in zip(lines, ("orders", "others"), strict=True)
    ]
    (directory.streams / "orders.db").write_bytes(b"rubbish" * 1000)
    assert list(event_problems(changed, EmbeddedStorage(directory))) == problems[1:]
    assert stored_shapes(app, EmbeddedStorage(directory))["orders"] is None
    assert stored_shapes(changed, EmbeddedStorage(directory))["others"] == event_spec(app.streams[1].event).shape


def test_a_directory_that_is_not_there_has_no_problems(tmp_path: Path) -> None:
    _, app = begun(tmp_path)
    nowhere = DataDirectory(tmp_path / "nowhere")
    assert list(event_problems(app, EmbeddedStorage(nowhere))) == []
    assert set(stored_shapes(app, EmbeddedStorage(nowhere)).values()) == {None}
    assert not nowhere.root.exists()


def test_a_log_is_read_as_the_classes_of_the_app_that_opens_it(tmp_path: Path) -> None:
    directory, app = begun(tmp_path)
    second = load(str(written(tmp_path, SECOND))).app
    for opener, column in ((app, "city"), (second, "address")):
        log = open_log(opener, EmbeddedStorage(directory))
        (batch,) = log.read("orders", 0, 0, log.ends("orders")[0])
        assert batch.schema.names[1] == column
        log.close()
