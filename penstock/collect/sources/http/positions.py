"""Where in a feed an event stands: what is read from its JSON, what is put into a mark, and what was seen before.

Pure functions and values of bytes and text, shared by the sources that pull over HTTP.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Literal, ParamSpec, TypeVar

import msgspec

from penstock.errors import DeclarationError, SourceFailed

MARK_LENGTH_MAX = 16_384
"""What a mark may have in characters."""
POSITION_LENGTH_MAX = 2_048
REMEMBER_MAX = 1_000
"""How many events a mark can remember: `DIGEST_LENGTH` characters each, with room for the rest of the mark."""
DIGEST_LENGTH = 11
INLINE_BYTES_MAX = 256 * 1024
"""JSON up to this size is taken apart in the event loop, in about a millisecond; more of it in a thread."""
ORDERS = ("number", "text", None)
Order = Literal["number", "text"] | None
Rank = Decimal | str

P = ParamSpec("P")
R = TypeVar("R")
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder(msgspec.Raw)
_scalar: msgspec.json.Decoder[str | int | float | bool | None] = msgspec.json.Decoder(str | int | float | bool | None)
_UNREADABLE = (ValueError, RecursionError)


async def apart(size: int, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """Call a function that takes JSON of that size apart: here, or in a thread if it would hold up the event loop."""
    if size <= INLINE_BYTES_MAX:
        return function(*args, **named)
    return await asyncio.to_thread(function, *args, **named)


def value_at(raw: bytes, path: str) -> bytes | None:
    """The JSON of the value at a path such as `meta.offset`; of the whole if the path is empty. None if not there."""
    found: bytes | msgspec.Raw = raw
    try:
        for name in path.split(".") if path else ():
            found = _object.decode(found)[name]
    except (KeyError, *_UNREADABLE):
        return None
    return bytes(found)


def is_json(raw: bytes) -> bool:
    try:
        _any.decode(raw)
    except _UNREADABLE:
        return False
    return True


def items_at(raw: bytes, path: str) -> list[bytes] | None:
    """The items of the array at a path, each as its JSON; None if there is no array."""
    found = value_at(raw, path)
    try:
        return None if found is None else list(map(bytes, _array.decode(found)))
    except _UNREADABLE:
        return None


def position_at(raw: bytes, path: str) -> str | None:
    """The position at a path, as it is sent back to the server: a text, or the digits of a number. None if the event
    has none. Anything else there is no position, and the source cannot go on."""
    found = value_at(raw, path)
    value = None if found is None else _plain(found)
    if found is None or value is None:
        return None
    text = value if isinstance(value, str) else found.decode()
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not 0 < len(text) <= POSITION_LENGTH_MAX:
        raise SourceFailed(f"`{path}` is no position: it must be a number or a short text; name another field")
    return text


def _plain(found: bytes) -> object:
    try:
        return _scalar.decode(found)
    except _UNREADABLE:
        return found


def rank(position: str, order: Order) -> Rank | None:
    """What positions are compared by. None if only the server knows their order."""
    if order != "number":
        return position if order == "text" else None
    try:
        number = Decimal(position)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise SourceFailed(
            f"the position {position[:80]!r} is no number: say order='text' if positions sort as texts do, "
            "or order=None if only the server knows their order"
        )
    return number


def is_after(position: str, last: str | None, order: Order) -> bool:
    """Whether an event at `position` is one to take, given the last that was taken."""
    if last is None or order is None:
        return True
    return rank(position, order) > rank(last, order)  # type: ignore[operator]


def require_unequal(path: str, position: str, raw: bytes, other: bytes) -> None:
    """Two different events at one position: by it, one of them could never be told from one seen before."""
    if raw != other:
        raise SourceFailed(
            f"two events have the same `{path}`, {position[:80]!r}: each must have its own position; name another field"
        )


def require_order(order: Order, remember: int = 1) -> None:
    if order not in ORDERS:
        raise DeclarationError(f"`order` is {order!r}; it can be 'number', 'text' or None")
    if not 0 <= remember <= REMEMBER_MAX:
        raise DeclarationError(f"`remember` is {remember}; it can be 0 to {REMEMBER_MAX}")


def digest(*parts: bytes) -> str:
    """An event in `DIGEST_LENGTH` characters. Among a thousand remembered ones, a new event is taken for one of them
    once in 10^16 times."""
    whole = blake2b(digest_size=8)
    for part in parts:
        whole.update(b"%d:" % len(part))
        whole.update(part)
    return urlsafe_b64encode(whole.digest()).rstrip(b"=").decode()


class Seen:
    """The digests of the last `most` events, by when they were last seen. A value for a mark: `text` and `of`."""

    def __init__(self, most: int, digests: Iterable[str] = ()) -> None:
        self._most = most
        self._digests = dict.fromkeys(digests)
        self._forget()

    @classmethod
    def of(cls, text: str, most: int) -> Seen:
        return cls(most, (text[start : start + DIGEST_LENGTH] for start in range(0, len(text), DIGEST_LENGTH)))

    def __contains__(self, each: str) -> bool:
        return each in self._digests

    def __iter__(self) -> Iterator[str]:
        return iter(self._digests)

    @property
    def text(self) -> str:
        return "".join(self._digests)

    def add(self, each: str) -> None:
        """Now it is the one last seen."""
        self._digests.pop(each, None)
        self._digests[each] = None
        self._forget()

    def _forget(self) -> None:
        while len(self._digests) > self._most:
            del self._digests[next(iter(self._digests))]


def mark_of(place: msgspec.Struct) -> str:
    """A place as the text of a mark."""
    text = msgspec.json.encode(place).decode()
    if len(text) > MARK_LENGTH_MAX:
        raise SourceFailed(f"the server's position is too long to be kept: {len(text)} characters of {MARK_LENGTH_MAX}")
    return text


S = TypeVar("S", bound=msgspec.Struct)


def place_of(kind: type[S], mark: str | None) -> S:
    """The place that a mark names; the beginning if there is none. A mark of another kind of source is refused."""
    try:
        return kind() if mark is None else msgspec.json.decode(mark, type=kind)
    except _UNREADABLE:
        raise SourceFailed("the mark of this source is not one of its kind: give the source another name") from None
