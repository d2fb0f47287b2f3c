"""A view kept by its key: what a client has of it after each message, and a copy that keeps itself up to date."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from penstock.client.asking import Target
from penstock.client.errors import ClientError
from penstock.client.following import Following
from penstock.client.messages import Delivery, Row, Snapshot, ViewMessage, message_of
from penstock.client.pages import key_of
from penstock.client.transports import Deliveries

T = TypeVar("T")
Read = Callable[[Any], Sequence[T]]


class Table(Generic[T]):
    """The rows of a view. A snapshot or a reset forgets all, a change replaces."""

    def __init__(self, key: Sequence[str], read: Read[T]) -> None:
        self._key = tuple(key)
        self._read = read
        self._rows: dict[bytes, T] = {}

    def apply(self, came: Delivery) -> None:
        """Take a message. `ClientError` if a row lacks a column of the key."""
        data = came.data
        if came.kind in ("snapshot", "reset"):
            self._rows = {}
            self._put(data.get("rows", ()))
        elif came.kind == "change":
            self._put(data["upserts"])
            for row in data["deletes"]:
                self._rows.pop(self._key_of(row), None)

    def get(self, *values: Any) -> T | None:
        """The row whose key columns have these values."""
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
            raise ClientError(f"a row of the view has no column {error}, which its key is said to have") from None


class LiveTable(Following[ViewMessage[T]]):
    """A local copy of a view. Iterate over it: a message is given out when it has been applied to the rows.

    As a context manager it has its first rows when the block begins.
    """

    def __init__(
        self,
        target: Target,
        start: Callable[[str | None], Deliveries],
        key: Callable[[], Awaitable[Sequence[str]]],
        read: Read[T],
    ) -> None:
        """`key` is asked for the names of the key columns, once, before the first message."""
        super().__init__(target, None, start, self._applied)
        self._key = key
        self._read = read
        self._table: Table[T] | None = None

    @property
    def rows(self) -> list[T]:
        """The rows now, in no order that is promised."""
        return [] if self._table is None else self._table.rows

    def get(self, *values: Any) -> T | None:
        """The row whose key columns have these values, in the order of the view's key; None if there is none."""
        return None if self._table is None else self._table.get(*values)

    async def __anext__(self) -> ViewMessage[T]:
        if self._table is None:
            self._table = Table(await self._key(), self._read)
        return await super().__anext__()

    def _applied(self, came: Delivery) -> ViewMessage[T] | None:
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
