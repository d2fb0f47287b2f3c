"""Request bodies to events: functions of bytes, without I/O; with a clock only where a stream is declared with `ahead`.

Three forms of a body: one JSON object, a JSON array of them, or NDJSON (one event a line). NDJSON is told by its
content type alone, so that the same bytes always mean the same events; every other content type is read as JSON. A
stream of `Raw` takes the body as one event whatever it holds, or each line of an NDJSON body.

A good body is decoded by one typed call. Only when that fails is it taken apart, so that one bad event costs its
neighbours nothing. Worst case in memory: an array of one-digit numbers, about 30 times `body_bytes_max`. Small
bodies are decoded in the event loop, large ones in the one thread that all entrances share; so it happens to one body
at a time, and to one message of a feed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.collect.allowed import allowed_values
from penstock.collect.fitness import Ahead, checks, first_fault
from penstock.errors import TooLarge
from penstock.schema import Event, Raw, wire_class

LINES_TYPES = frozenset({b"application/x-ndjson", b"application/ndjson", b"application/jsonl"})
REASON_LENGTH_MAX = 500
_UNREADABLE = (ValueError, ArithmeticError, RecursionError)
_NO_REJECTIONS: tuple[Rejection, ...] = ()
_one_raw = msgspec.json.Decoder(msgspec.Raw)
_many_raw = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Rejection:
    """An event that was not taken: its place in the body, why, where in the event, and its bytes."""

    index: int
    reason: str
    path: str | None
    raw: bytes


class Decoded(msgspec.Struct, frozen=True):
    """A body's good events, in order, and its bad ones. `malformed`: it could not even be split into events."""

    events: Sequence[Any]
    rejections: Sequence[Rejection]
    malformed: bool = False

    @property
    def places(self) -> Sequence[int] | None:
        """The places that the good events had in the body; None if all are good."""
        if not self.rejections:
            return None
        bad = {each.index for each in self.rejections}
        return [place for place in range(len(self.events) + len(bad)) if place not in bad]


def is_lines(content_type: bytes) -> bool:
    """Whether a body of this content type is NDJSON."""
    return content_type.partition(b";")[0].strip().lower() in LINES_TYPES


