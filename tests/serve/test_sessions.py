"""Random sessions of WebSocket clients that pause, slow down, acknowledge, and change their filters, beside a model."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from penstock.core.cursor import stream_cursor
from penstock.core.schema import event_schema
from penstock.serve.channels import broadcast, view
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from tests.clocks import until
from tests.serve.clients import open_socket, say
from tests.serve.fakes import Reading, make_deps, run, serving
from tests.serve.test_schedules import (
    SEEN,
    SIGHTS,
    SMALL,
    Copy,
    Heard,
    Watched,
    WatchedLog,
    change_log,
    change_view,
)


class Subscription:
    """One subscription as its client sees it. Every message is checked, whatever was sent before."""

    def __init__(self, kind: str, of: Any, chance: random.Random, id: str) -> None:
        self.kind, self.id, self._of, self._chance = kind, id, of, chance
        self._sights = SIGHTS if kind == "view" else SEEN
        self._window = chance.choice([None, 1, 3])
        self._unacknowledged: deque[str] = deque()
        self._next: deque[int] = deque([chance.randrange(len(self._sights))])
        self.model: Any = None

    def begin(self) -> dict[str, Any]:
        since = None if self.kind == "view" else stream_cursor(1, {0: 0, 1: 0})
        return {"op": "subscribe", self.kind: "x", "since": since, "window": self._window, **self._filter(-1)}

    def _filter(self, which: int) -> dict[str, Any]:
        where, select, _ = self._sights[self._next[which]]
        return {"where": where, "select": select}

    def say(self) -> dict[str, Any]:
        """Return a random command of a client."""
        draw = self._chance.random()
        if draw < 0.2:
            self._next.append(self._chance.randrange(len(self._sights)))
            return {"op": "filter", **self._filter(-1)}
        if draw < 0.5 and self._unacknowledged:
            return self.acknowledge(self._chance.randrange(len(self._unacknowledged)))
        if draw < 0.7:
            return {"op": self._chance.choice(["pause", "resume"])}
        return {"op": "pace", "every_s": self._chance.choice([0, 0, 0.005])}

    def acknowledge(self, which: int) -> dict[str, Any]:
        cursor = self._unacknowledged[which]
        while cursor in self._unacknowledged:
            self._unacknowledged.popleft()
        return {"op": "ack", "cursor": cursor}

    def calm(self) -> list[dict[str, Any]]:
        """Return the commands that let all deliveries come again."""
        return [{"op": "resume"}, {"op": "pace", "every_s": 0}]

    def hear(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event in ("subscribed", "filtered"):
            self._turn(self._sights[self._next.popleft()][2])
        elif event in ("paused", "resumed", "paced"):
            return
        else:
            assert event != "error", message
            self.model.hear(event, message["data"], message["cursor"])
            if self._window is not None and event in ("change", "snapshot"):
                self._unacknowledged.append(message["cursor"])
            assert self._window is None or len(self._unacknowledged) <= self._window, "over the window"

    def _turn(self, sight: Any) -> None:
        """Check a change of the filter: a view's rows are those of the old filter until its snapshot; a stream
        continues."""
        if self.kind == "view":
            self.model = Copy(self._of, sight, strict=False)
        else:
            cursor = stream_cursor(1, {0: 0, 1: 0}) if self.model is None else self.model.cursor
            self.model = Heard(self._of, sight, cursor)


async def listen(connection: ClientConnection, subscriptions: dict[str, Subscription]) -> None:
    async for raw in connection:
        message = json.loads(raw)
        subscriptions[message["id"]].hear(message)


async def talk(connection: ClientConnection, subscriptions: list[Subscription], chance: random.Random) -> None:
    for subscription in subscriptions:
        await say(connection, id=subscription.id, **subscription.begin())
    await until(lambda: all(subscription.model is not None for subscription in subscriptions))
    for _ in range(60):
        subscription = chance.choice(subscriptions)
        await say(connection, id=subscription.id, **subscription.say())
        await asyncio.sleep(chance.choice([0, 0.002, 0.01]))
    for subscription in subscriptions:
        for message in subscription.calm():
            await say(connection, id=subscription.id, **message)


async def hear_the_rest(connection: ClientConnection, subscriptions: list[Subscription]) -> None:
    while not all(subscription.model.is_whole and not subscription._next for subscription in subscriptions):
        for subscription in subscriptions:
            if subscription._unacknowledged:
                await say(connection, id=subscription.id, **subscription.acknowledge(-1))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_client_says_its_copies_are_right(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    for module in (broadcast, view):
        monkeypatch.setattr(module, "CHECK_S", 0.01)

    async def main() -> None:
        log, rows = WatchedLog(), Watched(chance.choice([3, 1000]), remembers=chance.random() < 0.5)
        stream = StreamChannel("x", log, SMALL, lambda: event_schema(Reading))
        channel = ViewChannel("x", rows, SMALL, key=["k"])
        deps = make_deps(streams={"x": stream}, views={"x": channel}, settings=SMALL)
        async with serving(deps) as port:
            async with open_socket(port) as connection:
                kinds = [("view", rows), ("stream", log), ("view", rows), ("stream", log)]
                known = [Subscription(kind, of, chance, str(n)) for n, (kind, of) in enumerate(kinds)]
                listening = asyncio.create_task(
                    listen(connection, {subscription.id: subscription for subscription in known})
                )
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(talk(connection, known, chance))
                    tasks.create_task(change_log(log, stream, random.Random(seed), 60))
                    tasks.create_task(change_view(rows, random.Random(seed), 60))
                rest = asyncio.create_task(hear_the_rest(connection, known))
                await asyncio.wait([rest, listening], return_when=asyncio.FIRST_COMPLETED)
                listening.cancel()
                rest.cancel()
                done = await asyncio.gather(listening, rest, return_exceptions=True)
                assert done[1] is None, done
            await until(lambda: deps.connections.open == 0)
            await until(lambda: channel.describe()["readers"] == stream.describe()["readers"] == 0)

    run(main())
