"""When something that died is started again, and what a person is told."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from penstock.errors import EXIT_JAVA
from penstock.runtime import supervisor
from penstock.runtime.directory import DataDirectory
from penstock.runtime.supervisor import News, Process, last_words


def test_the_wait_doubles_for_what_dies_at_once_and_starts_over_after_a_healthy_run() -> None:
    process = Process("gateway", "module", healthy_s=2.0)
    waits = []
    for died_at in (0.1, 0.2, 0.3, 0.4):
        process.started_at = 0.0
        waits.append(process.wait_before_restart(died_at, longest_s=0.5))
    assert waits == [0.1, 0.2, 0.4, 0.5]
    assert process.wait_before_restart(2.1, longest_s=0.5) == 0.1


def test_the_last_line_of_a_log_is_told_only_if_it_says_why_a_child_died(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("Traceback (most recent call last):\nBrokenPipeError: [Errno 32] Broken pipe\n")
    for status in (-signal.SIGKILL, -signal.SIGTERM, EXIT_JAVA):
        assert last_words(log, status) == f"see {log}", "written by what the dead one has left behind"
    log.write_text("ModuleNotFoundError: No module named 'rates'\n")
    assert last_words(log, 1) == f"ModuleNotFoundError: No module named 'rates'; see {log}"
    assert last_words(tmp_path / "other.log", 1) == f"{tmp_path}/other.log cannot be read: No such file or directory"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.setattr(supervisor, "LOOK_S", 0.0)
    directory = DataDirectory(tmp_path)
    directory.make()
    return Told(directory)


class Told:
    """What a person is told while the app says this and that of itself."""

    def __init__(self, directory: DataDirectory) -> None:
        self.directory, self.said = directory, list[str]()
        self.news = News(directory, "http://127.0.0.1:1", self.said.append)

    def look(self, state: str, *problems: tuple[str, str, str, str]) -> list[str]:
        names = ("kind", "cause", "level", "message")
        listed = [
            {"name": "sales", "page": f"#/{each[0]}s/sales", **dict(zip(names, each, strict=True))} for each in problems
        ]
        self.directory.health_status.write_text(json.dumps({"state": state, "problems": listed}))
        self.said.clear()
        self.news.look()
        return list(self.said)


RED = ("view", "failed", "red", "view sales failed: no such column")
AMBER = ("view", "recovering", "amber", "view sales runs again")


def test_a_person_hears_what_the_start_is_at_and_once_that_it_is_ready(told: Told) -> None:
    told.directory.engine_status.write_text(json.dumps({"state": "starting", "doing": "starting Spark"}))
    assert told.look("starting") == ["starting Spark"]
    assert told.look("starting") == []
    assert told.look("ready") == ["ready after 0 s: http://127.0.0.1:1"]
    assert told.look("ready") == []


def test_a_person_hears_of_each_problem_once_with_the_page_to_look_at_and_when_it_is_over(told: Told) -> None:
    assert told.look("ready") == ["ready after 0 s: http://127.0.0.1:1"]
    assert told.look("degraded", RED) == [
        "view sales failed: no such column; see http://127.0.0.1:1/#/views/sales",
    ]
    assert told.look("degraded", RED) == []
    assert told.look("degraded", AMBER) == []
    assert told.look("degraded", RED) == []
    assert told.look("ready") == ["view sales has recovered", "ready: http://127.0.0.1:1"]


def test_a_person_hears_that_a_problem_gets_worse(told: Told) -> None:
    assert told.look("degraded", AMBER)[0].startswith("view sales runs again; see")
    assert told.look("degraded", AMBER) == []
    assert told.look("degraded", RED) == ["view sales failed: no such column; see http://127.0.0.1:1/#/views/sales"]


def test_a_person_hears_of_events_that_a_handler_fails_on_though_it_has_failed_itself_before(told: Told) -> None:
    few = ("handler", "events", "amber", "handler sales failed on an event")
    many = ("handler", "events", "red", "handler sales failed on 100 events")
    assert told.look("degraded", ("handler", "failed", "red", "handler sales failed: no memory"))
    assert told.look("degraded", ("handler", "recovering", "amber", "handler sales runs again")) == []
    assert told.look("degraded", few) == ["handler sales failed on an event; see http://127.0.0.1:1/#/handlers/sales"]
    assert [each.partition(";")[0] for each in told.look("degraded", many)] == ["handler sales failed on 100 events"]
    assert told.look("degraded", few) == []


def test_that_a_process_died_is_said_by_the_supervisor_alone_and_its_recovery_once(told: Told) -> None:
    died = ("process", "died", "amber", "the engine was ended by SIGKILL")
    assert told.look("ready") == ["ready after 0 s: http://127.0.0.1:1"]
    assert told.look("degraded", died) == []
    assert told.look("ready") == ["the sales has recovered", "ready: http://127.0.0.1:1"]


def test_an_app_that_starts_with_a_problem_is_not_said_to_be_ready(told: Told) -> None:
    assert told.look("degraded", RED)[-1] == "running after 0 s, with a problem: http://127.0.0.1:1"
    assert told.look("ready") == ["view sales has recovered", "ready: http://127.0.0.1:1"]


def test_a_log_is_turned_over_while_its_process_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES_MAX", 10)
    path = tmp_path / "gateway.log"
    with open(path, "ab", buffering=0) as file:
        for line, expected in ((b"first\n", b"first\n"), (b"second\n", b""), (b"third\n", b"third\n")):
            file.write(line)
            supervisor.turn_over(path)
            assert path.read_bytes() == expected
    assert (tmp_path / "gateway.old.log").read_bytes() == b"first\nsecond\n"
