"""Decoding of request bodies into events. The functions are pure, except that checking `ahead` reads the clock.

A body has one of three forms: one JSON object, a JSON array of objects, or NDJSON (one event per line). Only the
content type selects NDJSON, never the bytes; every other content type is read as JSON. A `Raw` stream takes the whole
body as one event, whatever it contains, or each line of an NDJSON body as one event.

A valid body is decoded in one typed call. If that fails, the body is split, so one bad event does not affect the
others. The worst case for memory is an array of one-digit numbers, which takes about 30 times `body_bytes_max`, and for
time 60 times as long as valid events. Small valid bodies are decoded in the event loop. All others are decoded in a
single thread shared by all streams. At any time, therefore, at most one body and one message from a source can reach
the worst case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.collect.allowed import allowed_values
from penstock.collect.validation import Ahead, checks, first_fault
from penstock.core.errors import TooLarge
from penstock.core.schema import Event, Raw, wire_class

LINES_TYPES = frozenset({b"application/x-ndjson", b"application/ndjson", b"application/jsonl"})
REASON_LENGTH_MAX = 500
RAW_LINES_MAX = 5_000
"""Maximum number of lines of a `Raw` stream's body that are wrapped in one call, which takes about a millisecond."""
_UNREADABLE = (ValueError, ArithmeticError, RecursionError)
_NO_REJECTIONS: tuple[RejectedEvent, ...] = ()
_one_raw = msgspec.json.Decoder(msgspec.Raw)
_many_raw = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class RejectedEvent:
    """A rejected event: its index in the body, the reason, the path to the invalid field, and the event's bytes."""

    index: int
    reason: str
    path: str | None
    raw: bytes


class Decoded(msgspec.Struct, frozen=True):
    """The valid events in a request body, in order, and the rejected events.

    `malformed`: the body could not be split into events.
    """

    events: Sequence[Any]
    rejections: Sequence[RejectedEvent]
    malformed: bool = False

    @property
    def indexes(self) -> Sequence[int] | None:
        """The indexes of the valid events in the request body, or None if all are valid."""
        if not self.rejections:
            return None
        bad = {rejection.index for rejection in self.rejections}
        return [index for index in range(len(self.events) + len(bad)) if index not in bad]


def is_lines(content_type: bytes) -> bool:
    """Return whether this content type means NDJSON."""
    return content_type.partition(b";")[0].strip().lower() in LINES_TYPES


