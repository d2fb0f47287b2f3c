"""The context that a machine gives its handler keeps the promises of the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from penstock import App
from penstock.testing import run as run_plainly
from tests.contracts.context import Call, ContextContract, Run


class TestContextOfMachine(ContextContract):
    @pytest.fixture(params=[1_000, 1], ids=["one batch", "batches of one"])
    def run(self, request: pytest.FixtureRequest) -> Run:
        def run(app: App, inputs: Mapping[Any, Sequence[Any]]) -> Sequence[Call]:
            result: list[Call] = run_plainly(app, inputs, batch_events=request.param).emitted("calls")
            return result

        return run
