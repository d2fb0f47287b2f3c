"""Callers take turns, whatever each of them asks for."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import subprocess
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.access import Caller
from penstock.core.access.grants import ALL
from penstock.core.errors import Overloaded
from penstock.core.fair_queue import FairQueue
from penstock.core.settings import Settings
from penstock.serve.query import pool
from penstock.serve.query.answers import QueryResponse
from penstock.serve.query.check import Checked, Resolve, check
from penstock.serve.query.queries import Queries
from penstock.serve.query.relations import ViewRelation
from tests.clocks import until
from tests.serve.fakes import run
from tests.serve.query.support import SETTINGS, Typed


def test_one_who_asks_much_does_not_hold_up_one_who_asks_once() -> None:
    async def main() -> None:
        turns, order = FairQueue(1, 20), list[str]()

        async def ask(who: str) -> None:
            async with turns.one(who):
                order.append(who)
                await asyncio.sleep(0)

        async with turns.one("first"):
            asking = [asyncio.create_task(ask(who)) for who in ["many"] * 8 + ["once", "other"]]
            await asyncio.sleep(0)
        await asyncio.gather(*asking)
        assert order == ["many", "once", "other"] + ["many"] * 7

    run(main())


def test_those_who_wait_for_their_turn_hold_no_tables() -> None:
    """The tables of a query are read in its turn, and released soon: otherwise all waiting queries would hold
    theirs."""

    async def main() -> None:
        views = {f"v{number}": Typed() for number in range(8)}
        for view in views.values():
            view.put({str(key): key for key in range(100)})
        one = replace(SETTINGS, queries_max=1)
        queries = Queries({name: ViewRelation(name, view) for name, view in views.items()}, one)
        async with queries._pool._turns.one("first"):
            asked = [
                asyncio.create_task(queries.answer(f"SELECT count(*) AS n FROM {name}", Caller(name, ALL)))
                for name in views
            ]
            lines = queries._pool._turns._lines
            await until(lambda: sum(map(len, lines.values())) == len(views))
            assert sum(source.held for source in queries._sources.values()) == 0
        answers = [_rows(answer) for answer in await asyncio.gather(*asked)]
        assert answers == [[{"n": 100}]] * len(views)
        queries.close()

    run(main())


def _rows(answer: QueryResponse) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(answer.data + answer.json_end)["rows"]
    return rows


def test_a_caller_may_fill_half_of_the_line_and_all_together_the_whole() -> None:
    async def main() -> None:
        turns = FairQueue(1, 4)
        held = turns.one("first")
        await held.__aenter__()
        waiting = [asyncio.create_task(turns.one("greedy").__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await turns.one("greedy").__aenter__()
        waiting += [asyncio.create_task(turns.one("other").__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await turns.one("third").__aenter__()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await held.__aexit__(None, None, None)
        async with asyncio.timeout(60), turns.one("third"):
            pass

    run(main())


def test_one_who_gives_up_in_the_moment_of_its_turn_passes_it_on() -> None:
    async def main() -> None:
        turns = FairQueue(1, 4)
        async with turns.one("first"):
            waiting = asyncio.create_task(turns.one("second").__aenter__())
            await asyncio.sleep(0)
        waiting.cancel()  # it was given the slot, and is not yet aware of it
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        async with asyncio.timeout(60), turns.one("third"):
            pass

    run(main())


def test_one_who_gives_up_just_before_its_turn_does_not_take_the_place_along() -> None:
    async def main() -> None:
        turns = FairQueue(1, 4)
        async with turns.one("first"):
            waiting = [asyncio.create_task(turns.one(who).__aenter__()) for who in ("second", "third")]
            await asyncio.sleep(0)
            waiting[0].cancel()  # it is not yet aware when the slot is free
        await asyncio.gather(*waiting, return_exceptions=True)
        assert waiting[0].cancelled()
        assert waiting[1].exception() is None
        turns.give_back("third")
        async with asyncio.timeout(60), turns.one("fourth"):
            pass

    run(main())


def test_one_caller_holds_no_more_places_than_it_may() -> None:
    async def main() -> None:
        turns = FairQueue(3, 10, each_max=1)
        await turns.take("greedy")
        waiting = asyncio.create_task(turns.take("greedy"))
        await asyncio.sleep(0)
        await turns.take("other")
        await turns.take("")
        assert not waiting.done()
        turns.give_back("other")
        await asyncio.sleep(0)
        assert not waiting.done()
        turns.give_back("greedy")
        await waiting

    run(main())


@settings(deadline=None, print_blob=True)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=20), st.integers(1, 3))
def test_no_place_is_lost_and_none_is_given_twice(asked: list[tuple[str, int, bool]], places: int) -> None:
    """Callers give up in any number and at any time."""

    async def main() -> None:
        turns, inside = FairQueue(places, 100), 0

        async def ask(who: str, steps: int) -> None:
            nonlocal inside
            async with turns.one(who):
                inside += 1
                try:
                    assert inside <= places
                    for _ in range(steps):
                        await asyncio.sleep(0)
                finally:
                    inside -= 1

        tasks = list[asyncio.Task[None]]()
        for who, steps, gives_up in asked:
            tasks.append(asyncio.create_task(ask(who, steps)))
            for _ in range(steps):
                await asyncio.sleep(0)
            if gives_up:
                tasks[len(tasks) // 2].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        assert inside == 0
        holding = [turns.one("z") for _ in range(places)]
        async with asyncio.timeout(60):
            for turn in holding:
                await turn.__aenter__()

    run(main())


def test_one_caller_does_not_take_all_threads_that_check_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that gives up and asks again: a check that has begun keeps its thread until it ends."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def held(text: str, resolve: Resolve, rows_max: int) -> Checked:
        if "slow" in text:
            begun.release()
            assert go_on.wait(60)
        return check(text, resolve, rows_max)

    async def main() -> None:
        queries = Queries({}, SETTINGS)
        greedy, other = Caller("greedy", ALL), Caller("other", ALL)
        asked = [asyncio.create_task(queries.plan("SELECT 1 AS slow", greedy))]
        await until(lambda: begun.acquire(blocking=False))
        asked[0].cancel()
        asked += [asyncio.create_task(queries.plan("SELECT 1 AS slow", greedy)) for _ in range(2)]
        async with asyncio.timeout(60):
            assert (await queries.plan("SELECT 1", other)).checked.reads == ()
        assert not begun.acquire(blocking=False)
        go_on.set()
        await asyncio.gather(*asked, return_exceptions=True)
        queries.close()

    monkeypatch.setattr("penstock.serve.query.queries.check", held)
    run(main())


def test_a_query_that_is_given_up_while_its_process_starts_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel is closed too: an open one is a warning, and so a failure."""
    spawn, begun, go_on = pool._spawn, threading.Event(), threading.Event()
    spawned: list[subprocess.Popen[bytes]] = []

    def held(theirs: socket.socket, settings: Settings) -> subprocess.Popen[bytes]:
        begun.set()
        assert go_on.wait(60)
        spawned.append(spawn(theirs, settings))
        return spawned[0]

    async def main() -> None:
        starting = asyncio.create_task(pool.QueryWorker.start(Settings()))
        await until(begun.is_set)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        go_on.set()
        await until(lambda: bool(spawned) and spawned[0].returncode is not None)

    monkeypatch.setattr(pool, "_spawn", held)
    run(main())
    gc.collect()
