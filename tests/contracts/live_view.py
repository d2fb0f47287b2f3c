"""Promises of every live view: `LiveViewContract`, inherited by the tests of each implementation, fakes included."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from penstock.core.contracts import LiveView, ViewChange, ViewSnapshot

DEADLINE_S = 30.0
SOON_S = 0.05
KEPT = 5
"""Changes that the view under test retains."""
Rows = dict[str, int]


class ViewHome(Protocol):
    """A live view of rows with a key `k` and a number `v`, and its writer."""

    @property
    def view(self) -> LiveView:
        """The view under test."""

    def write(self, upserts: Mapping[str, int], deletes: Sequence[str] = ()) -> None:
        """Make one change. The view may show it later; the keys to delete are among its rows."""

    async def shown(self) -> None:
        """Return when the view shows all changes."""

    async def recreate(self) -> None:
        """Recreate the view without rows; return when it shows that."""


OpenView = Callable[[], AbstractAsyncContextManager[ViewHome]]
Check = Callable[[ViewHome], Awaitable[None]]


def held(snapshot: ViewSnapshot) -> Rows:
    return {row["k"]: row["v"] for row in map(json.loads, snapshot.rows)}


def fold(rows: Rows, changes: Sequence[ViewChange]) -> Rows:
    """The rows of a reader that had `rows` and then got these changes; `before`, where it is there, must fit."""
    rows = dict(rows)
    for change in changes:
        data = json.loads(change.data)
        if change.before is not None:
            before = [None if row is None else json.loads(row)["v"] for row in change.before]
            assert before == [rows.get(row["k"]) for row in [*data["upserts"], *data["deletes"]]]
        rows = {key: value for key, value in rows.items() if {"k": key} not in data["deletes"]}
        rows |= {row["k"]: row["v"] for row in data["upserts"]}
    return rows


def versions(changes: Sequence[ViewChange] | None) -> list[int] | None:
    return None if changes is None else [change.version for change in changes]


class LiveViewContract:
    """Promises of every `LiveView`. Inherit this and define the fixture `open_home`."""

    @pytest.fixture
    def open_home(self) -> OpenView:
        """Opens a view without rows that retains `KEPT` changes."""
        raise NotImplementedError

    @pytest.fixture
    def run(self, open_home: OpenView) -> Callable[[Check], None]:
        async def checked(check: Check) -> None:
            async with asyncio.timeout(DEADLINE_S), open_home() as home:
                await check(home)

        return lambda check: asyncio.run(checked(check))

    def test_a_new_view_is_empty_at_version_0(self, run: Callable[[Check], None]) -> None:
        async def check(home: ViewHome) -> None:
            assert home.view.version == 0
            assert (home.view.snapshot().version, held(home.view.snapshot())) == (0, {})
            assert versions(home.view.changes(0, 10)) == []

        run(check)

    def test_a_snapshot_has_the_rows_of_its_version_in_key_order(self, run: Callable[[Check], None]) -> None:
        async def check(home: ViewHome) -> None:
            home.write({"c": 1, "a": 2})
            home.write({"b": 3})
            home.write({"d": 4}, ["a"])
            await home.shown()
            assert home.view.version == home.view.snapshot().version == 3
            assert list(held(home.view.snapshot()).items()) == [("b", 3), ("c", 1), ("d", 4)]
            assert home.view.schema is not None
            assert home.view.schema.names == ["k", "v"]

        run(check)

    def test_a_snapshot_that_was_handed_out_never_changes(self, run: Callable[[Check], None]) -> None:
        async def check(home: ViewHome) -> None:
            home.write({"a": 1, "b": 1})
            await home.shown()
            old = home.view.snapshot()
            home.write({"a": 2}, ["b"])
            await home.shown()
            assert (old.version, held(old)) == (1, {"a": 1, "b": 1})
            assert held(home.view.snapshot()) == {"a": 2}

        run(check)

    def test_changes_come_in_order_or_none_if_some_are_no_longer_kept(self, run: Callable[[Check], None]) -> None:
        async def check(home: ViewHome) -> None:
            last = KEPT + 7
            for number in range(last):
                home.write({"a": number})
            await home.shown()
            assert home.view.version == last
            for after in range(-1, last + 2):
                for limit in (1, 3, last):
                    changes = versions(home.view.changes(after, limit))
                    if after < last - KEPT or after > last:
                        assert changes is None, (after, limit)
                    else:
                        assert changes is not None
                        assert changes == list(range(after + 1, min(after + limit, last) + 1)), (after, limit)

        run(check)

    def test_a_snapshot_and_the_changes_after_it_lead_to_every_later_snapshot(
        self, run: Callable[[Check], None]
    ) -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)

        async def check(home: ViewHome) -> None:
            rows, version = held(home.view.snapshot()), home.view.version
            for step in range(60):
                present = sorted(held(home.view.snapshot()))
                gone = chance.sample(present, min(len(present), chance.randrange(3)))
                upserts = {key: step for key in chance.sample("abcdef", 3) if key not in gone}
                home.write(upserts, gone)
                await home.shown()
                if chance.random() < 0.6:
                    changes = home.view.changes(version, KEPT + step)
                    snapshot = home.view.snapshot()
                    rows = held(snapshot) if changes is None else fold(rows, changes)
                    assert rows == held(snapshot)
                    version = snapshot.version

        run(check)

    def test_waiting_returns_at_once_if_there_is_a_later_version(self, run: Callable[[Check], None]) -> None:
        async def check(home: ViewHome) -> None:
            home.write({"a": 1})
            await home.shown()
            assert await home.view.wait(0, 10 * DEADLINE_S)

        run(check)

    def test_waiting_ends_with_a_change_after_the_version_and_not_with_an_earlier_one(
        self, run: Callable[[Check], None]
    ) -> None:
        async def check(home: ViewHome) -> None:
            waiting = asyncio.create_task(home.view.wait(1, 10 * DEADLINE_S))
            await asyncio.sleep(0)
            home.write({"a": 1})
            await home.shown()
            assert not (await asyncio.wait([waiting], timeout=SOON_S))[0]
            home.write({"a": 2})
            assert await waiting
            assert home.view.version == 2

        run(check)

    def test_waiting_ends_without_a_change_when_the_time_has_passed(self, run: Callable[[Check], None]) -> None:
        async def check(home: ViewHome) -> None:
            assert not await home.view.wait(home.view.version, SOON_S)
            assert not await home.view.wait(home.view.version, 0)

        run(check)

    def test_everyone_who_waits_is_woken_and_none_holds_a_thread(self, run: Callable[[Check], None]) -> None:
        async def check(home: ViewHome) -> None:
            threads = threading.active_count()
            waiting = [asyncio.create_task(home.view.wait(0, 10 * DEADLINE_S)) for _ in range(100)]
            await asyncio.sleep(0)
            assert threading.active_count() < threads + 50
            waiting.pop().cancel()
            home.write({"a": 1})
            assert all(await asyncio.gather(*waiting))

        run(check)

    def test_a_recreated_view_wakes_waiters_and_has_another_generation(self, run: Callable[[Check], None]) -> None:
        async def check(home: ViewHome) -> None:
            for number in range(3):
                home.write({f"old{number}": number})
            await home.shown()
            old, waiting = home.view.generation, asyncio.create_task(home.view.wait(3, 10 * DEADLINE_S))
            await asyncio.sleep(0)
            await home.recreate()
            assert await waiting
            assert home.view.generation != old
            assert (home.view.version, held(home.view.snapshot())) == (0, {})
            home.write({"new": 1})
            await home.shown()
            assert (home.view.version, held(home.view.snapshot())) == (1, {"new": 1})

        run(check)
