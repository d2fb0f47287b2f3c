"""When something that died is started again, and what a person is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.runtime import supervisor
from penstock.runtime.supervisor import News, Process


def test_the_wait_doubles_for_what_dies_at_once_and_starts_over_after_a_healthy_run() -> None:
    process = Process("gateway", "module", healthy_s=2.0)
    waits = []
    for died_at in (0.1, 0.2, 0.3, 0.4):
        process.started_at = 0.0
        waits.append(process.wait_before_restart(died_at, longest_s=0.5))
    assert waits == [0.1, 0.2, 0.4, 0.5]
    assert process.wait_before_restart(2.1, longest_s=0.5) == 0.1


def test_a_person_hears_once_that_it_is_ready_and_of_each_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOOK_S", 0.0)
    said: list[str] = []
    news = News(tmp_path / "engine.json", "http://127.0.0.1:1", said.append)
    news.look()
    for error in ("no such column", "no such column", "another"):
        views = {"sales": {"state": "failed", "error": error}, "other": {"state": "running", "error": None}}
        (tmp_path / "engine.json").write_text(json.dumps({"state": "ready", "views": views}))
        news.look()
    assert said[0] == "failed: no such column"
    assert said[1] == "ready after 0 s, but 1 of 2 views failed: http://127.0.0.1:1"
    assert said[2:] == ["failed: another"]
