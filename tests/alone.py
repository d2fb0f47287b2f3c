"""Tests that need a separate process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from typing import Any, ParamSpec

P = ParamSpec("P")


def alone(test: Callable[P, None]) -> Callable[P, None]:
    """Run a test that measures Python's memory in a separate process. In a process that has run thousands of others,
    anything may grow just then: its table of interned strings, the next time that it is full, by 7.7 MB at once."""

    @functools.wraps(test)
    def run(*given: P.args, **named: P.kwargs) -> None:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
            processes.submit(_call, test.__module__, test.__qualname__, given, named).result()

    return run


def _call(module: str, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    getattr(import_module(module), name).__wrapped__(*given, **named)
