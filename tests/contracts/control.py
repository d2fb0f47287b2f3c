"""Guarantees of every control channel: `ControlContract`, inherited by the tests of each implementation."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
import pytest

from penstock.control import (
    FORMAT,
    ControlChannel,
    DerivedViewStatus,
    Edition,
    Editions,
    EngineStatus,
    HandlerStatus,
    HealthStatus,
    Message,
    NodeStatus,
    ProcessStatus,
    StatusColumn,
    Successor,
    SupervisorStatus,
    ViewStatus,
    WindowTiming,
    encode,
)

DEADLINE_S = 30.0
SOON_S = 0.3
WHOLE = EngineStatus(
    epoch=3,
    state="ready",
    views={
        "sales": ViewStatus(
            node=NodeStatus(
                state="running",
                columns=(StatusColumn("shop", "string"),),
                batch_id=7,
                batch_ms=12.5,
                positions={"orders": {0: 5, 11: 2**47}},
            ),
            watermark=datetime(2024, 5, 1, 12, tzinfo=UTC),
            window_timings=(WindowTiming(60_000_000, 20_000_000, 5),),
        )
    },
    derived_views={"top": DerivedViewStatus(node=NodeStatus(state="failed", error="app.py:7: it waits"))},
    handlers={"totals": HandlerStatus(node=NodeStatus(state="starting"))},
    view_changed_at_us={"sales": 1_700_000_000_000_000},
)


def supervisor(restarts: int) -> SupervisorStatus:
    return SupervisorStatus(gateway=ProcessStatus(pid=1), engine=ProcessStatus(pid=2, restarts=restarts))


class ControlHome(Protocol):
    """The storage of the channel under test."""

    def open(self) -> ControlChannel:
        """Open it as another process would."""

    def write(self, kind: type[Message], data: bytes) -> None:
        """Write these bytes in place of a message, as another release or damage would."""

    def fill(self) -> None:
        """Leave no room for another message."""

    def ignored(self) -> list[str]:
        """Return the lines logged about messages that could not be understood."""


class ControlContract:
    """Promises of every `ControlChannel`. Inherit this and define the fixture `home`."""

    @pytest.fixture
    def home(self) -> ControlHome:
        raise NotImplementedError

    def test_nothing_is_there_before_the_first_message(self, home: ControlHome) -> None:
        assert home.open().latest(EngineStatus) is None
        assert home.ignored() == []

    def test_every_field_of_a_message_arrives_with_the_time_of_its_publication(self, home: ControlHome) -> None:
        before = datetime.now(UTC)
        assert home.open().publish(WHOLE)
        status = home.open().latest(EngineStatus)
        assert status is not None
        assert status.published_at is not None
        assert before <= status.published_at <= datetime.now(UTC)
        assert msgspec.structs.replace(status, published_at=None) == WHOLE

    def test_the_latest_message_of_a_kind_replaces_the_one_before_and_no_other_kind(self, home: ControlHome) -> None:
        """This holds for a reader that has read before, and for a new one."""
        channel, reader = home.open(), home.open()
        channel.publish(Successor(target="app.py"))
        for restarts in range(5):
            channel.publish(supervisor(restarts))
            for endpoint in (reader, home.open(), channel):
                status = endpoint.latest(SupervisorStatus)
                assert status is not None
                assert status.engine.restarts == restarts
        successor = reader.latest(Successor)
        assert successor is not None
        assert successor.target == "app.py"

    def test_a_message_that_was_withdrawn_is_gone_and_withdrawing_nothing_is_fine(self, home: ControlHome) -> None:
        channel, reader = home.open(), home.open()
        channel.publish(Successor(target="app.py"))
        assert reader.latest(Successor) is not None
        for _ in range(2):
            channel.withdraw(Successor)
            assert reader.latest(Successor) is None
        channel.publish(Successor(target="next.py"))
        assert reader.latest(Successor) is not None

    def test_a_message_that_found_no_room_leaves_the_one_before(self, home: ControlHome) -> None:
        channel = home.open()
        channel.publish(supervisor(1))
        home.fill()
        assert not channel.publish(supervisor(2))
        status = home.open().latest(SupervisorStatus)
        assert status is not None
        assert status.engine.restarts == 1

    @pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
    def test_a_torn_message_is_no_message_until_the_next_one(self, home: ControlHome, part: float) -> None:
        """It is logged once, however often it is read."""
        data, reader = encode(WHOLE), home.open()
        home.write(EngineStatus, data[: int(len(data) * part)])
        assert [reader.latest(EngineStatus) for _ in range(3)] == [None] * 3
        (line,) = home.ignored()
        assert "not a valid 'engine' message" in line
        home.open().publish(WHOLE)
        assert reader.latest(EngineStatus) is not None

    @pytest.mark.parametrize("data", [b"[]", b"null", b"{}", b'{"format": 1}', b'{"format": "1", "state": "ready"}'])
    def test_json_that_is_not_of_the_kind_is_no_message(self, home: ControlHome, data: bytes) -> None:
        home.write(EngineStatus, data)
        assert home.open().latest(EngineStatus) is None
        assert len(home.ignored()) == 1

    def test_a_newer_format_is_refused_with_one_line_that_says_so(self, home: ControlHome) -> None:
        """This holds even if all of its fields look like ours."""
        reader = home.open()
        home.write(EngineStatus, json.dumps(json.loads(encode(WHOLE)) | {"format": FORMAT + 1}).encode())
        assert [reader.latest(EngineStatus) for _ in range(3)] == [None] * 3
        (line,) = home.ignored()
        assert f"it has format {FORMAT + 1}, but this version of Penstock reads up to {FORMAT}" in line

    def test_unknown_fields_are_ignored_and_missing_ones_have_their_defaults(self, home: ControlHome) -> None:
        """The message is as from a later or an earlier release."""
        message: dict[str, Any] = {"format": FORMAT, "epoch": 1, "state": "ready", "mood": "good"}
        message["views"] = {"sales": {"node": {"state": "running", "colour": "blue"}, "more": [1]}}
        home.write(EngineStatus, json.dumps(message).encode())
        status = home.open().latest(EngineStatus)
        assert status is not None
        assert status.node("sales") == NodeStatus(state="running")
        assert (status.doing, status.handlers, status.published_at) == ("", {}, None)
        assert home.ignored() == []

    def test_a_waiter_that_has_seen_nothing_returns_at_once_if_there_is_a_message(self, home: ControlHome) -> None:
        home.open().publish(supervisor(1))

        async def run() -> None:
            async with asyncio.timeout(DEADLINE_S):
                editions = await home.open().wait({EngineStatus: None, SupervisorStatus: None}, float("inf"))
            assert editions.keys() == {EngineStatus, SupervisorStatus}
            assert editions[EngineStatus] is None
            assert editions[SupervisorStatus] is not None

        asyncio.run(run())

    def test_a_waiter_with_nothing_new_returns_what_it_has_seen_when_the_time_has_passed(
        self, home: ControlHome
    ) -> None:
        channel = home.open()
        channel.publish(supervisor(1))

        async def run() -> None:
            seen = await channel.wait({SupervisorStatus: None}, 0)
            channel.publish(HealthStatus(state="ready"))  # not the message that it waits for
            assert await channel.wait(seen, SOON_S) == seen

        asyncio.run(run())

    def test_a_waiter_wakes_for_an_equal_message_a_withdrawn_one_and_a_torn_one(self, home: ControlHome) -> None:
        channel, reader = home.open(), home.open()

        async def run() -> None:
            channel.publish(supervisor(1))
            seen = await reader.wait({SupervisorStatus: None}, DEADLINE_S)
            for change in (
                lambda: channel.publish(supervisor(1)),
                lambda: home.write(SupervisorStatus, b'{"form'),
                lambda: channel.withdraw(SupervisorStatus),
                lambda: channel.publish(supervisor(1)),
            ):
                change()
                again = await reader.wait(seen, DEADLINE_S)
                assert again != seen
                seen = again

        asyncio.run(run())

    def test_each_publication_is_an_edition_of_its_own_however_quickly_they_follow(self, home: ControlHome) -> None:
        channel, editions = home.open(), set[Edition]()

        async def run() -> None:
            for _ in range(300):
                channel.publish(supervisor(1))
                editions.update((await channel.wait({SupervisorStatus: None}, 0)).values())

        asyncio.run(run())
        assert len(editions) == 300

    def test_a_waiter_misses_no_last_message_of_another_thread(self, home: ControlHome) -> None:
        """However quickly messages follow each other, a reader that reads after each wait reaches the last one."""
        last = 200

        def publish() -> None:
            channel = home.open()
            for restarts in range(1, last + 1):
                assert channel.publish(supervisor(restarts))

        async def run() -> list[int]:
            seen: Editions = {SupervisorStatus: None}
            reader, read = home.open(), [0]
            async with asyncio.timeout(DEADLINE_S):
                while read[-1] < last:
                    seen = await reader.wait(seen, float("inf"))
                    status = reader.latest(SupervisorStatus)
                    assert status is not None, "a message was seen in part"
                    read.append(status.engine.restarts)
            return read

        writer = threading.Thread(target=publish)
        writer.start()
        read = asyncio.run(run())
        writer.join()
        assert read == sorted(read)
        assert home.ignored() == []

    def test_a_waiter_holds_no_thread_and_can_be_cancelled(self, home: ControlHome) -> None:
        async def run() -> None:
            threads = threading.active_count()
            waiting = asyncio.create_task(home.open().wait({EngineStatus: None}, float("inf")))
            await asyncio.sleep(0)
            assert threading.active_count() == threads
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        asyncio.run(run())
