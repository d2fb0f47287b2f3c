"""A view's channel: rows, changes and followers."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.contracts import Channel, Delivery, ViewChange
from penstock.core.cursor import stream_cursor, view_cursor
from penstock.core.settings import Settings
from penstock.serve.channels import broadcast as front_module
from penstock.serve.channels import view as view_module
from penstock.serve.channels.filter_cache import FilterInput, filter_changes
from penstock.serve.channels.view import ViewChannel, merge
from penstock.serve.connections import following
from tests.contracts.channel import FAR, ChangeChannelContract, ChangeChannelHome, OpenChannel
from tests.serve.fakes import FakeView, body, run

CALM = Settings(heartbeat_s=600)


def channel(view: FakeView, settings: Settings = CALM) -> ViewChannel:
    return ViewChannel("v", view, settings, key=["k"])


async def page(source: ViewChannel, since: str | None = None, limit: int = 100) -> Any:
    answer = await source.page(since, limit)
    return json.loads(answer.body + answer.end)


def fold(rows: dict[str, Any], delivery: Delivery) -> dict[str, Any]:
    """Return the rows of a client after a delivery."""
    data = body(delivery)
    if delivery.kind == "reset":
        return {}
    if delivery.kind == "snapshot":
        return {row["k"]: row["v"] for row in data["rows"]}
    if delivery.kind == "change":
        kept = {key: value for key, value in rows.items() if key not in {row["k"] for row in data["deletes"]}}
        return kept | {row["k"]: row["v"] for row in data["upserts"]}
    return rows


def held(view: FakeView) -> dict[str, Any]:
    return {key: json.loads(row)["v"] for key, row in view.rows.items()}


class NumbersInView:
    """A view with a row for each number, and what a channel test does with it."""

    column, foreign_cursor = "v", stream_cursor(1, {0: 0})

    def __init__(self, heartbeat_s: float, where: str | None) -> None:
        self._view = FakeView()
        source = channel(self._view, Settings(heartbeat_s=heartbeat_s, buffered_changes=FAR))
        self.channel: Channel = source if where is None else source.through(where, None)

    @property
    def reads(self) -> int:
        return self._view.reads

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self._view.put({f"k{number:05}": number})

    def kept(self) -> list[int]:
        return sorted(held(self._view).values())

    def trim(self) -> None:
        self._view.trim()

    def recreate(self) -> None:
        self._view.remake()


class TestViewChannel(ChangeChannelContract):
    @pytest.fixture(params=[None, "v >= 0"], ids=["whole", "filtered"])
    def open_home(self, request: pytest.FixtureRequest) -> OpenChannel:
        def opened(heartbeat_s: float) -> ChangeChannelHome:
            return NumbersInView(heartbeat_s, request.param)

        return opened


def test_a_page_has_the_rows_and_where_they_stand() -> None:
    """Rows come in the view's order, up to the limit, with a cursor that gives the changes after them."""

    async def main() -> None:
        view = FakeView()
        view.put({"a": 1, "b": 2})
        answer = await page(channel(view), limit=1)
        assert answer["rows"] == [{"k": "a", "v": 1}]
        assert answer["truncated"] is True
        assert "truncated" not in await page(channel(view), limit=2)
        assert await page(channel(view), answer["cursor"]) == {"changes": [], "cursor": answer["cursor"]}
        view.put({"c": 3}, deletes=["a"])
        view.put({"c": 4})
        view.put({"c": 5})
        after = await page(channel(view), answer["cursor"], limit=2)
        assert after["changes"] == [
            {"upserts": [{"k": "c", "v": 3}], "deletes": [{"k": "a"}]},
            {"upserts": [{"k": "c", "v": 4}], "deletes": []},
        ]
        rest = await page(channel(view), after["cursor"])
        assert rest["changes"] == [{"upserts": [{"k": "c", "v": 5}], "deletes": []}]
        assert (await page(channel(view), "latest"))["cursor"] == rest["cursor"]

    run(main())


@pytest.mark.parametrize("cursor", [view_cursor(1, 99), view_cursor(1, -5)])
def test_a_page_after_a_position_that_never_was_has_all_rows_and_says_so(cursor: str) -> None:
    """From the future, or before the beginning: the rows, with `reset`."""

    async def main() -> None:
        view = FakeView(kept=2)
        for number in range(5):
            view.put({"a": number})
        answer = await page(channel(view), cursor)
        assert answer["reset"] is True
        assert answer["rows"] == [{"k": "a", "v": 4}]

    run(main())


