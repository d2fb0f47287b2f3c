"""The interface between Spark's queries and the storage of their checkpoints."""

from __future__ import annotations

from typing import Protocol

from penstock.core.contracts import LedgerEntry


class QueryCheckpoint(Protocol):
    """The checkpoint of one query: Spark writes it, and Penstock reads which batches it contains.

    Spark does not make its files durable. `sync` does, at the start of each batch's output, so a power cut can tear
    only files that `repair` deletes.
    """

    @property
    def location(self) -> str:
        """The checkpoint's address, to pass to Spark."""

    def sync(self) -> None:
        """Make everything durable that Spark has written to the checkpoint so far."""

    def range(self, batch_id: int) -> tuple[str, str]:
        """Return the positions where a batch starts and ends, as JSON text with one entry for each of the query's
        sources."""

    def late_watermark(self, batch_id: int) -> int | None:
        """Return the watermark that decides which rows of a batch are late, in microseconds. This is the previous
        batch's watermark, or None if there is none yet."""

    def has_planned(self) -> bool:
        """Return whether Spark has planned a batch."""

    def has_commit(self, batch_id: int) -> bool:
        """Return whether Spark has recorded that a batch is done."""

    def repair(self, last: LedgerEntry | None) -> list[str]:
        """Delete the files that a crash may have torn and that Spark can recreate. Returns the deleted files. `last` is
        the ledger's last batch."""

    def verify(self, view: str, last: LedgerEntry | None) -> None:
        """Raise `LedgerMismatch` if this checkpoint does not match a ledger whose last batch is `last`. Raise `Damaged`
        if reading the checkpoint would make Spark hang."""
