"""Promises of every `Channel`, inherited by the tests of each implementation: `ChannelContract` by all of them,
`ChangeChannelContract` by those of streams and views, which deliver each change and not only the latest result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, ClassVar, Protocol

import pytest

from penstock.core.contracts import Channel, Delivery
from penstock.core.errors import BadCursor, BadExpression
from penstock.serve.connections import following

DEADLINE_S = 60.0
SOON_S = 0.05
NEVER_S = 600.0
FAR = 20
"""A follower further behind than this is far behind: it gets a `stall`."""


class ChannelHome(Protocol):
    """A channel of numbers, in a column, and their writer."""

    @property
    def channel(self) -> Channel:
        """The channel under test."""

    @property
    def column(self) -> str:
        """The name of the column with the numbers."""

    @property
    def foreign_cursor(self) -> str:
        """A cursor of a channel of another kind."""

    def write(self, *numbers: int) -> None:
        """Write numbers that were not written before, each in a change of its own."""


class ChangeChannelHome(ChannelHome, Protocol):
    """A channel of numbers that has a log of changes, which can be trimmed."""

    @property
    def reads(self) -> int:
        """Return how often the channel has read events, rows or changes."""

    def kept(self) -> list[int]:
        """The numbers that a client gets who has none, sorted."""

    def trim(self) -> None:
        """Let go of everything that is not needed by a client that has all of it."""

    def recreate(self) -> None:
        """Recreate the stream or view, without numbers."""


OpenChannel = Callable[..., ChannelHome]
Check = Callable[[ChannelHome], Awaitable[None]]
Run = Callable[..., None]


def numbers(body: bytes, column: str) -> list[int]:
    """The numbers of a delivery or page, in its order."""
    data: dict[str, Any] = json.loads(body)
    changed = [row for change in data.get("changes", [data]) for row in change.get("upserts", ())]
    return [row[column] for row in [*data.get("events", ()), *data.get("rows", ()), *changed]]


class Client:
    """A client that has heard some deliveries: the numbers that it holds, and the kinds of what it heard."""

    def __init__(self, column: str, held: Sequence[int] = ()) -> None:
        self._column = column
        self.held, self.kinds = list(held), list[str]()
        self.cursor = ""

    def hear(self, delivery: Delivery) -> None:
        self.kinds.append(delivery.kind)
        self.cursor = delivery.cursor
        if delivery.kind in ("reset", "snapshot"):
            self.held = []
        if delivery.kind in ("snapshot", "change"):
            self.held += numbers(delivery.data, self._column)
        assert len(self.held) == len(set(self.held)), "something was delivered twice"

    async def hear_until(self, deliveries: AsyncIterator[Delivery], expected: Sequence[int]) -> None:
        while sorted(self.held) != list(expected):
            self.hear(await anext(deliveries))


async def page(home: ChannelHome, since: str | None = None, limit: int = 100, wait_s: float = 0) -> tuple[Any, str]:
    """The numbers of a page, sorted, and its cursor."""
    answer = await home.channel.page(since, limit, wait_s)
    whole = answer.body + answer.end
    return sorted(numbers(whole, home.column)), answer.cursor


async def all_pages(home: ChannelHome) -> list[int]:
    """Return the numbers of all pages from the first one on, sorted; a page may have fewer than there are."""
    held, cursor, more = list[int](), None, True
    while more:
        answer = await home.channel.page(cursor, 100)
        whole = answer.body + answer.end
        held, cursor, more = [*held, *numbers(whole, home.column)], answer.cursor, json.loads(whole).get("more")
    return sorted(held)


async def says_reset(home: ChannelHome, since: str) -> bool:
    answer = await home.channel.page(since, 100)
    return bool(json.loads(answer.body + answer.end).get("reset", False))


class ChannelContract:
    """Promises of every `Channel`. Inherit this, set `NEWS` and define the fixture `open_home`."""

    NEWS: ClassVar[str]
    """The kind of the deliveries that have something new."""

    @pytest.fixture
    def open_home(self) -> OpenChannel:
        """Opens an empty channel with this `heartbeat_s`, in the event loop of the test."""
        raise NotImplementedError

    @pytest.fixture
    def run(self, open_home: OpenChannel) -> Run:
        async def checked(check: Check, heartbeat_s: float) -> None:
            async with asyncio.timeout(DEADLINE_S):
                await check(open_home(heartbeat_s))

        def run(check: Check, heartbeat_s: float = NEVER_S) -> None:
            asyncio.run(checked(check, heartbeat_s))

        return run

    @pytest.mark.parametrize("since", [None, "earliest"])
    def test_a_page_has_what_there_is(self, run: Run, since: str | None) -> None:
        async def check(home: ChannelHome) -> None:
            home.write(1, 2, 3)
            assert (await page(home, since))[0] == [1, 2, 3]

        run(check)

    def test_a_page_waits_until_its_cursor_changes_or_its_time_has_passed(self, run: Run) -> None:
        async def check(home: ChannelHome) -> None:
            home.write(1)
            _, cursor = await page(home)
            assert (await page(home, cursor, wait_s=SOON_S))[1] == cursor
            waiting = asyncio.create_task(page(home, cursor, wait_s=NEVER_S))
            assert not (await asyncio.wait([waiting], timeout=SOON_S))[0]
            home.write(2)
            there, now = await waiting
            assert (2 in there, now != cursor) == (True, True)

        run(check)

    def test_the_last_page_has_all_if_there_are_fewer_than_its_limit(self, run: Run) -> None:
        async def check(home: ChannelHome) -> None:
            home.write(1, 2, 3)
            answer = await home.channel.last(10)
            assert sorted(numbers(answer.body + answer.end, home.column)) == [1, 2, 3]

        run(check)

    @pytest.mark.parametrize("cursor", ["", "nonsense", "LATEST", None])
    def test_what_is_no_cursor_of_this_channel_is_refused(self, run: Run, cursor: str | None) -> None:
        """Neither what is no cursor at all nor that of a channel of another kind."""

        async def check(home: ChannelHome) -> None:
            wrong = home.foreign_cursor if cursor is None else cursor
            with pytest.raises(BadCursor):
                await home.channel.page(wrong, 10)
            with pytest.raises(BadCursor):
                await anext(home.channel.follow(wrong))

        run(check)

    def test_a_follower_from_the_beginning_gets_what_there_is_and_then_what_comes(self, run: Run) -> None:
        async def check(home: ChannelHome) -> None:
            home.write(1, 2)
            client = Client(home.column)
            async with following(home.channel, "earliest") as deliveries:
                await client.hear_until(deliveries, [1, 2])
                for number in range(3, 8):
                    home.write(number)
                await client.hear_until(deliveries, range(1, 8))
            assert not {"reset", "stall"} & set(client.kinds)

        run(check)

    def test_a_follower_from_latest_hears_so_at_once_and_then_only_what_comes(self, run: Run) -> None:
        async def check(home: ChannelHome) -> None:
            home.write(1)
            client = Client(home.column, [1])
            async with following(home.channel, "latest") as deliveries:
                client.hear(await anext(deliveries))
                home.write(2)
                await client.hear_until(deliveries, [1, 2])
            assert client.kinds == ["progress", self.NEWS]

        run(check)

    def test_a_follower_that_comes_back_goes_on_where_it_was(self, run: Run) -> None:
        """At once, also if nothing has come since then. The cursor of a page is as good as that of a delivery."""

        async def check(home: ChannelHome) -> None:
            home.write(1)
            there, cursor = await page(home)
            client = Client(home.column, there)
            async with following(home.channel, cursor) as deliveries:
                client.hear(await anext(deliveries))
            assert (client.kinds, client.cursor) == (["progress"], cursor)
            for number in range(2, 12):
                home.write(number)
                async with following(home.channel, client.cursor) as deliveries:
                    await client.hear_until(deliveries, range(1, number + 1))
            assert set(client.kinds) == {"progress", self.NEWS}

        run(check)

    def test_a_slow_follower_delays_nobody_and_misses_nothing(self, run: Run) -> None:
        async def check(home: ChannelHome) -> None:
            slow, quick = Client(home.column), Client(home.column)
            async with following(home.channel, "latest") as later, following(home.channel, "latest") as deliveries:
                slow.hear(await anext(later))
                quick.hear(await anext(deliveries))
                for number in range(2 * FAR):
                    home.write(number)
                    await quick.hear_until(deliveries, range(number + 1))
                await slow.hear_until(later, range(2 * FAR))
                home.write(2 * FAR)
                await slow.hear_until(later, range(2 * FAR + 1))
            assert set(quick.kinds) == {"progress", self.NEWS}
            assert "reset" not in slow.kinds

        run(check)

    def test_silence_is_broken_by_progress_with_the_position_of_the_client(self, run: Run) -> None:
        async def check(home: ChannelHome) -> None:
            home.write(1)
            client = Client(home.column)
            async with following(home.channel, "earliest") as deliveries:
                await client.hear_until(deliveries, [1])
                cursor = client.cursor
                for _ in range(3):
                    client.hear(await anext(deliveries))
            assert (client.kinds[-3:], client.cursor) == (["progress"] * 3, cursor)

        run(check, SOON_S)

    def test_a_filter_that_does_not_fit_is_refused(self, run: Run) -> None:
        async def check(home: ChannelHome) -> None:
            for where in ("nothing > 1", f"{home.column} >"):
                with pytest.raises(BadExpression):
                    home.channel.through(where, None)
                with pytest.raises(BadExpression):
                    home.channel.limited(where, {})
                with pytest.raises(BadExpression):
                    home.channel.part(where, None)

        run(check)

    def test_a_named_caller_gets_the_same(self, run: Run) -> None:
        async def check(home: ChannelHome) -> None:
            home.write(1, 2, 3)
            answer, named = await home.channel.page(None, 10), await home.channel.asked_by("ann").page(None, 10)
            assert (named.body, named.cursor) == (answer.body, answer.cursor)

        run(check)


class ChangeChannelContract(ChannelContract):
    """Promises of every `Channel` that delivers each change. Inherit this and define the fixture `open_home`."""

    NEWS = "change"

    def test_the_cursor_of_a_page_leads_to_what_comes_after(self, run: Run) -> None:
        async def check(home: ChangeChannelHome) -> None:
            home.write(1, 2, 3)
            assert len((await page(home, limit=2))[0]) == 2
            _, cursor = await page(home)
            home.write(4)
            home.write(5)
            assert (await page(home, cursor))[0] == [4, 5]
            first, further = await page(home, cursor, limit=1)
            second, last = await page(home, further, limit=1)
            assert (first, second) == ([4], [5])
            assert (await page(home, last)) == ([], last)

        run(check)

    def test_the_page_of_latest_is_empty_with_the_cursor_of_now(self, run: Run) -> None:
        async def check(home: ChangeChannelHome) -> None:
            home.write(1, 2)
            there, cursor = await page(home, "latest")
            assert there == []
            home.write(3)
            assert (await page(home, cursor))[0] == [3]

        run(check)

    def test_a_page_that_waits_has_only_what_comes(self, run: Run) -> None:
        async def check(home: ChangeChannelHome) -> None:
            home.write(1)
            _, cursor = await page(home)
            assert await page(home, cursor, wait_s=SOON_S) == ([], cursor)
            waiting = asyncio.create_task(page(home, cursor, wait_s=NEVER_S))
            home.write(2)
            assert (await waiting)[0] == [2]

        run(check)

    def test_the_last_page_has_no_more_than_its_limit(self, run: Run) -> None:
        async def check(home: ChangeChannelHome) -> None:
            home.write(1, 2, 3)
            answer = await home.channel.last(2)
            assert len(numbers(answer.body + answer.end, home.column)) == 2

        run(check)

    def test_a_page_after_a_position_that_is_gone_has_what_is_kept_and_says_so(self, run: Run) -> None:
        async def check(home: ChangeChannelHome) -> None:
            home.write(1)
            _, before = await page(home)
            home.write(2)
            _, now = await page(home)
            assert not await says_reset(home, before)
            home.trim()
            home.write(3)
            assert await says_reset(home, before)
            assert (await page(home, before))[0] == home.kept()
            assert not await says_reset(home, now)
            home.recreate()
            home.write(4)
            assert await says_reset(home, now)
            assert (await page(home, now))[0] == home.kept() == [4]

        run(check)

    def test_a_follower_whose_position_is_gone_gets_a_reset_and_then_what_is_kept(self, run: Run) -> None:
        async def check(home: ChangeChannelHome) -> None:
            home.write(1)
            _, trimmed = await page(home)
            home.write(2)
            home.trim()
            home.write(3, 4)
            await self._require_reset(home, trimmed)
            home.recreate()
            home.write(5)
            await self._require_reset(home, trimmed)

        run(check)

    async def _require_reset(self, home: ChangeChannelHome, cursor: str) -> None:
        client = Client(home.column, [-1])
        async with following(home.channel, cursor) as deliveries:
            first = await anext(deliveries)
            client.hear(first)
            assert (first.kind, bool(json.loads(first.data)["reason"])) == ("reset", True)
            await client.hear_until(deliveries, home.kept())
        interrupted = Client(home.column)
        async with following(home.channel, first.cursor) as deliveries:  # it got no more than the reset
            await interrupted.hear_until(deliveries, home.kept())

    def test_a_follower_whose_stream_or_view_is_recreated_starts_over(self, run: Run) -> None:
        """Even if the new one has grown past the old position."""

        async def check(home: ChangeChannelHome) -> None:
            home.write(1, 2)
            client = Client(home.column)
            async with following(home.channel, "earliest") as deliveries:
                await client.hear_until(deliveries, [1, 2])
                home.recreate()
                home.write(*range(10, 15))
                await client.hear_until(deliveries, range(10, 15))
            assert client.kinds.count("reset") == 1

        run(check)

    def test_a_slow_follower_that_retention_overtakes_gets_a_reset_and_no_gap(self, run: Run) -> None:
        """So nothing was read ahead for it, and nothing was held."""

        async def check(home: ChangeChannelHome) -> None:
            client = Client(home.column)
            async with following(home.channel, "latest") as deliveries:
                client.hear(await anext(deliveries))
                home.write(1)
                await client.hear_until(deliveries, [1])
                home.write(*range(2, 3 * FAR))
                home.trim()
                home.write(3 * FAR)
                heard = len(client.kinds)
                await client.hear_until(deliveries, home.kept())
            after = [kind for kind in client.kinds[heard:] if kind not in ("progress", "stall")]
            assert after[0] == "reset"
            assert "reset" not in after[1:]

        run(check)

    def test_nothing_is_read_for_a_follower_that_does_not_ask(self, run: Run) -> None:
        async def check(home: ChangeChannelHome) -> None:
            _, start = await page(home)
            home.write(*range(FAR - 1))
            client = Client(home.column)
            async with following(home.channel, start) as deliveries:
                client.hear(await anext(deliveries))
                reads = home.reads
                for _ in range(1_000):
                    await asyncio.sleep(0)
                assert home.reads == reads
                await client.hear_until(deliveries, range(FAR - 1))
                assert home.reads > reads

        run(check)

    def test_a_follower_far_behind_is_told_once_and_misses_nothing(self, run: Run) -> None:
        """Another `stall` comes only after it has caught up."""

        async def check(home: ChangeChannelHome) -> None:
            _, start = await page(home)
            home.write(*range(2 * FAR))
            client = Client(home.column)
            async with following(home.channel, start) as deliveries:
                first = await anext(deliveries)
                client.hear(first)
                assert (first.kind, json.loads(first.data)) == ("stall", {"behind": 2 * FAR})
                await client.hear_until(deliveries, range(2 * FAR))
                home.write(2 * FAR)
                await client.hear_until(deliveries, range(2 * FAR + 1))
                assert client.kinds.count("stall") == 1
            home.write(*range(2 * FAR + 1, 4 * FAR + 1))
            async with following(home.channel, client.cursor) as deliveries:
                await client.hear_until(deliveries, range(4 * FAR + 1))
            assert client.kinds.count("stall") == 2
            assert "reset" not in client.kinds

        run(check)

    @pytest.mark.parametrize("limited", [False, True])
    def test_behind_a_filter_there_is_only_what_meets_it(self, run: Run, limited: bool) -> None:
        async def check(home: ChangeChannelHome) -> None:
            where = f"{home.column} % 2 = 0"
            seen = home.channel.limited(where, {}) if limited else home.channel.through(where, None)
            home.write(*range(10))
            answer = await seen.page(None, 100)
            assert sorted(numbers(answer.body + answer.end, home.column)) == [0, 2, 4, 6, 8]
            client = Client(home.column)
            async with following(seen, "earliest") as deliveries:
                await client.hear_until(deliveries, range(0, 10, 2))
                home.write(*range(10, 20))
                await client.hear_until(deliveries, range(0, 20, 2))
            assert "reset" not in client.kinds
            assert await all_pages(home) == list(range(20))

        run(check)
