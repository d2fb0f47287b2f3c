"""The rows of a view, by key, and a copy of a view that keeps itself up to date."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from penstock.client.asking import FollowTarget
from penstock.client.errors import ClientError
from penstock.client.following import Following
from penstock.client.messages import RawMessage, Row, Snapshot, ViewMessage, message_of
from penstock.client.pages import key_of
from penstock.client.transports import Deliveries

T = TypeVar("T")
Read = Callable[[Any], Sequence[T]]


class LocalRows(Generic[T]):
    """A client's copy of the rows of a view. A snapshot or reset discards all rows; a change replaces or deletes some
    of them."""

    def __init__(self, key: Sequence[str], read: Read[T]) -> None:
        self._key = tuple(key)
        self._read = read
        self._rows: dict[bytes, T] = {}

    def apply(self, came: RawMessage) -> None:
        """Apply a message to the client's rows. Raises `ClientError` if a row lacks a key column."""
        data = came.data
        if came.kind in ("snapshot", "reset"):
            self._rows = {}
            self._put(data.get("rows", ()))
        elif came.kind == "change":
            self._put(data["upserts"])
            for row in data["deletes"]:
                self._rows.pop(self._key_of(row), None)

    def get(self, *values: Any) -> T | None:
        """Return the client's row whose key columns have these values."""
        return self._rows.get(key_of(dict(zip(self._key, values, strict=True)), self._key))

    @property
    def rows(self) -> list[T]:
        return list(self._rows.values())

    def _put(self, rows: Sequence[Row]) -> None:
        for row, value in zip(rows, self._read(rows), strict=True):
            self._rows[self._key_of(row)] = value

    def _key_of(self, row: Row) -> bytes:
        try:
            return key_of(row, self._key)
        except KeyError as error:
            raise ClientError(f"a row of the view has no column {error}, which is part of `key`") from None


class LiveTable(Following[ViewMessage[T]]):
    """A local copy of a view. Iterate over it: each message is applied to the rows before it is returned.

    If you use it as a context manager, it contains the first rows when the block begins.
    """

    def __init__(
        self,
        target: FollowTarget,
        start: Callable[[str | None], Deliveries],
        key: Callable[[], Awaitable[Sequence[str]]],
        read: Read[T],
    ) -> None:
        """`key` is called once, before the first message, and returns the names of the key columns."""
        super().__init__(target, None, start, self._applied)
        self._key = key
        self._read = read
        self._table: LocalRows[T] | None = None

    @property
    def rows(self) -> list[T]:
        """Return the rows of the live table, in no particular order."""
        return [] if self._table is None else self._table.rows

    def get(self, *values: Any) -> T | None:
        """Return the live table's row whose key columns have these values, in the order of the view's key, or None if
        there is none."""
        return None if self._table is None else self._table.get(*values)

    async def __anext__(self) -> ViewMessage[T]:
        if self._table is None:
            self._table = LocalRows(await self._key(), self._read)
        return await super().__anext__()

    def _applied(self, came: RawMessage) -> ViewMessage[T] | None:
        assert self._table is not None
        self._table.apply(came)
        return message_of(came, self._read)  # type: ignore[return-value]  # a view has no events

    async def __aenter__(self) -> LiveTable[T]:
        try:
            while not isinstance(await anext(self), Snapshot):
                pass
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
