"""A source that follows a growing text file through its rotations: each line is one event."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.collect.sources.files.follow import Follower, Step
from penstock.collect.sources.files.lines import in_thread
from penstock.collect.sources.files.logfile import Position
from penstock.collect.sources.reconnect import Backoff, keep_connected
from penstock.contracts import Intake, SourceStatus
from penstock.errors import DeclarationError, SourceFailed


@dataclass(frozen=True)
class TailSource:
    """Follows the file at `path`. Implements `contracts.Source`.

    Each line that is in the file, or in one that it was rotated to and that is still there, is put once and in order,
    also after kill -9: the position in the files is committed with the events. A line without an end waits for it. Of a
    line larger than an event may be, the beginning is put, for the decoder to refuse; it is never held whole.

    A file that is not there yet is waited for. With `from_start` false, the lines that are complete in the file when it
    is first seen are left out. After a rotation, whoever still writes to the old file has `rotated_wait_s` after each
    line to write the next; then the new one is read.
    """

    path: str | os.PathLike[str]
    from_start: bool = True
    poll_s: float = 0.25
    rotated_wait_s: float = 2.0
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if not os.fspath(self.path):
            raise DeclarationError("a file to follow needs a path")
        if self.poll_s <= 0 or self.rotated_wait_s < 0:
            raise DeclarationError(f"{self.path}: poll_s must be above zero, and rotated_wait_s not below")

    @property
    def kind(self) -> str:
        return "tail"

    @property
    def address(self) -> str:
        return os.fspath(self.path)

    async def run(self, intake: Intake, status: SourceStatus) -> None:
        """Follow until cancelled. Raises only if the intake cannot go on, or its mark is not of such a source."""
        await keep_connected(lambda: self._follow(intake, status), intake, status, self.backoff, self.address)

    async def _follow(self, intake: Intake, status: SourceStatus) -> str:
        """Returns when a file cannot be read, and why."""
        await intake.settle()
        place = None if intake.mark is None else _position(intake.mark, self.address)
        follower = Follower(Path(self.path), place, self.from_start, intake.event_bytes_max, self.rotated_wait_s)
        try:
            while True:
                step = await in_thread(follower.step)
                await _hand_over(step, intake, status)
                self._tell(follower, status)
                if not step.more:
                    await asyncio.sleep(self.poll_s)
        except OSError as error:
            return f"could not read: {error}"
        finally:
            follower.close()

    def _tell(self, follower: Follower, status: SourceStatus) -> None:
        if follower.file is not None:
            status.state, status.error = "connected", None
        else:
            status.state, status.error = "waiting", f"{self.address} is not there yet"


async def _hand_over(step: Step, intake: Intake, status: SourceStatus) -> None:
    if step.note is not None:
        await intake.note(step.note.text())
    for line, place in step.lines:
        await intake.put(line, place.text())
        status.received += 1


def _position(mark: str, address: str) -> Position:
    try:
        return msgspec.json.decode(mark, type=Position)
    except msgspec.ValidationError:
        raise SourceFailed(
            f"{address}: the position noted under this source's name is of another kind of source; give it a new name"
        ) from None


def tail(
    path: str | os.PathLike[str],
    *,
    from_start: bool = True,
    poll_s: float = TailSource.poll_s,
    rotated_wait_s: float = TailSource.rotated_wait_s,
    backoff_s: float = Backoff.first_s,
    backoff_max_s: float = Backoff.most_s,
) -> TailSource:
    """A text file that grows and is rotated, one event a line. See `TailSource` for what the options mean."""
    return TailSource(path, from_start, poll_s, rotated_wait_s, Backoff(backoff_s, backoff_max_s))