def test_a_follower_gets_a_snapshot_and_then_each_version_once() -> None:
    """One change a version, with the cursor of that version."""

    async def main() -> None:
        view = FakeView()
        view.put({"a": 1})
        for since in (None, "earliest"):
            async with following(channel(view), since) as deliveries:
                first = await anext(deliveries)
                assert (first.kind, body(first)["rows"][0]) == ("snapshot", {"k": "a", "v": 1})
                for number in range(3):
                    view.put({"b": number})
                for number in range(3):
                    delivery = await anext(deliveries)
                    assert body(delivery)["upserts"] == [{"k": "b", "v": number}]
                    assert delivery.cursor == view_cursor(1, view.version - 2 + number)
                view.put({}, deletes=["b"])
                await anext(deliveries)

    run(main())


def test_a_follower_from_latest_or_from_a_cursor_gets_changes_only() -> None:
    """There is no snapshot for a client with a position; a progress mark comes at once if there is nothing else."""

    async def main() -> None:
        view = FakeView()
        view.put({"a": 1})
        async with following(channel(view), "latest") as deliveries:
            first = await anext(deliveries)
            assert (first.kind, first.cursor) == ("progress", view_cursor(1, 1))
            view.put({"a": 2})
            assert (await anext(deliveries)).cursor == view_cursor(1, 2)
        async with following(channel(view), view_cursor(1, 1)) as deliveries:
            assert body(await anext(deliveries))["upserts"] == [{"k": "a", "v": 2}]
        async with following(channel(view), view_cursor(1, 2)) as deliveries:
            assert (await anext(deliveries)).kind == "progress"

    run(main())


def test_a_follower_whose_position_is_gone_gets_reset_and_snapshot() -> None:
    """A position that was trimmed or of another generation gives `reset` with a reason, then everything."""

    async def main() -> None:
        view = FakeView(kept=2)
        for number in range(5):
            view.put({"a": number})
        for cursor in (view_cursor(1, 1), view_cursor(7, 4), view_cursor(1, 50)):
            async with following(channel(view), cursor) as deliveries:
                reset, snapshot = await anext(deliveries), await anext(deliveries)
                assert (reset.kind, snapshot.kind) == ("reset", "snapshot")
                assert body(reset)["reason"]
                assert fold({}, snapshot) == {"a": 4}

    run(main())


def test_a_view_made_anew_resets_its_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower of the file that did not exist yet, or of an earlier one, starts again with the new one."""
    monkeypatch.setattr(front_module, "CHECK_S", 0.01)

    async def main() -> None:
        view = FakeView()
        view.generation = 0
        async with following(channel(view), None) as deliveries:
            assert fold({}, await anext(deliveries)) == {}
            view.generation = 1
            assert [(await anext(deliveries)).kind for _ in range(2)] == ["reset", "snapshot"]
            view.put({"a": 1})
            assert (await anext(deliveries)).kind == "change"
            view.remake()
            view.put({"z": 1})
            assert (await anext(deliveries)).kind == "reset"
            assert fold({}, await anext(deliveries)) == {"z": 1}

    run(main())


def test_a_snapshot_is_encoded_once_for_all_who_ask_at_one_version() -> None:
    """Two followers of the same version get the same bytes; a new version is encoded again."""

    async def main() -> None:
        view = FakeView()
        view.put({"a": 1})
        source = channel(view)

        async def snapshot() -> Delivery:
            async with following(source, None) as deliveries:
                return await anext(deliveries)

        first, second = await snapshot(), await snapshot()
        assert first.data is second.data
        view.put({"a": 2})
        assert body(await snapshot())["rows"] == [{"k": "a", "v": 2}]

    run(main())


def test_a_follower_far_behind_is_told_once_and_gets_merged_changes() -> None:
    """There is one `stall` with the lag, then few changes with the latest value of each key, then one a version
    again."""

    async def main() -> None:
        view = FakeView()
        async with following(channel(view, replace(CALM, buffered_changes=10)), None) as deliveries:
            rows = fold({}, await anext(deliveries))
            for number in range(100):
                view.put({f"k{number % 3}": number}, deletes=[f"k{(number + 1) % 3}"])
            kinds: list[str] = []
            while rows != held(view) or len(kinds) < 2:
                delivery = await anext(deliveries)
                kinds.append(delivery.kind)
                rows = fold(rows, delivery)
                if delivery.kind == "stall":
                    assert body(delivery) == {"behind": 100}
            assert kinds[0] == "stall"
            assert kinds.count("stall") == 1
            assert 2 <= kinds.count("change") <= 11
            assert delivery.cursor == view_cursor(1, 100)
            view.put({"a": 1})
            assert body(await anext(deliveries))["upserts"] == [{"k": "a", "v": 1}]

    run(main())


def test_merging_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader behind large changes gets them in more than one piece."""
    monkeypatch.setattr(view_module, "MERGE_BYTES_MAX", 100)

    async def main() -> None:
        view = FakeView()
        async with following(channel(view, replace(CALM, buffered_changes=5)), None) as deliveries:
            rows = fold({}, await anext(deliveries))
            for number in range(20):
                view.put({str(number): "x" * 60})
            while rows != held(view):
                delivery = await anext(deliveries)
                assert len(delivery.data) < 200
                rows = fold(rows, delivery)

    run(main())


