"""Many subscriptions on one WebSocket, without the WebSocket: what to say, and what to give to whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.client.asking import Target
from penstock.client.backoff import Backoff
from penstock.client.errors import Lost, ServerError, from_problem
from penstock.client.messages import Delivery, delivery

COUNTED = ("snapshot", "change")
"""The kinds that the server waits to have acknowledged: it knows the cursors of no others."""
Said = dict[str, Any]
"""A message to the server."""


class Subscription:
    """One target, its position, and what its user is not done with yet.

    `id` is that on the present connection, None while there is none; `heard` is whether the server has said anything
    under it. `give` is called with each delivery, and with the error that ends it. `backoff` is for errors that end it
    alone: what comes for the others does not begin it anew.
    """

    def __init__(
        self, target: Target, since: str | None, give: Callable[[Delivery | Exception], None], backoff: Backoff
    ) -> None:
        self.target = target
        self.position = since
        self.give = give
        self.backoff = backoff
        self.id: str | None = None
        self.waits = False
        self.heard = False
        self.undone: deque[tuple[str | None, Delivery]] = deque()
        self.done = 0
        self.unsaid: str | None = None


class Hub:
    """The subscriptions of one connection after another. Each call returns the messages to send, in order.

    A subscription has at most `window` messages under way, and its queue never holds twice as many.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._enough = (window + 1) // 2
        self._numbers = 0
        self._open = False
        self._subscriptions: list[Subscription] = []
        self._by_id: dict[str, Subscription] = {}

    @property
    def empty(self) -> bool:
        return not self._subscriptions

    def add(self, subscription: Subscription) -> list[Said]:
        self._subscriptions.append(subscription)
        return self._subscribe(subscription)

    def remove(self, subscription: Subscription) -> list[Said]:
        """The user lets go of it. What still comes is left aside."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        return [{"op": "unsubscribe", "id": id}] if (id := self._forget(subscription)) is not None else []

    def opened(self) -> list[Said]:
        """A connection stands: each subscription begins from its own position."""
        self._open = True
        return [said for each in self._subscriptions if not each.waits for said in self._subscribe(each)]

    def lost(self) -> None:
        self._open = False
        for each in self._subscriptions:
            self._forget(each)

    def hear(self, message: Any) -> list[tuple[Subscription, float]]:
        """Take a message of the server. Gives the subscriptions that have ended and are to be made `again`, each after
        so many seconds. `Lost` if it makes no sense."""
        if not isinstance(message, dict) or not isinstance(event := message.get("event"), str):
            raise Lost("this is no message")
        if event == "error":
            return self._refused(message.get("id"), message.get("data"))
        subscription = self._by_id.get(str(message.get("id")))
        if subscription is None:
            return []
        subscription.heard = True
        came = delivery(event, message.get("data"), message.get("cursor"))
        if came is not None:
            subscription.position = came.cursor
            subscription.backoff.succeeded()
            if came.kind != "progress" or not subscription.undone:  # no window bounds marks, and heartbeats have no end
                subscription.undone.append((subscription.id, came))
                subscription.give(came)
        return []

    def again(self, subscription: Subscription) -> list[Said]:
        """The pause is over."""
        subscription.waits = False
        return self._subscribe(subscription)

    def take(self, subscription: Subscription) -> list[Said]:
        """The user is done with the oldest message that it was given."""
        id, taken = subscription.undone.popleft()
        if subscription.id is None:
            return self._subscribe(subscription)
        if id != subscription.id:
            return []
        subscription.done += 1
        if taken.kind in COUNTED:
            subscription.unsaid = taken.cursor
        if subscription.done < self._enough:
            return []
        cursor, subscription.done, subscription.unsaid = subscription.unsaid, 0, None
        return [] if cursor is None else [{"op": "ack", "id": id, "cursor": cursor}]

    def fail(self, error: Exception) -> None:
        """All subscriptions end with this error."""
        for each in self._subscriptions:
            self._forget(each)
            each.give(error)
        self._subscriptions.clear()

    def _refused(self, id: Any, problem: Any) -> list[tuple[Subscription, float]]:
        """An error ends its subscription, unless it answers another command. One without an id is about what the server
        could not read: it ends those that were not answered yet."""
        if isinstance(problem, dict) and problem.get("op", "subscribe") != "subscribe":
            return []
        named = [self._by_id[str(id)]] if str(id) in self._by_id else []
        ended = [each for each in self._by_id.values() if not each.heard] if id is None else named
        error = from_problem(problem)
        return [(each, each.backoff.failed(error.retry_after_s)) for each in ended if self._failed(each, error)]

    def _failed(self, subscription: Subscription, error: ServerError) -> bool:
        """End it; whether it is to be made again."""
        self._forget(subscription)
        subscription.waits = error.retry
        if not error.retry:
            self._subscriptions.remove(subscription)
            subscription.give(error)
        return error.retry

    def _subscribe(self, subscription: Subscription) -> list[Said]:
        ready = self._open and subscription in self._subscriptions and not subscription.waits
        if not ready or subscription.id is not None or len(subscription.undone) >= self._window:
            return []
        self._numbers += 1
        subscription.heard = False
        subscription.id = str(self._numbers)
        self._by_id[subscription.id] = subscription
        return [subscription.target.subscription(subscription.id, subscription.position, self._window)]

    def _forget(self, subscription: Subscription) -> str | None:
        id, subscription.id, subscription.done, subscription.unsaid = subscription.id, None, 0, None
        if id is not None:
            self._by_id.pop(id, None)
        return id