class BodyDecoder:
    """Decoder for request bodies with events of one class. Raises only `TooLarge`; every other fault becomes a
    `RejectedEvent`."""

    def __init__(self, cls: type[Event], *, event_bytes_max: int, events_max: int, ahead: Ahead | None = None) -> None:
        wire: Any = wire_class(cls)
        self._wire = wire
        self.has_ids = cls.__id_field__ is not None
        """Whether the class has an id field; if so, an event with a known id is a duplicate, no matter who sends it."""
        self._opaque = cls is Raw
        self._checks = checks(cls) if ahead is None else (*checks(cls), ahead.check)
        self._ahead = ahead
        self.event_bytes_max = event_bytes_max
        self._events_max = events_max
        self._one = msgspec.json.Decoder(wire)
        self._many = msgspec.json.Decoder(list[wire])

    def decode(self, body: bytes, *, lines: bool = False) -> Decoded:
        """Decode the events in a request body, as NDJSON if `lines`."""
        decoded = self.decode_whole(body, lines=lines)
        return self.decode_apart(body, lines=lines) if decoded is None else decoded

    def decode_whole(self, body: bytes, *, lines: bool = False) -> Decoded | None:
        """Decode a body of valid events in one call, or return None if the events must be decoded one at a time.

        The time to find the first invalid event is at most the time to decode a valid body of the same size. To split a
        body into invalid events takes a hundred times longer.
        """
        if self._ahead is not None:
            self._ahead.look()
        if self._opaque:
            return self._whole_raw(body, lines)
        if lines:
            return self._whole_lines(body)
        is_array = not body.startswith(b"{") and body.lstrip()[:1] == b"["
        events = self._whole(self._many.decode if is_array else self._alone, body)
        return None if events is None else Decoded(events, _NO_REJECTIONS)

    def decode_apart(self, body: bytes, *, lines: bool = False) -> Decoded:
        """Split a body and decode its events one at a time. Called only after `decode_whole` has returned None."""
        if self._opaque:
            return self._raw_events(body, lines)
        if lines:
            return self._apart(_ndjson_lines(body))
        if not body.startswith(b"{") and body.lstrip()[:1] == b"[":
            return self._array(body)
        event = self._event(0, body)
        if isinstance(event, RejectedEvent):
            return Decoded((), (event,), malformed=_is_malformed(body))
        return Decoded((event,), _NO_REJECTIONS)

    def _alone(self, body: bytes) -> list[Any]:
        return [self._one.decode(body)]

    def _array(self, body: bytes) -> Decoded:
        """Decode the items of a JSON array."""
        try:
            items = _many_raw.decode(body)
        except _UNREADABLE as error:
            return Decoded((), (RejectedEvent(0, *_explain(error), body),), malformed=True)
        self._require_count(len(items))
        return self._apart(list(map(bytes, items)))

    def _whole_lines(self, body: bytes) -> Decoded | None:
        """Decode NDJSON events. msgspec accepts any sequence of objects, but here each line must contain exactly one
        object, so that bad lines can be identified. Lines are counted only if not too many of them are blank."""
        events = self._whole(self._one.decode_lines, body)
        if events is None:
            return None
        breaks = body.count(b"\n")
        is_line_each = len(events) in (breaks, breaks + 1) or (
            breaks <= 2 * len(events) + 2 and len(events) == len(_ndjson_lines(body))
        )
        return Decoded(events, _NO_REJECTIONS) if is_line_each else None

    def _whole_raw(self, body: bytes, lines: bool) -> Decoded | None:
        """Wrap the body, or each of its lines, unless it is empty or too large."""
        if not body or len(body) > self.event_bytes_max:
            return None
        if not lines:
            return Decoded((self._wire(data=body),), _NO_REJECTIONS)
        if body.count(b"\n") > RAW_LINES_MAX:
            return None
        parts = _ndjson_lines(body)
        self._require_count(len(parts))
        return Decoded([self._wire(data=part) for part in parts], _NO_REJECTIONS)

    def _raw_events(self, body: bytes, lines: bool) -> Decoded:
        if not body:
            return Decoded((), (RejectedEvent(0, "The body is empty", None, body),), malformed=True)
        parts = _ndjson_lines(body) if lines else [body]
        self._require_count(len(parts))
        outcomes = [self._raw_event(index, part) for index, part in enumerate(parts)]
        return _sorted_outcomes(outcomes)

    def _raw_event(self, index: int, raw: bytes) -> Any:
        return self._wire(data=raw) if len(raw) <= self.event_bytes_max else self._oversize(index, raw)

    def _apart(self, parts: Sequence[bytes]) -> Decoded:
        self._require_count(len(parts))
        return _sorted_outcomes(self._event(index, part) for index, part in enumerate(parts))

    def _whole(self, decode: Callable[[bytes], list[Any]], body: bytes) -> list[Any] | None:
        """Decode all events of a body in one call, or return None if any of them is invalid or might be too large."""
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
        """Return the event in `raw`, or a `RejectedEvent`."""
        if len(raw) > self.event_bytes_max:
            return self._oversize(index, raw)
        try:
            event = self._one.decode(raw)
        except _UNREADABLE as error:
            return RejectedEvent(index, *_explain(error, self._wire), raw)
        fault = first_fault(self._checks, event)
        return event if fault is None else RejectedEvent(index, fault.reason, f"$.{fault.field}", raw)

    def _oversize(self, index: int, raw: bytes) -> RejectedEvent:
        reason = f"The event is {len(raw)} bytes long; the limit is {self.event_bytes_max}"
        return RejectedEvent(index, reason, None, raw)

    def _require_count(self, count: int) -> None:
        if count > self._events_max:
            raise TooLarge(f"the body has {count} events; the limit is {self._events_max}", events_max=self._events_max)


def _sorted_outcomes(outcomes: Iterable[Any]) -> Decoded:
    events: list[Any] = []
    rejections: list[RejectedEvent] = []
    for outcome in outcomes:
        (rejections if isinstance(outcome, RejectedEvent) else events).append(outcome)
    return Decoded(events, rejections)


def _ndjson_lines(body: bytes) -> list[bytes]:
    return [line for line in map(bytes.strip, body.split(b"\n")) if line]


def _is_malformed(body: bytes) -> bool:
    """Return whether the bytes are not JSON at all.

    JSON that is nested too deeply to read is an invalid event, not a malformed body.
    """
    try:
        _one_raw.decode(body)
    except RecursionError:
        return False
    except ValueError:
        return True
    return False


def _explain(error: Exception, wire: type[Any] | None = None) -> tuple[str, str | None]:
    """Split an event's decoding error into reason and path. msgspec puts both in one message: `Expected ... - at
    `$.a.b``.

    If `wire` is given, the reason for an invalid enum or literal value lists the allowed values.
    """
    if isinstance(error, RecursionError):
        return "The event is nested too deeply", None
    if isinstance(error, UnicodeDecodeError):
        return "The text is not valid UTF-8", None
    message = str(error)
    if message == "Input data was truncated":
        return "The JSON is truncated or missing", None
    reason, separator, path = message.rpartition(" - at `")
    if separator:
        path = path.removesuffix("`")
        if wire is not None and reason.startswith("Invalid enum value"):
            reason += allowed_values(wire, path)
        return reason[:REASON_LENGTH_MAX], path[:REASON_LENGTH_MAX]
    return message[:REASON_LENGTH_MAX], "$" if isinstance(error, msgspec.ValidationError) else None