steps = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9), max_size=3), st.sets(st.sampled_from("efa"))),
    min_size=1,
    max_size=12,
)


@given(steps)
def test_a_merged_change_has_the_effect_of_all(plan: list[tuple[dict[str, int], set[str]]]) -> None:
    """Applying the merged change gives the same as applying each in turn, and a key is in it once."""

    async def main() -> None:
        view = FakeView()
        for upserts, deletes in plan:
            view.put({key: value for key, value in upserts.items() if key not in deletes}, sorted(deletes))
        changes = view.changes(0, len(plan))
        assert changes is not None
        merged = merge(changes, ("k",))
        assert fold({}, Delivery("change", merged, "")) == held(view)
        data = json.loads(merged)
        keys = [row["k"] for row in [*data["upserts"], *data["deletes"]]]
        assert len(keys) == len(set(keys))

    run(main())


@pytest.mark.parametrize("seed", random.sample(range(10**6), 5))
def test_a_client_that_comes_and_goes_always_ends_with_the_view(seed: int) -> None:
    """Changes, trims and re-creations are random; a client that resumes at random has the view's rows in the end."""
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def main() -> None:
        view = FakeView(kept=20)
        source = channel(view, Settings(heartbeat_s=0.001, buffered_changes=6))
        rows: dict[str, Any] = {}
        cursor = None
        for _ in range(60):
            for _ in range(chance.choice([0, 1, 2, 9, 30])):
                view.put({chance.choice("abcdef"): chance.random()}, deletes=chance.sample("gh", chance.randrange(2)))
            if chance.random() < 0.05:
                view.remake()
            async with following(source, cursor) as deliveries:
                for _ in range(chance.randrange(1, 5)):
                    delivery = await anext(deliveries)
                    rows, cursor = fold(rows, delivery), delivery.cursor
                    if cursor == view_cursor(view.generation, view.version) and delivery.kind != "reset":
                        assert rows == held(view)
        async with following(source, cursor) as deliveries:
            while rows != held(view):
                rows = fold(rows, await anext(deliveries))

    run(main())


@pytest.mark.parametrize("remembers", [True, False])
def test_one_with_limited_sight_never_hears_of_other_rows(remembers: bool) -> None:
    """A row that was hidden before and is hidden now is not deleted for it. If that is unknown, it
    gets a `reset` and the visible rows."""

    async def main() -> None:
        view = FakeView(remembers=remembers)
        view.put({"mine": 1, "theirs": 10})
        source = channel(view).limited("v < claim('limit')", {"limit": 5})
        rows: dict[str, Any] = {}
        async with following(source, None) as deliveries:
            first = await anext(deliveries)
            rows = fold(rows, first)
            view.put({"theirs": 11})
            view.put({"more": 2}, ["theirs"])
            view.put({"mine": 20})
            view.put({"end": 3})
            while "end" not in rows:
                delivery = await anext(deliveries)
                assert b"theirs" not in delivery.data
                assert delivery.kind in (("change",) if remembers else ("change", "reset", "snapshot"))
                rows = fold(rows, delivery)
        assert rows == {"more": 2, "end": 3}
        answer = await page(source, first.cursor)
        assert b"theirs" not in json.dumps(answer).encode()
        assert ("reset" in answer) is not remembers

    run(main())


def test_a_selection_that_has_not_changed_is_not_told() -> None:
    """A reader of one column gets nothing when another changes."""

    async def main() -> None:
        view = FakeView()
        view.put({"a": 10})
        source = channel(view).through(None, "v / 10 AS tens")
        async with following(source, None) as deliveries:
            assert body(await anext(deliveries))["rows"] == [{"k": "a", "tens": 1.0}]
            view.put({"a": 10})
            view.put({"a": 20})
            assert body(await anext(deliveries))["upserts"] == [{"k": "a", "tens": 2.0}]

    run(main())


def test_those_with_the_same_filter_share_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many follow through a filter, each change is filtered once."""
    looks: list[int] = []

    def counted(offered: FilterInput, *others: Any) -> list[ViewChange]:
        looks.extend(change.version for change in offered.changes)
        return filter_changes(offered, *others)

    monkeypatch.setattr(front_module, "filter_changes", counted)

    async def main() -> None:
        view = FakeView()
        source = channel(view)

        async def follow() -> None:
            async with following(source.through("v > 1", None), "latest") as deliveries:
                await anext(deliveries)
                for number in (2, 3):
                    assert body(await anext(deliveries))["upserts"] == [{"k": "a", "v": number}]

        readers = [asyncio.create_task(follow()) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for number in (1, 2, 3):
            view.put({"a": number})
        await asyncio.gather(*readers)
        assert looks == [1, 2, 3]

    run(main())
