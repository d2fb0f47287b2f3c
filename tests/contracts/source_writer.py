"""Promises of every `SourceWriter`: `SourceWriterContract`, inherited by the tests of each implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from penstock.core.contracts import SourceWriter
from penstock.core.schema import Event

DEADLINE_S = 60.0


class WriterHome(Protocol):
    """A stream of bytes, and the writers of its source, one after the other."""

    def open(self) -> AbstractAsyncContextManager[SourceWriter]:
        """Open the source's writer, as a process does that is started."""

    def events(self) -> Sequence[bytes]:
        """Return the durable events, in order; dead letters are not events."""


def state(home: WriterHome, writer: SourceWriter) -> tuple[str | None, list[bytes]]:
    return writer.mark, list(home.events())


Run = Callable[[Callable[[], Awaitable[None]]], None]


class SourceWriterContract:
    """Promises of every `SourceWriter`. Inherit this and define the fixture `home`."""

    @pytest.fixture
    def home(self) -> WriterHome:
        raise NotImplementedError

    @pytest.fixture
    def run(self) -> Run:
        async def bounded(check: Callable[[], Awaitable[None]]) -> None:
            async with asyncio.timeout(DEADLINE_S):
                await check()

        return lambda check: asyncio.run(bounded(check))

    def test_it_names_the_class_of_its_events_and_their_largest_size(self, home: WriterHome, run: Run) -> None:
        async def check() -> None:
            async with home.open() as writer:
                assert issubclass(writer.event, Event)
                assert writer.event_bytes_max > 0

        run(check)

    def test_a_mark_is_durable_with_its_event_and_found_after_a_restart(self, home: WriterHome, run: Run) -> None:
        async def check() -> None:
            async with home.open() as writer:
                assert writer.mark is None
                await (await writer.put(b"one", "1"))
                assert state(home, writer) == ("1", [b"one"])
                await (await writer.put(b"two"))
                assert state(home, writer) == ("1", [b"one", b"two"])
                await (await writer.note("3"))
                assert state(home, writer) == ("3", [b"one", b"two"])
            async with home.open() as again:
                assert state(home, again) == ("3", [b"one", b"two"])

        run(check)

    def test_of_events_put_together_all_are_kept_in_order_and_the_last_mark_counts(
        self, home: WriterHome, run: Run
    ) -> None:
        async def check() -> None:
            async with home.open() as writer:
                for number in range(5):
                    durable = await writer.put(b"event %d" % number, str(number))
                await durable
                assert list(home.events()) == [b"event %d" % number for number in range(5)]
                assert writer.mark == "4"

        run(check)

    def test_a_mark_passes_a_dead_letter(self, home: WriterHome, run: Run) -> None:
        async def check() -> None:
            async with home.open() as writer:
                await (await writer.reject(b"bad", "it is not one", "1"))
                assert state(home, writer) == ("1", [])

        run(check)

    def test_what_was_taken_is_durable_once_it_is_settled(self, home: WriterHome, run: Run) -> None:
        async def check() -> None:
            async with home.open() as writer:
                await writer.settle()
                futures = [
                    await writer.put(b"one", "1"),
                    await writer.reject(b"bad", "it is not one"),
                    await writer.note("2"),
                ]
                await writer.settle()
                assert state(home, writer) == ("2", [b"one"])
                await asyncio.wait(futures)

        run(check)

    def test_while_there_is_room_no_other_task_runs(self, home: WriterHome, run: Run) -> None:
        async def check() -> None:
            ran: list[bool] = []
            async with home.open() as writer:
                asyncio.get_running_loop().call_soon(ran.append, True)
                for number in range(5):
                    await writer.put(b"event", str(number))
                assert ran == []
                await writer.settle()

        run(check)

    def test_who_stops_waiting_for_an_event_does_not_take_it_back(self, home: WriterHome, run: Run) -> None:
        async def check() -> None:
            async with home.open() as writer:
                durable = await writer.put(b"one", "1")
                await asyncio.wait([durable], timeout=0)
                await writer.put(b"two", "2")
                await writer.settle()
                assert state(home, writer) == ("2", [b"one", b"two"])

        run(check)
