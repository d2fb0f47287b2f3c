"""The cached results of filters over a view's changes: computed once, for the right version, and bounded."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.contracts import ViewChange
from penstock.core.cursor import view_cursor
from penstock.serve.channels import filter_cache as cuts_module
from penstock.serve.channels import view as view_module
from penstock.serve.channels.filter_cache import FilterCache, filter_changes
from penstock.serve.channels.row_filter import RowFilter, base_filter
from penstock.serve.channels.view import ViewChannel
from tests.clocks import until
from tests.serve.fakes import QUICK, FakeView, run

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def row_filter(where: str = "v > 0") -> RowFilter:
    return base_filter("x", SCHEMA, ("k",)).through(where, None)


class Held:
    """Work in a thread that ends on command."""

    def __init__(self, result: Any) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self._result = result

    def __call__(self) -> Any:
        self.begun.set()
        self.go.wait(60)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def test_what_is_kept_of_changes_that_nobody_sees_is_bounded() -> None:
    """A filter that lets nothing pass has a result for every version all the same."""

    async def main() -> None:
        cache: FilterCache[None] = FilterCache(lambda _: 0, bytes_max=100_000)
        for version in range(10_000):
            await cache.get(row_filter(), 1, version, 1, lambda: None)
        assert len(cache._results) <= 1_000

    run(main())


def test_what_is_made_for_one_who_goes_is_counted() -> None:
    async def main() -> None:
        cache: FilterCache[bytes] = FilterCache(len, bytes_max=100_000)
        held = Held(b"x" * 50_000)
        asking = asyncio.create_task(cache.get(row_filter(), 1, 1, 1_000, held))
        await until(held.begun.is_set)
        asking.cancel()
        held.go.set()
        await until(lambda: not cache._tasks)
        assert 50_000 <= cache.bytes <= 51_000
        for version in range(2, 100):
            await cache.get(row_filter(), 1, version, 1, lambda: b"y" * 50_000)
        assert 0 < cache.bytes <= 100_000
        assert len(cache._results) == 1

    run(main())


def test_what_fails_for_one_who_goes_is_tried_again_for_the_next() -> None:
    async def main() -> None:
        cache: FilterCache[bytes] = FilterCache(len)
        held = Held(RuntimeError("no thread to be had"))
        asking = asyncio.create_task(cache.get(row_filter(), 1, 1, 1_000, held))
        await until(held.begun.is_set)
        asking.cancel()
        held.go.set()
        await until(lambda: not cache._tasks)
        assert await cache.get(row_filter(), 1, 1, 1_000, lambda: b"good") == b"good"

    run(main())


def hold_the_first(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Run filters in threads, the first of which does not end before the event is set."""
    monkeypatch.setattr(cuts_module, "INLINE_ROWS", 0)
    monkeypatch.setattr(view_module, "INLINE_ROWS", 0, raising=False)
    go, first = threading.Event(), threading.Lock()

    def late(*given: Any) -> list[ViewChange]:
        if first.acquire(blocking=False):
            go.wait(60)
        return filter_changes(*given)

    monkeypatch.setattr(cuts_module, "filter_changes", late)
    monkeypatch.setattr(view_module, "filter_changes", late, raising=False)
    return go


def test_a_page_under_way_while_the_view_is_made_anew_mixes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    go = hold_the_first(monkeypatch)

    async def main() -> None:
        view = FakeView()
        seen = ViewChannel("x", view, QUICK, key=["k"]).through("v > 0", None)
        view.put({"a": 1})
        asking = asyncio.create_task(seen.page(view_cursor(1, 0), 10))
        await asyncio.sleep(0)
        view.remake()
        for number in range(3):
            view.put({f"new-{number}": 1})
        go.set()
        answer = await asking
        page = json.loads(answer.body + answer.end)
        assert "new" not in json.dumps(page.get("changes", [])), "changes of the new view under a cursor of the old"
        assert page["reset"]
        assert len(page["rows"]) == 3

    run(main())


def test_changes_of_an_earlier_making_are_not_kept_for_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    go = hold_the_first(monkeypatch)

    async def main() -> None:
        view = FakeView()
        seen = ViewChannel("x", view, QUICK, key=["k"]).through("v > 0", None)
        view.put({"a": 1})
        view.put({"b": 1})
        asking = asyncio.create_task(seen.page(view_cursor(1, 0), 10))
        await asyncio.sleep(0)
        view.remake()
        go.set()
        await asking
        view.put({"c": 1})
        view.put({"d": 1})
        page = json.loads((await seen.page(view_cursor(2, 1), 10)).body)
        assert [row["k"] for change in page["changes"] for row in change["upserts"]] == ["d"]

    run(main())


def test_many_filters_do_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row through one filter is processed in the event loop; through a thousand filters, in a thread."""
    in_loop: list[bool] = []

    def watched(*given: Any) -> list[ViewChange]:
        in_loop.append(threading.current_thread() is threading.main_thread())
        return filter_changes(*given)

    monkeypatch.setattr("penstock.serve.channels.broadcast.filter_changes", watched)

    async def main() -> None:
        view = FakeView()
        channel = ViewChannel("x", view, QUICK, key=["k"])
        followers = [channel.through(f"v > {number}", None).follow("latest") for number in range(100)]
        for follower in followers:
            assert (await anext(follower)).kind == "progress"
        view.put({"a": 1_000})
        for follower in followers:
            while (await anext(follower)).kind != "change":
                pass
            await follower.aclose()  # type: ignore[attr-defined]
        assert len(in_loop) == 100
        assert not any(in_loop)

    run(main())


def test_a_page_of_large_changes_is_bounded() -> None:
    """The rest comes with the next page."""

    async def main() -> None:
        view = FakeView()
        for number in range(30):
            view.put({str(number): "x" * 1_000_000})
        page = await ViewChannel("x", view, QUICK, key=["k"]).page(view_cursor(1, 0), 10_000)
        changes = json.loads(page.body)["changes"]
        assert 1 < len(changes) < 10
        assert page.cursor == view_cursor(1, len(changes))

    run(main())


def test_others_have_their_turn_while_a_page_looks_for_what_it_may_show() -> None:
    async def main() -> None:
        view = FakeView()
        for number in range(2_000):
            view.put({str(number % 7): number})
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        page = await ViewChannel("x", view, QUICK, key=["k"]).through("v < 0", None).page(view_cursor(1, 0), 20)
        counting.cancel()
        assert page.cursor == view_cursor(1, 2_000)
        assert turns >= 50

    run(main())


def test_snapshots_through_the_same_filter_are_the_same_bytes() -> None:
    """However many clients reconnect at once, large ones are put together once, and in a thread."""

    async def main() -> None:
        view = FakeView()
        view.put({str(number): number for number in range(1_000)})
        seen = ViewChannel("x", view, QUICK, key=["k"]).through("v >= 0", None)
        followers = [seen.follow(None) for _ in range(10)]
        snapshots = [await anext(follower) for follower in followers]
        assert len(json.loads(snapshots[0].data)["rows"]) == 1_000
        assert len({id(snapshot.data) for snapshot in snapshots}) == 1
        for follower in followers:
            await follower.aclose()  # type: ignore[attr-defined]

    run(main())
