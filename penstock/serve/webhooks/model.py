"""The data of a webhook: its registration, its position, and the outcome of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from penstock.core.access import Caller


class WebhookState(StrEnum):
    """The state of a webhook; `reason` contains the cause.

    `PENDING`: its address has not answered a challenge yet. `PAUSED`: the owner paused it. `DISABLED`: the receiver
    disabled it with a 410 response. `STOPPED`: it is not allowed or not able to continue.
    """

    PENDING = "pending"
    ACTIVE = "active"
    PAUSED = "paused"
    DISABLED = "disabled"
    STOPPED = "stopped"


class Signing(msgspec.Struct, frozen=True):
    """A webhook's signing secret. After it is replaced, messages are signed with the old and the new secret until
    `until`."""

    secret: str
    until: datetime | None = None


class Hook(msgspec.Struct, frozen=True):
    """A webhook's registration.

    `owner` is the name of the caller who owns the webhook, and `owner_key` the time when that caller's API key was
    added.

    A webhook declared by the app has no `owner_key`, and its secret is not stored here.
    """

    id: str
    url: str
    kind: str
    of: str
    owner: str
    created: datetime
    name: str = ""
    where: str | None = None
    select: str | None = None
    batch: int = 1
    declared: bool = False
    state: WebhookState = WebhookState.PENDING
    reason: str | None = None
    verified: bool = False
    secrets: Sequence[Signing] = ()
    owner_key: datetime | None = None
    """None if the owner has no API key, or if the registration was stored before this field existed."""

    def __repr__(self) -> str:
        return f"Hook({self.id!r}, {self.state.value})"

    def belongs_to(self, caller: Caller) -> bool:
        """Return whether the caller is the webhook's owner. The API key must be the same key, not just have the same
        name.

        If it is unknown which key registered the webhook, the caller's key must be at least as old as the registration.
        """
        if self.declared or self.owner != caller.name:
            return False
        if caller.key_added is None:
            return True
        return caller.key_added <= self.created if self.owner_key is None else caller.key_added == self.owner_key

    def signing(self, now: datetime) -> list[str]:
        """Return the webhook's current signing secrets, newest first."""
        return [signing.secret for signing in self.secrets if signing.until is None or signing.until > now]


class ChannelProgress(msgspec.Struct, frozen=True):
    """The webhook's position in its channel: everything before `cursor` is done, waiting in the store, or given up.

    `sequence` is the number of the next message.
    """

    cursor: str
    sequence: int = 1


class DeliveryTally(msgspec.Struct, frozen=True):
    """Counts of a webhook's message outcomes since its registration. `forgotten` counts dead letters deleted to make
    room."""

    delivered: int = 0
    failures: int = 0
    forgotten: int = 0
    last_success: datetime | None = None
    last_error: str | None = None
    last_error_at: datetime | None = None

    def taken(self, at: datetime) -> DeliveryTally:
        return replace(self, delivered=self.delivered + 1, last_success=at)

    def failed(self, error: str, at: datetime) -> DeliveryTally:
        return replace(self, failures=self.failures + 1, last_error=error, last_error_at=at)

    def forgot(self, count: int) -> DeliveryTally:
        return replace(self, forgotten=self.forgotten + count)


class WebhookProgress(msgspec.Struct, frozen=True):
    """The progress of a webhook: its position and tally, and how many dead letters and waiting messages it has."""

    progress: ChannelProgress
    tally: DeliveryTally = DeliveryTally()
    dead: int = 0
    pending: int = 0


class WebhookMessage(msgspec.Struct, frozen=True):
    """A webhook's message without its body. Messages with the same `lane` are sent one after the other.

    A message without a lane is sent after all earlier messages are done, and before all later ones.
    """

    number: int
    digest: str
    size: int
    lane: bytes | None

    def id(self, hook: str) -> str:
        """Return the webhook message's id, which is unique and the same for every attempt.

        The digest distinguishes the message from one that had the same number before a backup was restored.
        """
        return f"msg_{hook}_{self.number}_{self.digest}"


class DeliveryAttempts(msgspec.Struct, frozen=True):
    """The failed attempts to send a webhook's message: the number of attempts, the time of the first, and when the next
    is due."""

    count: int
    first: datetime
    due: datetime
    error: str


class DeadMessage(msgspec.Struct, frozen=True):
    """A dead letter: a webhook's message that was given up."""

    at: datetime
    tries: int
    error: str
