"""Promises of every `StoredWebhooks`: `StoredWebhooksContract`, inherited by the tests of each implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from penstock.core.errors import Damaged, PenstockError
from penstock.serve.webhooks.contracts import StoredWebhooks
from penstock.serve.webhooks.model import (
    ChannelProgress,
    DeadMessage,
    DeliveryAttempts,
    DeliveryTally,
    Hook,
    WebhookMessage,
    WebhookProgress,
    WebhookState,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OpenStore = Callable[[], StoredWebhooks]


def hook(id: str = "a", **changed: str) -> Hook:
    return Hook(id, "https://example.org", "stream", "orders", "ann", NOON, **changed)  # type: ignore[arg-type]


def message(number: int) -> WebhookMessage:
    return WebhookMessage(number, f"digest {number}", len(body(number)), b"key")


def body(number: int) -> bytes:
    return b'{"number":%d}' % number


def attempts(count: int) -> DeliveryAttempts:
    return DeliveryAttempts(count, NOON, NOON + timedelta(seconds=count), f"error {count}")


def dead(number: int) -> DeadMessage:
    return DeadMessage(NOON + timedelta(hours=number), 3, f"message {number} was given up")


async def append(store: StoredWebhooks, id: str, *numbers: int) -> None:
    """Append messages with these numbers; the position is after the last."""

    def make() -> tuple[Sequence[tuple[WebhookMessage, bytes]], ChannelProgress]:
        messages = [(message(number), body(number)) for number in numbers]
        return messages, ChannelProgress(f"after {numbers[-1]}", numbers[-1] + 1)

    assert await store.append(id, make) == [message(number) for number in numbers]


async def waiting(store: StoredWebhooks, id: str = "a") -> list[int]:
    return [message.number for message, _ in await store.read(lambda: store.waiting(id))]


async def dead_numbers(store: StoredWebhooks, id: str = "a") -> list[int]:
    return [message.number for message, _, _ in await store.read(lambda: store.dead(id, 0, 100))]


async def known(store: StoredWebhooks, id: str = "a") -> WebhookProgress:
    return await store.read(lambda: store.known(id))


class StoredWebhooksContract:
    """Promises of every `StoredWebhooks`. Inherit this and define the fixture `open_store`."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Opens one store, again each time it is called. Only one is open at a time."""
        raise NotImplementedError("each store has tests that inherit these")

    @asynccontextmanager
    async def opened(self, open_store: OpenStore, *numbers: int) -> AsyncIterator[StoredWebhooks]:
        """Open a new store with one webhook and these messages."""
        store = open_store()
        try:
            await store.register(hook(), ChannelProgress("start"))
            if numbers:
                await append(store, "a", *numbers)
            yield store
        finally:
            await store.close()

    async def reopened(self, open_store: OpenStore) -> tuple[WebhookProgress, list[int], list[int]]:
        """Return what a new store knows of the webhook."""
        store = open_store()
        try:
            return await known(store), await waiting(store), await dead_numbers(store)
        finally:
            await store.close()

    def test_a_new_store_has_no_webhooks(self, open_store: OpenStore) -> None:
        async def main() -> None:
            store = open_store()
            assert await store.read(store.hooks) == []
            with pytest.raises(Damaged):
                await known(store)
            await store.close()

        asyncio.run(main())

    def test_a_registration_and_its_changes_are_durable_and_a_removal_takes_everything(
        self, open_store: OpenStore
    ) -> None:
        async def main() -> None:
            async with self.opened(open_store, 1, 2) as store:
                await store.register(hook("b"), ChannelProgress("elsewhere", 7))
                await store.save(hook(state=WebhookState.PAUSED))
                await store.bury("a", 1, dead(1), 10)
            again = open_store()
            (one, _), (other, progress) = await again.read(again.hooks)
            assert (one.id, one.state, other.id) == ("a", WebhookState.PAUSED, "b")
            assert (other.state, progress) == (
                WebhookState.PENDING,
                WebhookProgress(ChannelProgress("elsewhere", 7)),
            )
            await again.remove("a")
            assert [one.id for one, _ in await again.read(again.hooks)] == ["b"]
            assert (await waiting(again), await dead_numbers(again)) == ([], [])
            await again.register(hook(), ChannelProgress("start"))
            assert await known(again) == WebhookProgress(ChannelProgress("start"))
            await again.close()

        asyncio.run(main())

    def test_messages_and_the_position_after_them_are_stored_together(self, open_store: OpenStore) -> None:
        async def main() -> None:
            async with self.opened(open_store, 1, 2) as store:
                assert await waiting(store) == [1, 2]
                assert [await store.body("a", number) for number in (1, 2)] == [body(1), body(2)]

                def fail() -> tuple[Sequence[tuple[WebhookMessage, bytes]], ChannelProgress]:
                    raise LookupError("cannot split")

                with pytest.raises(LookupError, match="cannot split"):
                    await store.append("a", fail)
                before = await known(store)
                assert before == WebhookProgress(ChannelProgress("after 2", 3), pending=2)
            assert await self.reopened(open_store) == (before, [1, 2], [])

        asyncio.run(main())

    def test_a_change_that_fails_leaves_the_others_alone(self, open_store: OpenStore) -> None:
        """Though they may be written together."""

        async def main() -> None:
            async with self.opened(open_store, 1, 2) as store:

                def fail() -> tuple[Sequence[tuple[WebhookMessage, bytes]], ChannelProgress]:
                    raise LookupError("cannot split")

                done, failed, last = await asyncio.gather(
                    store.done("a", 1, NOON),
                    store.append("a", fail),
                    store.failed("a", 2, attempts(1), NOON),
                    return_exceptions=True,
                )
                assert (done, type(failed), last) == (None, LookupError, None)
                assert await waiting(store) == [2]
            progress, left, _ = await self.reopened(open_store)
            assert (progress.tally.delivered, progress.tally.failures, left) == (1, 1, [2])

        asyncio.run(main())

    def test_changes_take_effect_in_the_order_of_the_calls_and_are_read_at_once(self, open_store: OpenStore) -> None:
        async def main() -> None:
            async with self.opened(open_store) as store:
                appended = [asyncio.create_task(append(store, "a", number)) for number in range(1, 20)]
                await asyncio.sleep(0)  # each has made its call
                assert await waiting(store) == [*range(1, 20)]
                await asyncio.gather(*appended)
                assert (await known(store)).progress == ChannelProgress("after 19", 20)

        asyncio.run(main())

    def test_a_delivered_message_goes_and_counts(self, open_store: OpenStore) -> None:
        async def main() -> None:
            async with self.opened(open_store, 1, 2) as store:
                await store.done("a", 1, NOON)
                with pytest.raises(Damaged):
                    await store.body("a", 1)
            progress, left, _ = await self.reopened(open_store)
            assert (progress.tally, progress.pending) == (DeliveryTally(delivered=1, last_success=NOON), 1)
            assert left == [2]

        asyncio.run(main())

    def test_a_failed_delivery_is_recorded_with_its_message(self, open_store: OpenStore) -> None:
        async def main() -> None:
            async with self.opened(open_store, 1, 2) as store:
                await store.failed("a", 1, attempts(1), NOON)
                await store.failed("a", 1, attempts(2), NOON)
            again = open_store()
            assert await again.read(lambda: again.waiting("a")) == [(message(1), attempts(2)), (message(2), None)]
            tally = DeliveryTally(failures=2, last_error="error 2", last_error_at=NOON)
            assert (await known(again)).tally == tally
            await again.close()

        asyncio.run(main())

    def test_dead_letters_are_kept_in_order_up_to_a_number(self, open_store: OpenStore) -> None:
        async def main() -> None:
            async with self.opened(open_store, 1, 2, 3, 4) as store:
                assert [await store.bury("a", number, dead(number), 2) for number in (1, 2, 3)] == [0, 0, 1]
                letters = await store.read(lambda: store.dead("a", 0, 100))
                assert letters == [(message(number), dead(number), body(number)) for number in (2, 3)]
                assert await store.read(lambda: store.dead("a", 2, 100)) == letters[1:]
                assert await store.read(lambda: store.dead("a", 0, 1)) == letters[:1]
            progress, left, given_up = await self.reopened(open_store)
            assert (progress.dead, progress.pending, progress.tally.forgotten) == (2, 1, 1)
            assert (progress.tally.failures, progress.tally.last_error) == (3, dead(3).error)
            assert (left, given_up) == ([4], [2, 3])

        asyncio.run(main())

    @pytest.mark.parametrize(("number", "revived"), [(None, [1, 2]), (2, [2]), (3, []), (99, [])])
    def test_a_dead_letter_is_sent_again_as_if_for_the_first_time(
        self, open_store: OpenStore, number: int | None, revived: list[int]
    ) -> None:
        async def main() -> None:
            async with self.opened(open_store, 1, 2, 3) as store:
                for letter in (1, 2):
                    await store.failed("a", letter, attempts(1), NOON)
                    await store.bury("a", letter, dead(letter), 10)
                assert await store.revive("a", number) == [message(letter) for letter in revived]
            again = open_store()
            expected = [(message(letter), None) for letter in (*revived, 3)]
            assert await again.read(lambda: again.waiting("a")) == expected
            assert await dead_numbers(again) == [letter for letter in (1, 2) if letter not in revived]
            assert [await again.body("a", letter) for letter in revived] == [body(letter) for letter in revived]
            await again.close()

        asyncio.run(main())

    def test_a_restart_from_a_cursor_drops_what_waits_keeps_dead_letters_and_reuses_no_number(
        self, open_store: OpenStore
    ) -> None:
        async def main() -> None:
            async with self.opened(open_store, 1, 2, 3) as store:
                await store.bury("a", 1, dead(1), 10)
                moved = await store.move("a", "elsewhere")
                assert (moved.progress, moved.dead, moved.pending) == (ChannelProgress("elsewhere", 4), 1, 0)
            assert await self.reopened(open_store) == (moved, [], [1])

        asyncio.run(main())

    def test_webhooks_do_not_see_each_other(self, open_store: OpenStore) -> None:
        async def main() -> None:
            async with self.opened(open_store, 1, 2) as store:
                await store.register(hook("b"), ChannelProgress("start"))
                await append(store, "b", 1, 2, 3)
                await store.bury("a", 1, dead(1), 0)
                await store.done("a", 2, NOON)
                await store.remove("a")
                assert (await waiting(store, "b"), await dead_numbers(store, "b")) == ([1, 2, 3], [])
                assert (await known(store, "b")).tally == DeliveryTally()

        asyncio.run(main())

    def test_closing_finishes_the_changes_that_were_requested(self, open_store: OpenStore) -> None:
        async def main() -> None:
            async with self.opened(open_store) as store:
                appending = asyncio.create_task(append(store, "a", 1, 2))
                await asyncio.sleep(0)  # it has made its call
            await appending
            assert (await self.reopened(open_store))[1] == [1, 2]

        asyncio.run(main())


def never_fatal(error: PenstockError) -> None:
    """The `fatal` of a store whose disk does not fail."""
    raise error
