"""The restart of processes that died, and the messages to the operator."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.app.app import App
from penstock.control import ControlChannel, HealthProblem, HealthStatus, Successor, SupervisorStatus
from penstock.core.errors import EXIT_JAVA
from penstock.core.settings import Settings
from penstock.runtime import supervisor
from penstock.runtime.embedded.storage import open_storage
from penstock.runtime.supervisor import News, Process, Supervisor, last_words, listen
from tests.control.memory import MemoryChannel
from tests.harness import wait_for
from tests.runtime.statuses import engine_status


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
def news() -> OperatorMessages:
    return OperatorMessages(MemoryChannel())


class OperatorMessages:
    """The messages to the operator while the app reports these problems."""

    def __init__(self, channel: ControlChannel) -> None:
        self.channel, self.said = channel, list[str]()
        self.news = News(channel, "http://127.0.0.1:1", self.said.append)

    def look(self, state: str, *problems: tuple[str, str, str, str]) -> list[str]:
        listed = tuple(
            HealthProblem(kind=kind, name="sales", cause=cause, level=level, message=message, page=f"#/{kind}s/sales")
            for kind, cause, level, message in problems
        )
        self.channel.publish(HealthStatus(state=state, problems=listed))
        self.said.clear()
        self.news.look()
        return list(self.said)


RED = ("view", "failed", "red", "view sales failed: no such column")
AMBER = ("view", "recovering", "amber", "view sales runs again")


def test_a_person_hears_what_the_start_is_at_and_once_that_it_is_ready(news: OperatorMessages) -> None:
    news.channel.publish(engine_status("starting", doing="starting Spark"))
    assert news.look("starting") == ["starting Spark"]
    assert news.look("starting") == []
    assert news.look("ready") == ["ready after 0 s: http://127.0.0.1:1"]
    assert news.look("ready") == []


def test_a_person_hears_of_each_problem_once_with_the_page_to_look_at_and_when_it_is_over(
    news: OperatorMessages,
) -> None:
    assert news.look("ready") == ["ready after 0 s: http://127.0.0.1:1"]
    assert news.look("degraded", RED) == [
        "view sales failed: no such column; see http://127.0.0.1:1/#/views/sales",
    ]
    assert news.look("degraded", RED) == []
    assert news.look("degraded", AMBER) == []
    assert news.look("degraded", RED) == []
    assert news.look("ready") == ["view sales has recovered", "ready: http://127.0.0.1:1"]


def test_a_person_hears_that_a_problem_gets_worse(news: OperatorMessages) -> None:
    assert news.look("degraded", AMBER)[0].startswith("view sales runs again; see")
    assert news.look("degraded", AMBER) == []
    assert news.look("degraded", RED) == ["view sales failed: no such column; see http://127.0.0.1:1/#/views/sales"]


def test_a_person_hears_of_events_that_a_handler_fails_on_though_it_has_failed_itself_before(
    news: OperatorMessages,
) -> None:
    few = ("handler", "events", "amber", "handler sales failed on an event")
    many = ("handler", "events", "red", "handler sales failed on 100 events")
    assert news.look("degraded", ("handler", "failed", "red", "handler sales failed: no memory"))
    assert news.look("degraded", ("handler", "recovering", "amber", "handler sales runs again")) == []
    assert news.look("degraded", few) == ["handler sales failed on an event; see http://127.0.0.1:1/#/handlers/sales"]
    assert [line.partition(";")[0] for line in news.look("degraded", many)] == ["handler sales failed on 100 events"]
    assert news.look("degraded", few) == []


def test_that_a_process_died_is_said_by_the_supervisor_alone_and_its_recovery_once(news: OperatorMessages) -> None:
    died = ("process", "died", "amber", "the engine was ended by SIGKILL")
    assert news.look("ready") == ["ready after 0 s: http://127.0.0.1:1"]
    assert news.look("degraded", died) == []
    assert news.look("ready") == ["the sales has recovered", "ready: http://127.0.0.1:1"]


def test_an_app_that_starts_with_a_problem_is_not_said_to_be_ready(news: OperatorMessages) -> None:
    assert news.look("degraded", RED)[-1] == "running after 0 s, with a problem: http://127.0.0.1:1"
    assert news.look("ready") == ["view sales has recovered", "ready: http://127.0.0.1:1"]


def test_a_log_is_turned_over_while_its_process_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES_MAX", 10)
    path = tmp_path / "gateway.log"
    with open(path, "ab", buffering=0) as file:
        for line, expected in ((b"first\n", b"first\n"), (b"second\n", b""), (b"third\n", b"third\n")):
            file.write(line)
            supervisor.turn_over(path)
            assert path.read_bytes() == expected
    assert (tmp_path / "gateway.old.log").read_bytes() == b"first\nsecond\n"


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore the signal handlers that a supervisor replaces."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_the_end_of_a_child_a_successor_and_a_signal_are_noticed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fallback would notice them after an hour."""
    monkeypatch.setattr(supervisor, "LOOK_S", 3600.0)
    storage, said = open_storage(tmp_path / "data"), list[str]()
    channel = storage.control()

    def pid(other_than: int | None = None) -> int | None:
        status = channel.latest(SupervisorStatus)
        return status.engine.pid if status is not None and status.engine.pid != other_than else None

    def cause() -> None:
        try:
            first: int = wait_for(pid)
            os.kill(first, signal.SIGKILL)
            wait_for(lambda: pid(other_than=first))
            assert channel.publish(Successor(target="next.py"))
            wait_for(lambda: any(line.startswith("switching to next.py") for line in said))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    causing = threading.Thread(target=cause)
    with listen("127.0.0.1", 0) as listener:
        watched = Supervisor(App("shop"), "app.py", storage, listener, Settings(), said.append)
        for process in watched.processes:
            process.module = "tests.runtime.idle_child"
        causing.start()
        assert watched.run() == 0
    causing.join()
    assert [line.partition(";")[0].partition(":")[0] for line in said[1:]] == [
        "the engine was ended by SIGKILL",
        "switching to next.py",
        "stopping",
        "stopped",
    ]
