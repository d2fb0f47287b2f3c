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

from penstock.access import Caller
from penstock.access.grants import ALL
from penstock.errors import Overloaded
from penstock.serve.channels.turns import Turns
from penstock.serve.query import pool
from penstock.serve.query.answers import Answer
from penstock.serve.query.queries import Queries
from penstock.serve.query.relations import ViewRelation
from penstock.settings import Settings
from tests.serve.fakes import run, until
from tests.serve.query.support import SETTINGS, Typed


def test_one_who_asks_much_does_not_hold_up_one_who_asks_once() -> None:
    async def main() -> None:
        turns, order = Turns(1, 20), list[str]()

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
    """What a query reads is read when it is its turn, and let go soon: otherwise all who wait would hold theirs."""

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


def _rows(answer: Answer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(answer.data + answer.json_end)["rows"]
    return found


def test_a_caller_may_fill_half_of_the_line_and_all_together_the_whole() -> None:
    async def main() -> None:
        turns = Turns(1, 4)
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
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await held.__aexit__(None, None, None)
        async with asyncio.timeout(60), turns.one("third"):
            pass

    run(main())


def test_one_who_gives_up_in_the_moment_of_its_turn_passes_it_on() -> None:
    async def main() -> None:
        turns = Turns(1, 4)
        async with turns.one("first"):
            waiting = asyncio.create_task(turns.one("second").__aenter__())
            await asyncio.sleep(0)
        waiting.cancel()  # the place is given to it, and it does not know yet
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        async with asyncio.timeout(60), turns.one("third"):
            pass

    run(main())


def test_one_who_gives_up_just_before_its_turn_does_not_take_the_place_along() -> None:
    async def main() -> None:
        turns = Turns(1, 4)
        async with turns.one("first"):
            waiting = [asyncio.create_task(turns.one(who).__aenter__()) for who in ("second", "third")]
            await asyncio.sleep(0)
            waiting[0].cancel()  # it does not know yet when the place is free
        await asyncio.gather(*waiting, return_exceptions=True)
        assert waiting[0].cancelled()
        assert waiting[1].exception() is None
        turns.give_back("third")
        async with asyncio.timeout(60), turns.one("fourth"):
            pass

    run(main())


def test_one_caller_holds_no_more_places_than_it_may() -> None:
    async def main() -> None:
        turns = Turns(3, 10, each_max=1)
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
    """Whoever gives up, and whenever."""

    async def main() -> None:
        turns, inside = Turns(places, 100), 0

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
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(each is None or isinstance(each, asyncio.CancelledError) for each in found)
        assert inside == 0
        holding = [turns.one("z") for _ in range(places)]
        async with asyncio.timeout(60):
            for each in holding:
                await each.__aenter__()

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
        starting = asyncio.create_task(pool.Worker.start(Settings()))
        await until(begun.is_set)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        go_on.set()
        await until(lambda: bool(spawned) and spawned[0].returncode is not None)

    monkeypatch.setattr(pool, "_spawn", held)
    run(main())
    gc.collect()
