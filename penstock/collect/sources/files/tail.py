"""A source that follows a growing text file through its rotations: each line is one event."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

from penstock.collect.sources.files.follow import Follower, FollowStep
from penstock.collect.sources.files.lines import in_thread, position_of
from penstock.collect.sources.files.logfile import FilePosition
from penstock.collect.sources.files.source import FileSource
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus, SourceWriter
from penstock.core.errors import DeclarationError


@dataclass(frozen=True)
class TailSource(FileSource):
    """Follows the file at `path`. Implements `contracts.Source`.

    Each line in the file, or in a rotated file that still exists, is put once and in order, even after kill -9, because
    the position in the files is committed with the events. An unfinished line is put when it is complete. If a line is
    larger than the limit for events, only its beginning is put, and the decoder rejects that; the whole line is never
    in memory.

    If the file does not exist, the source waits until it does. With `from_start=False`, the complete lines that the
    file already has when it is first seen are skipped. After a rotation, a writer that still uses the old file has
    `rotated_wait_s` after each line to write the next one; then the new file is read.
    """

    path: str | os.PathLike[str]
    from_start: bool = True
    poll_s: float = 0.25
    rotated_wait_s: float = 2.0
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if not os.fspath(self.path):
            raise DeclarationError("tail needs a path")
        if self.poll_s <= 0 or self.rotated_wait_s < 0:
            raise DeclarationError(f"{self.path}: poll_s must be above zero, and rotated_wait_s at least zero")

    @property
    def kind(self) -> str:
        return "tail"

    async def _read(self, source_writer: SourceWriter, status: SourceStatus) -> str:
        """Follow the file until a file cannot be read, and return the reason."""
        await source_writer.settle()
        position = None if (mark := source_writer.mark) is None else position_of(mark, FilePosition, self.address)
        follower = Follower(
            Path(self.path), position, self.from_start, source_writer.event_bytes_max, self.rotated_wait_s
        )
        try:
            while True:
                step = await in_thread(follower.step)
                await _put_follow_step(step, source_writer, status)
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
            status.state, status.error = "waiting", f"{self.address} does not exist yet"


async def _put_follow_step(step: FollowStep, source_writer: SourceWriter, status: SourceStatus) -> None:
    if step.note is not None:
        await source_writer.note(step.note.text())
    for line, position in step.lines:
        await source_writer.put(line, position.text())
        status.received += 1


def tail(
    path: str | os.PathLike[str],
    *,
    from_start: bool = True,
    poll_s: float = TailSource.poll_s,
    rotated_wait_s: float = TailSource.rotated_wait_s,
    backoff_s: float = Backoff.first_s,
    backoff_max_s: float = Backoff.most_s,
) -> TailSource:
    """Create a source that follows a growing text file, one event per line. See `TailSource` for the options."""
    return TailSource(path, from_start, poll_s, rotated_wait_s, Backoff(backoff_s, backoff_max_s))