class BodyDecoder:
    """Decodes the bodies of one event class. Raises only `TooLarge`: everything else wrong is a `Rejection`."""

    def __init__(self, cls: type[Event], *, event_bytes_max: int, events_max: int, ahead: Ahead | None = None) -> None:
        wire: Any = wire_class(cls)
        self._wire = wire
        self.has_ids = cls.__id_field__ is not None
        """Whether a field identifies an event: then anyone's event of the same id is a duplicate."""
        self._opaque = cls is Raw
        self._checks = checks(cls) if ahead is None else (*checks(cls), ahead.check)
        self._ahead = ahead
        self.event_bytes_max = event_bytes_max
        self._events_max = events_max
        self._one = msgspec.json.Decoder(wire)
        self._many = msgspec.json.Decoder(list[wire])

    def decode(self, body: bytes, *, lines: bool = False) -> Decoded:
        """The events of a body, NDJSON if `lines`."""
        if self._ahead is not None:
            self._ahead.look()
        if self._opaque:
            return self._raw_events(body, lines)
        if lines:
            return self._lines(body)
        if not body.startswith(b"{") and body.lstrip()[:1] == b"[":
            return self._array(body)
        event = self._event(0, body)
        if isinstance(event, Rejection):
            return Decoded((), (event,), malformed=_is_malformed(body))
        return Decoded((event,), _NO_REJECTIONS)

    def _array(self, body: bytes) -> Decoded:
        """Items are looked at one by one if the array does not decode whole, or could hold an event too large."""
        events = self._whole(self._many.decode, body)
        if events is not None:
            return Decoded(events, _NO_REJECTIONS)
        try:
            items = _many_raw.decode(body)
        except _UNREADABLE as error:
            return Decoded((), (Rejection(0, *_explain(error), body),), malformed=True)
        self._require_count(len(items))
        return self._apart(list(map(bytes, items)))

    def _lines(self, body: bytes) -> Decoded:
        """msgspec reads any sequence of objects; we promise one a line, so that bad lines can be told apart."""
        events = self._whole(self._one.decode_lines, body)
        if events is not None:
            breaks = body.count(b"\n")
            if len(events) in (breaks, breaks + 1) or len(events) == len(_filled_lines(body)):
                return Decoded(events, _NO_REJECTIONS)
        return self._apart(_filled_lines(body))

    def _raw_events(self, body: bytes, lines: bool) -> Decoded:
        if not body:
            return Decoded((), (Rejection(0, "The body is empty", None, body),), malformed=True)
        parts = _filled_lines(body) if lines else [body]
        self._require_count(len(parts))
        found = [self._raw_event(index, part) for index, part in enumerate(parts)]
        return _sorted_out(found)

    def _raw_event(self, index: int, raw: bytes) -> Any:
        return self._wire(data=raw) if len(raw) <= self.event_bytes_max else self._oversize(index, raw)

    def _apart(self, parts: Sequence[bytes]) -> Decoded:
        self._require_count(len(parts))
        return _sorted_out(self._event(index, part) for index, part in enumerate(parts))

    def _whole(self, decode: Callable[[bytes], list[Any]], body: bytes) -> list[Any] | None:
        """All events by one call, if all of them are good and none can be too large."""
        if len(body) > self.event_bytes_max:
            return None
        try:
            events = decode(body)
        except _UNREADABLE:
            return None
        self._require_count(len(events))
        tests = self._checks
        return None if tests and any(first_fault(tests, event) for event in events) else events

    def _event(self, index: int, raw: bytes) -> Any:
        """The event in `raw`, or the Rejection that it earned."""
        if len(raw) > self.event_bytes_max:
            return self._oversize(index, raw)
        try:
            event = self._one.decode(raw)
        except _UNREADABLE as error:
            return Rejection(index, *_explain(error, self._wire), raw)
        fault = first_fault(self._checks, event)
        return event if fault is None else Rejection(index, fault.reason, f"$.{fault.field}", raw)

    def _oversize(self, index: int, raw: bytes) -> Rejection:
        reason = f"The event has {len(raw)} bytes, the most is {self.event_bytes_max}"
        return Rejection(index, reason, None, raw)

    def _require_count(self, count: int) -> None:
        if count > self._events_max:
            raise TooLarge(f"the body has {count} events, the most is {self._events_max}", events_max=self._events_max)


def _sorted_out(found: Iterable[Any]) -> Decoded:
    events: list[Any] = []
    rejections: list[Rejection] = []
    for each in found:
        (rejections if isinstance(each, Rejection) else events).append(each)
    return Decoded(events, rejections)


def _filled_lines(body: bytes) -> list[bytes]:
    return [line for line in map(bytes.strip, body.split(b"\n")) if line]


def _is_malformed(body: bytes) -> bool:
    """Whether the bytes are no JSON at all. Nesting too deep to read is a fault of the event, not of the form."""
    try:
        _one_raw.decode(body)
    except RecursionError:
        return False
    except ValueError:
        return True
    return False


def _explain(error: Exception, wire: type[Any] | None = None) -> tuple[str, str | None]:
    """The reason and the path: msgspec puts both in one message, `Expected ... - at `$.a.b``. With the class, a value
    that is none of those allowed is told with them."""
    if isinstance(error, RecursionError):
        return "The event is nested too deeply", None
    if isinstance(error, UnicodeDecodeError):
        return "The text is not valid UTF-8", None
    message = str(error)
    if message == "Input data was truncated":
        return "The JSON ends too early, or there is none", None
    reason, found, path = message.rpartition(" - at `")
    if found:
        path = path.removesuffix("`")
        if wire is not None and reason.startswith("Invalid enum value"):
            reason += allowed_values(wire, path)
        return reason[:REASON_LENGTH_MAX], path[:REASON_LENGTH_MAX]
    return message[:REASON_LENGTH_MAX], "$" if isinstance(error, msgspec.ValidationError) else None
