"""Callers take turns in the threads for pages: one with many requests does not delay the others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

from penstock.core.access import Caller
from penstock.core.access.grants import ALL
from penstock.core.errors import Stopping
from penstock.core.fair_threads import FairThreads
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.serve.channels import threads
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.deps import Deps
from tests.clocks import until
from tests.serve.fakes import FakeLog, Reading, make_deps, run
from tests.serve.query.support import asking

ANN, BOB = Caller("key:ann", ALL), Caller("key:bob", ALL)
DEADLINE_S = 30


class Gate:
    """Work that does not end before the gate is opened."""

    def __init__(self) -> None:
        self.begun = 0
        self._open = threading.Event()

    def pass_through(self) -> None:
        self.begun += 1
        assert self._open.wait(DEADLINE_S)

    def open(self) -> None:
        self._open.set()


class Slow(FakeLog):
    """A log that is not read before the gate is opened."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(1)
        self._gate = gate

    def generation(self, stream: str) -> int:
        self._gate.pass_through()
        return super().generation(stream)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def deps_of(gate: Gate) -> Deps:
    log = FakeLog(1)
    log.write(0, 5)
    logs = {"slow": Slow(gate), "other": log}
    channels = {name: StreamChannel("x", log, Settings(), lambda: event_schema(Reading)) for name, log in logs.items()}
    return make_deps(streams=channels)


def test_one_caller_with_many_costly_pages_does_not_hold_up_anothers(gate: Gate) -> None:
    async def main() -> None:
        deps = deps_of(gate)
        slow = deps.channel("stream", "slow", ANN)
        pages = [asyncio.create_task(slow.page(None, 10)) for _ in range(30)]
        await until(lambda: gate.begun == threads.THREADS // 2)
        async with asyncio.timeout(DEADLINE_S / 2):
            page = await deps.channel("stream", "other", BOB).page(None, 10)
        assert [event["n"] for event in json.loads(page.body)["events"]] == [5]
        assert gate.begun == threads.THREADS // 2
        gate.open()
        await asyncio.gather(*pages)

    run(main())


def test_too_many_pages_of_one_caller_are_refused_and_others_are_not(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_readers", FairThreads(2, 4, name="test", what="pages"))

    async def main() -> None:
        deps = deps_of(gate)
        async with asking(deps, ANN) as ann, asking(deps, BOB) as bob:
            pages = [asyncio.create_task(ann.get("/v1/streams/slow")) for _ in range(3)]
            turns = threads._readers._turns()
            await until(lambda: sum(map(len, turns._lines.values())) == 2)
            refused = await ann.get("/v1/streams/other")
            assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
            assert refused.headers["retry-after"] == str(refused.json()["retry_after_s"])
            async with asyncio.timeout(DEADLINE_S / 2):
                assert (await bob.get("/v1/streams/other")).status_code == 200
            gate.open()
            assert {page.status_code for page in await asyncio.gather(*pages)} == {200}

    run(main())


def test_work_that_waits_when_the_threads_end_is_refused(gate: Gate) -> None:
    fair = FairThreads(1, 10, name="test", what="pages")

    async def main() -> None:
        begun, waiting = (asyncio.create_task(fair.run("ann", gate.pass_through)) for _ in range(2))
        await until(lambda: gate.begun == 1)
        gate.open()
        fair.shutdown()
        await begun
        for late in (waiting, fair.run("bob", gate.pass_through)):
            with pytest.raises(Stopping):
                await late
        assert gate.begun == 1

    run(main())


def test_work_that_has_begun_keeps_its_place_though_nobody_waits_for_it(gate: Gate) -> None:
    """A thread cannot be stopped: a caller that repeatedly asks and disconnects would otherwise occupy all of them."""
    fair = FairThreads(2, 10, name="test", what="pages")

    async def main() -> None:
        begun = asyncio.create_task(fair.run("ann", gate.pass_through))
        await until(lambda: gate.begun == 1)
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)
        waiting = asyncio.create_task(fair.run("ann", gate.pass_through))
        assert await fair.run("bob", lambda: 1) == 1
        assert gate.begun == 1
        gate.open()
        await waiting

    run(main())
