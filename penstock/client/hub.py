"""Many subscriptions on one WebSocket, without I/O: decides what to send and which subscription each delivery belongs
to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.client.asking import FollowTarget
from penstock.client.errors import ConnectionLost, ServerError, from_problem
from penstock.client.messages import RawMessage, delivery
from penstock.client.timing import Retries

COUNTED = ("snapshot", "change")
"""The kinds of messages to acknowledge. The server does not accept the cursors of other kinds."""
LiveMessage = dict[str, Any]
"""A message to the server."""


class HubSubscription:
    """One subscription's target, its position, and the deliveries not yet processed.

    `id` is the subscription's id on the current connection, or None; `heard` is true once the server has sent anything
    under that id. `give` is called with each delivery, and with the error that ends the subscription. `retries` counts
    errors that end only this subscription. Deliveries to other subscriptions do not reset the count.
    """

    def __init__(
        self, target: FollowTarget, since: str | None, give: Callable[[RawMessage | Exception], None], retries: Retries
    ) -> None:
        self.target = target
        self.position = since
        self.give = give
        self.retries = retries
        self.id: str | None = None
        self.waits = False
        self.heard = False
        self.undone: deque[tuple[str | None, RawMessage]] = deque()
        self.done = 0
        self.unsaid: str | None = None


class Hub:
    """The subscriptions of a client, across reconnects. Most methods return the messages to send, in order.

    A subscription has at most `window` messages in flight, and its queue always holds fewer than twice that number.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._enough = (window + 1) // 2
        self._numbers = 0
        self._open = False
        self._subscriptions: list[HubSubscription] = []
        self._by_id: dict[str, HubSubscription] = {}

    @property
    def empty(self) -> bool:
        return not self._subscriptions

    def add(self, subscription: HubSubscription) -> list[LiveMessage]:
        self._subscriptions.append(subscription)
        return self._subscribe(subscription)

    def remove(self, subscription: HubSubscription) -> list[LiveMessage]:
        """Remove a subscription that its user has closed. Further deliveries for it are ignored."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        return [{"op": "unsubscribe", "id": id}] if (id := self._forget(subscription)) is not None else []

    def opened(self) -> list[LiveMessage]:
        """Start each subscription from its own position on a new connection."""
        self._open = True
        return [
            said
            for subscription in self._subscriptions
            if not subscription.waits
            for said in self._subscribe(subscription)
        ]

    def lost(self) -> None:
        self._open = False
        for subscription in self._subscriptions:
            self._forget(subscription)

    def hear(self, message: Any) -> list[tuple[HubSubscription, float]]:
        """Handle a message from the server. Raises `ConnectionLost` if it is invalid.

        Returns the subscriptions that have ended and must be restarted with `again`, each with a delay in seconds.
        """
        if not isinstance(message, dict) or not isinstance(event := message.get("event"), str):
            raise ConnectionLost("the message is not valid")
        if event == "error":
            return self._refused(message.get("id"), message.get("data"))
        subscription = self._by_id.get(str(message.get("id")))
        if subscription is None:
            return []
        subscription.heard = True
        came = delivery(event, message.get("data"), message.get("cursor"))
        if came is not None:
            subscription.position = came.cursor
            subscription.retries.succeeded()
            # the window does not limit progress messages, and heartbeats never end, so none are queued for a slow
            # reader
            if came.kind != "progress" or not subscription.undone:
                subscription.undone.append((subscription.id, came))
                subscription.give(came)
        return []

    def again(self, subscription: HubSubscription) -> list[LiveMessage]:
        """Restart a subscription after its pause."""
        subscription.waits = False
        return self._subscribe(subscription)

    def take(self, subscription: HubSubscription) -> list[LiveMessage]:
        """Record that the client's user has processed the oldest message passed to it."""
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
        """End all subscriptions with this error."""
        for subscription in self._subscriptions:
            self._forget(subscription)
            subscription.give(error)
        self._subscriptions.clear()

    def _refused(self, id: Any, problem: Any) -> list[tuple[HubSubscription, float]]:
        """Handle an error message. It ends its subscription unless it concerns another command.

        An error without an id concerns a message that the server could not read, so it ends all subscriptions that the
        server has not responded to yet.
        """
        if isinstance(problem, dict) and problem.get("op", "subscribe") != "subscribe":
            return []
        named = [self._by_id[str(id)]] if str(id) in self._by_id else []
        ended = (
            [subscription for subscription in self._by_id.values() if not subscription.heard] if id is None else named
        )
        error = from_problem(problem)
        return [
            (subscription, subscription.retries.failed(error.retry_after_s))
            for subscription in ended
            if self._failed(subscription, error)
        ]

    def _failed(self, subscription: HubSubscription, error: ServerError) -> bool:
        """End a failed subscription. Returns whether to restart it."""
        self._forget(subscription)
        subscription.waits = error.retry
        if not error.retry:
            self._subscriptions.remove(subscription)
            subscription.give(error)
        return error.retry

    def _subscribe(self, subscription: HubSubscription) -> list[LiveMessage]:
        ready = self._open and subscription in self._subscriptions and not subscription.waits
        if not ready or subscription.id is not None or len(subscription.undone) >= self._window:
            return []
        self._numbers += 1
        subscription.heard = False
        subscription.id = str(self._numbers)
        self._by_id[subscription.id] = subscription
        return [subscription.target.subscription(subscription.id, subscription.position, self._window)]

    def _forget(self, subscription: HubSubscription) -> str | None:
        id, subscription.id, subscription.done, subscription.unsaid = subscription.id, None, 0, None
        if id is not None:
            self._by_id.pop(id, None)
        return id
