"""What is known of a webhook: what was registered, where it stands, what became of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from penstock.access import Caller


class State(StrEnum):
    """`PENDING`: its address has not proved that it wants to be called. `PAUSED`: by its owner. `DISABLED`: by the
    receiver, with 410. `STOPPED`: it may not, or cannot, go on; `reason` says why."""

    PENDING = "pending"
    ACTIVE = "active"
    PAUSED = "paused"
    DISABLED = "disabled"
    STOPPED = "stopped"


class Signing(msgspec.Struct, frozen=True):
    """A secret; one that was replaced signs beside the new one until some time."""

    secret: str
    until: datetime | None = None


class Hook(msgspec.Struct, frozen=True):
    """What was registered. `owner` is the name of the caller that it belongs to, and `owner_key` when that caller's API
    key was added; an app's own has neither, and its secret is not kept here."""

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
    state: State = State.PENDING
    reason: str | None = None
    verified: bool = False
    secrets: Sequence[Signing] = ()
    owner_key: datetime | None = None
    """None if the owner has no API key, and in registrations of before this was kept."""

    def __repr__(self) -> str:
        return f"Hook({self.id!r}, {self.state.value})"

    def belongs_to(self, caller: Caller) -> bool:
        """Whether the caller is the owner. A key must be the same one, not only have the same name. Where it is not
        known which key registered this, it was one that was there by then."""
        if self.declared or self.owner != caller.name:
            return False
        if caller.key_added is None:
            return True
        return caller.key_added <= self.created if self.owner_key is None else caller.key_added == self.owner_key

    def signing(self, now: datetime) -> list[str]:
        """The secrets that sign now, the newest first."""
        return [each.secret for each in self.secrets if each.until is None or each.until > now]


class Place(msgspec.Struct, frozen=True):
    """How far the channel was read: everything before `cursor` is done, waits in the store, or was given up.
    `sequence` is the number of the next message."""

    cursor: str
    sequence: int = 1


class Tally(msgspec.Struct, frozen=True):
    """What became of messages since the webhook was registered. `forgotten`: dead letters that had to make room."""

    delivered: int = 0
    failures: int = 0
    forgotten: int = 0
    last_success: datetime | None = None
    last_error: str | None = None
    last_error_at: datetime | None = None

    def taken(self, at: datetime) -> Tally:
        return replace(self, delivered=self.delivered + 1, last_success=at)

    def failed(self, error: str, at: datetime) -> Tally:
        return replace(self, failures=self.failures + 1, last_error=error, last_error_at=at)

    def forgot(self, count: int) -> Tally:
        return replace(self, forgotten=self.forgotten + count)


class Known(msgspec.Struct, frozen=True):
    """Where a webhook stands: its place and tally, and how many of its messages are dead letters, and wait."""

    place: Place
    tally: Tally = Tally()
    dead: int = 0
    pending: int = 0


class Message(msgspec.Struct, frozen=True):
    """One message, but for its bytes. Those of the same `lane` go out one after the other; one without a lane goes
    when all before it are done, and before all that come after it."""

    number: int
    digest: str
    size: int
    lane: bytes | None

    def id(self, hook: str) -> str:
        """The same on every try, and of no other message: the digest tells it from one that had its number before a
        backup was restored."""
        return f"msg_{hook}_{self.number}_{self.digest}"


class Tries(msgspec.Struct, frozen=True):
    """The tries of a message that were in vain: how many, since when, and when the next is due."""

    count: int
    first: datetime
    due: datetime
    error: str


class Dead(msgspec.Struct, frozen=True):
    """A message that was given up."""

    at: datetime
    tries: int
    error: str
