"""A problem is listed from its first sign until it has really recovered."""

from __future__ import annotations

from penstock.control import (
    Death,
    EngineState,
    EngineStatus,
    HandlerStatus,
    NodeState,
    NodeStatus,
    ProcessStatus,
    SupervisorStatus,
    ViewStatus,
)
from penstock.core.contracts import SourceStatus
from penstock.core.settings import Settings
from penstock.runtime.problems import Problems
from tests.runtime.statuses import engine_status, figures


def view(state: NodeState, error: str | None = None) -> EngineStatus:
    """Return the engine's report about the view v."""
    return engine_status(views={"v": ViewStatus(node=NodeStatus(state=state, error=error))})


def handler(state: NodeState, error: str | None = None, failed: int = 0) -> EngineStatus:
    """Return the engine's report about the handler h."""
    node = NodeStatus(state=state, error=error)
    return engine_status(handlers={"h": HandlerStatus(node=node, figures=figures(failed=failed))})


def listed(problems: Problems) -> list[tuple[str, str, str]]:
    return [(f"{problem.kind} {problem.name}", problem.level, problem.message) for problem in problems.current]


def test_a_view_that_failed_is_red_and_between_two_tries_and_for_a_while_after_amber() -> None:
    problems = Problems(Settings(recovered_s=60))
    down, up = view("failed", "no memory"), view("running")
    problems.note(0, up, {})
    assert listed(problems) == []
    problems.note(1, down, {})
    assert listed(problems) == [("view v", "red", "view v failed: no memory")]
    since = problems.current[0].since
    problems.note(5, up, {})
    assert listed(problems) == [("view v", "amber", "view v is running again, after it failed once: no memory")]
    problems.note(10, down, {})
    problems.note(20, up, {})
    assert listed(problems) == [("view v", "amber", "view v is running again, after it failed 2 times: no memory")]
    assert problems.current[0].since == since
    problems.note(70, up, {})
    assert len(problems.current) == 1
    problems.note(71, up, {})
    assert listed(problems) == []


def test_a_view_that_failed_and_starts_again_is_red_until_it_runs() -> None:
    problems = Problems(Settings(recovered_s=60))
    problems.note(0, view("failed", "no memory"), {})
    for now in (1, 70):
        problems.note(now, view("starting"), {})
        assert listed(problems) == [("view v", "red", "view v failed: no memory")]
    problems.note(71, view("running"), {})
    assert listed(problems) == [("view v", "amber", "view v is running again, after it failed once: no memory")]
    problems.note(132, view("running"), {})
    assert listed(problems) == []


def test_a_process_that_died_is_a_problem_until_it_has_lived_for_a_while() -> None:
    """This holds for a gateway that has just started, and knows of nothing before."""
    death = Death(monotonic_s=100.0, how="was ended by SIGKILL")
    engine = ProcessStatus(pid=7, restarts=2, last_death=death)
    supervisor = SupervisorStatus(gateway=ProcessStatus(pid=8), engine=engine)

    def at(now: float, state: EngineState = "ready") -> list[tuple[str, str, str]]:
        problems = Problems(Settings(recovered_s=60))
        problems.note(now, engine_status(state), {}, supervisor)
        return listed(problems)

    message = "the engine was ended by SIGKILL; restarted 2 times since the app started"
    assert at(101) == at(160) == [("process engine", "amber", message)]
    assert at(161) == []
    assert at(161, "starting") == at(101), "an engine whose views still start has not recovered"


def test_a_view_that_is_still_failed_while_the_engine_is_silent_stays_so() -> None:
    problems = Problems(Settings(recovered_s=60))
    problems.note(0, view("failed", "no memory"), {})
    problems.note(100, None, {})
    assert [level for _, level, _ in listed(problems)] == ["red"]


def test_a_handler_that_fails_on_events_is_told_until_it_has_not_for_a_while() -> None:
    problems = Problems(Settings(recovered_s=60, failed_amber=2, failed_red=5))

    def after(now: float, failed: int) -> list[tuple[str, str, str]]:
        problems.note(now, handler("running", failed=failed), {})
        return listed(problems)

    assert after(0, 1_000) == []  # of earlier times
    assert after(1, 1_001) == []
    assert after(2, 1_002) == [("handler h", "amber", "handler h failed on 2 events, which are in h.failed")]
    assert [level for _, level, _ in after(3, 1_006)] == ["red"]
    assert [level for _, level, _ in after(62.5, 1_006)] == ["amber"]
    assert after(64, 1_006) == []


def test_a_restart_does_not_forget_the_events_that_a_handler_failed_on_lately() -> None:
    asked = list[str]()

    def failed_lately(name: str) -> list[float]:
        asked.append(name)
        return [500.0, 50.0, 20.0]

    problems = Problems(Settings(recovered_s=60, failed_amber=2, failed_red=5), failed_lately)
    failed = [("handler h", "amber", "handler h failed on 2 events, which are in h.failed")]
    for now, expected in ((1_000, failed), (1_005, failed), (1_020, [])):
        problems.note(now, handler("running", failed=7), {})
        assert listed(problems) == expected
    assert asked == ["h"]


def test_events_that_a_handler_fails_on_are_told_though_it_has_failed_itself_before() -> None:
    """Present failures are listed before past ones, and that it does not run at all before both."""
    problems = Problems(Settings(recovered_s=60, failed_amber=1, failed_red=5))

    def after(now: float, state: NodeState, failed: int) -> list[tuple[str, str]]:
        problems.note(now, handler(state, "no memory", failed), {})
        return [(problem.cause, problem.level) for problem in problems.current]

    assert after(0, "running", 0) == []
    assert after(1, "failed", 0) == [("failed", "red")]
    assert after(2, "running", 0) == [("recovering", "amber")]
    assert after(3, "running", 1) == [("events", "amber")]
    assert after(4, "running", 9) == [("events", "red")]
    assert after(5, "failed", 9) == [("failed", "red")]
    assert after(64.5, "running", 9) == [("recovering", "amber")]


def test_a_source_is_told_once_it_was_cut_off_for_some_time_and_until_it_stays_connected() -> None:
    problems, source = Problems(Settings(recovered_s=60, source_down_s=10)), SourceStatus()
    seen = []
    for second in range(200):
        source.state = "connected" if second < 5 or 40 <= second < 45 or second >= 50 else "waiting"
        source.error = None if source.state == "connected" else "refused"
        problems.note(second, None, {"feed": source})
        seen.append(problems.current[0].message if problems.current else None)
    assert seen[13] is None
    assert seen[14] == seen[39] == "source feed is not connected: refused"
    assert seen[40] == seen[108] == "source feed is connected again, after its connection was lost"
    assert seen[45] == "source feed is not connected: refused"
    assert seen[109:] == [None] * 91


def test_a_source_that_comes_back_at_once_is_no_problem() -> None:
    problems, source = Problems(Settings(recovered_s=60, source_down_s=10)), SourceStatus("connected")
    for second in range(100):
        source.state = "connecting" if second == 30 else "connected"
        problems.note(second, None, {"feed": source})
        assert problems.current == []


def test_a_source_that_gave_up_is_red() -> None:
    problems = Problems(Settings())
    problems.note(0, None, {"feed": SourceStatus("failed", error="forbidden")})
    assert listed(problems) == [("source feed", "red", "source feed failed: forbidden")]
