"""Work in a process of its own that is killed on the way."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from penstock.core import failpoints

DEADLINE_S = 60


def run_apart(point: str, work: Callable[..., None], *arguments: Any) -> int | None:
    """Do some work in a process that is killed at a failpoint; return its exit status.

    It is forked from a process that has imported the module of the work and done nothing else.
    """
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([work.__module__])
    process = processes.Process(target=_work_and_die, args=(point, work, *arguments))
    process.start()
    process.join(DEADLINE_S)
    return process.exitcode


def _work_and_die(point: str, work: Callable[..., None], *arguments: Any) -> None:
    failpoints._traps.update(failpoints.parse(f"{point}=kill"))
    work(*arguments)
