"""The contract of a control channel."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

from penstock.control.messages import M, Message

Edition = Hashable
"""Identifies one publication of a message kind. None if no message of that kind exists."""
Editions = Mapping[type[Message], Edition]


class ControlChannel(Protocol):
    """A channel for messages between an app's processes. It keeps only the latest message of each kind.

    Each kind is published by only one process, one call at a time. Any process and thread can read messages. Messages
    are not durable: after a power failure, a message might be lost, as if it had never been published.
    """

    def publish(self, message: Message) -> bool:
        """Replace the control message of this kind. Readers get the new message with `published_at` set. Blocks during
        the write.

        Returns False if the message could not be written, for example because the disk is full; readers then continue
        to get the previous message. If a publisher dies during a call, readers get either the previous or the new
        message, never a partial message.
        """

    def latest(self, kind: type[M]) -> M | None:
        """Return the latest control message of a kind, however old, even if its publisher is no longer running. Blocks
        during the read.

        Returns None if there is no message, or if the message cannot be read because it is incomplete or damaged, or
        because a later release wrote it in a newer format. Each publication of an unreadable message is logged once.
        """

    def withdraw(self, kind: type[Message]) -> None:
        """Remove the control message of this kind, if any. Called by its publisher, by the process that acts on the
        message, or before any publisher starts."""

    async def wait(self, seen: Editions, timeout_s: float) -> Editions:
        """Wait until an edition differs from its value in `seen`, or until `timeout_s` has passed. Returns the current
        editions of the kinds in `seen`.

        Publishing an identical message also creates a new edition, and so does withdrawing a message. Pass None for a
        kind that the caller has not seen yet. After each return, the caller calls `latest`, which returns the message
        of the returned edition or of a later one. The caller therefore misses only messages that have been replaced.
        Does not block a thread while waiting.
        """
