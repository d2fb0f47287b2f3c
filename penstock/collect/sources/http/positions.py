"""Positions of a source's events: reading them from JSON, storing them in a mark, and recognising events seen before.

Pure functions and values on bytes and strings, shared by the sources that pull over HTTP.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Literal, ParamSpec, TypeVar

import msgspec

from penstock.core.errors import DeclarationError, SourceFailed

MARK_LENGTH_MAX = 16_384
"""Maximum length of a mark, in characters."""
POSITION_LENGTH_MAX = 2_048
REMEMBER_MAX = 1_000
"""Maximum number of events that a mark remembers, at `DIGEST_LENGTH` characters each. This leaves room for the rest of
the mark."""
DIGEST_LENGTH = 11
INLINE_BYTES_MAX = 256 * 1024
"""JSON up to this size is decoded in the event loop, in about a millisecond; larger JSON in a thread."""
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
    """Call a source's function that decodes JSON of the given size. Runs it in a thread if it would delay the event
    loop."""
    if size <= INLINE_BYTES_MAX:
        return function(*args, **named)
    return await asyncio.to_thread(function, *args, **named)


def value_at(raw: bytes, path: str) -> bytes | None:
    """Return the part of an HTTP source's JSON at a path such as `meta.offset`, or all of it if the path is empty. None
    if there is no such path."""
    part: bytes | msgspec.Raw = raw
    try:
        for name in path.split(".") if path else ():
            part = _object.decode(part)[name]
    except (KeyError, *_UNREADABLE):
        return None
    return bytes(part)


def is_json(raw: bytes) -> bool:
    try:
        _any.decode(raw)
    except _UNREADABLE:
        return False
    return True


def items_at(raw: bytes, path: str) -> list[bytes] | None:
    """Return the items of a document's array at a path, each as JSON, or None if there is no array."""
    array = value_at(raw, path)
    try:
        return None if array is None else list(map(bytes, _array.decode(array)))
    except _UNREADABLE:
        return None


def position_at(raw: bytes, path: str) -> str | None:
    """Return an event's position at a path, as it is sent back to the server: a string, or the digits of a number.

    None if missing.

    Raises `SourceFailed` for any other value, because the source cannot resume from it.
    """
    part = value_at(raw, path)
    value = None if part is None else _plain_position(part)
    if part is None or value is None:
        return None
    text = value if isinstance(value, str) else part.decode()
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not 0 < len(text) <= POSITION_LENGTH_MAX:
        raise SourceFailed(f"`{path}` is not a position: it must be a number or a short string; use another field")
    return text


def _plain_position(raw: bytes) -> object:
    try:
        return _scalar.decode(raw)
    except _UNREADABLE:
        return raw


def rank(position: str, order: Order) -> Rank | None:
    """Return the value used to compare an HTTP source's positions, or None if only the server knows their order."""
    if order != "number":
        return position if order == "text" else None
    try:
        number = Decimal(position)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise SourceFailed(
            f"the position {position[:80]!r} is not a number: use order='text' if positions sort as text, "
            "or order=None if only the server knows their order"
        )
    return number


def is_after(position: str, last: str | None, order: Order) -> bool:
    """Return whether a source's event at `position` comes after the last event that was put."""
    if last is None or order is None:
        return True
    return rank(position, order) > rank(last, order)  # type: ignore[operator]


def require_unequal(path: str, position: str, raw: bytes, other: bytes) -> None:
    """Raise if two different events of a source have the same position, because a new event could not be distinguished
    from one that was already received."""
    if raw != other:
        raise SourceFailed(
            f"two events have the same `{path}`, {position[:80]!r}: each must have its own position; use another field"
        )


def require_order(order: Order, remember: int = 1) -> None:
    if order not in ORDERS:
        raise DeclarationError(f"`order` is {order!r}; use 'number', 'text' or None")
    if not 0 <= remember <= REMEMBER_MAX:
        raise DeclarationError(f"`remember` is {remember}; it must be 0 to {REMEMBER_MAX}")


def digest(*parts: bytes) -> str:
    """Hash a source's event to `DIGEST_LENGTH` characters.

    Among a thousand remembered events, a new one collides with a probability of 10^-16.
    """
    whole = blake2b(digest_size=8)
    for part in parts:
        whole.update(b"%d:" % len(part))
        whole.update(part)
    return urlsafe_b64encode(whole.digest()).rstrip(b"=").decode()


class SeenDigests:
    """The digests of the last `most` events of a source, ordered by when they were last seen.

    A mark contains their `text`, which `of` decodes.
    """

    def __init__(self, most: int, digests: Iterable[str] = ()) -> None:
        self._most = most
        self._digests = dict.fromkeys(digests)
        self._forget()

    @classmethod
    def of(cls, text: str, most: int) -> SeenDigests:
        return cls(most, (text[start : start + DIGEST_LENGTH] for start in range(0, len(text), DIGEST_LENGTH)))

    def __contains__(self, digest: str) -> bool:
        return digest in self._digests

    def __iter__(self) -> Iterator[str]:
        return iter(self._digests)

    @property
    def text(self) -> str:
        return "".join(self._digests)

    def add(self, digest: str) -> None:
        """Add an event's digest as the most recent one, and drop the oldest if there are too many."""
        self._digests.pop(digest, None)
        self._digests[digest] = None
        self._forget()

    def _forget(self) -> None:
        while len(self._digests) > self._most:
            del self._digests[next(iter(self._digests))]


def mark_of(mark: msgspec.Struct) -> str:
    """Encode a source's position as a mark."""
    text = msgspec.json.encode(mark).decode()
    if len(text) > MARK_LENGTH_MAX:
        raise SourceFailed(f"the server's position is too long: {len(text)} characters; the limit is {MARK_LENGTH_MAX}")
    return text


S = TypeVar("S", bound=msgspec.Struct)


def position_in(kind: type[S], mark: str | None) -> S:
    """Decode the position in an HTTP source's mark, or return the start position if there is no mark. Raises if the
    mark belongs to a different kind of source."""
    try:
        return kind() if mark is None else msgspec.json.decode(mark, type=kind)
    except _UNREADABLE:
        raise SourceFailed("the stored position belongs to a different kind of source: rename this source") from None
