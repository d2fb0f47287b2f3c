"""Generated events of an app's classes, for running handlers when there are no real events. The same seed always
generates the same events.

There are few different values, and they are small rather than extreme. Keys repeat, so state builds up. Strings and
numbers from the handlers' code are included, so more of that code is executed. No number is so large that a loop up to
it would take long.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from random import Random
from types import CodeType
from typing import Any, Literal, NamedTuple, get_args, get_origin
from uuid import UUID

import msgspec

from penstock.app.app import App
from penstock.app.declared import Handler, Stream
from penstock.core.schema import Event, Field, Record, fields

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
"""The log time when generated rows start."""
STEP_MS_MAX = 50
TICK_EVERY = 40
TICK_S = (1, 5, 10, 60)
KEYS = 8
NONE_SHARE = 0.2
ITEMS_MAX = 3
NUMBER_MAX = 1_000
WORD_CHARS_MAX = 40
WORDS = ("", "a", "b", "tea", "Öl", "north 7", "x" * 30)


class Sample(NamedTuple):
    """A row in a stream: its log time and its event, which is None for a tick."""

    time: datetime
    event: Event | None


def samples(app: App, stream: Stream, count: int, seed: int = 0) -> Iterator[Sample]:
    """Yield rows for a stream: `count` events, with ticks between them."""
    maker = Maker(f"{seed}/{stream.name}", _vocabulary(app, stream))
    kinds = {field.name: field for field in fields(stream.event)}
    keys = _sample_key_fields(app, stream)
    pools = {name: [maker.value(kinds[name].base, BEGIN) for _ in range(KEYS)] for name in sorted(keys)}
    time = BEGIN
    for number in range(count):
        time += timedelta(milliseconds=maker.random.randint(1, STEP_MS_MAX))
        values = {name: maker.field(kind, time) for name, kind in kinds.items()}
        identity = stream.event.__id_field__
        if identity is not None:
            values[identity] = maker.unique(kinds[identity].base, number)
        values |= {name: maker.random.choice(pool) for name, pool in pools.items()}
        yield Sample(time, stream.event(**values))
        if maker.random.randrange(TICK_EVERY) == 0:
            time += timedelta(seconds=maker.random.choice(TICK_S))
            yield Sample(time, None)


def _sample_key_fields(app: App, stream: Stream) -> set[str]:
    """Return the fields that are the stream's key, or part of the key of a handler that reads it."""
    readers = [handler for handler in app.handlers if stream.name in handler.inputs]
    names = {name for handler in readers for name in handler.key_of(stream.name)}
    return names if stream.key is None else names | {stream.key}


def _vocabulary(app: App, stream: Stream) -> list[Any]:
    """Return the strings and numbers in the code of the handlers that read a stream."""
    readers = [handler for handler in app.handlers if stream.name in handler.inputs]
    return list(
        dict.fromkeys(
            constant for handler in readers for code in _handler_codes(handler) for constant in _code_constants(code)
        )
    )


def _handler_codes(handler: Handler) -> Iterator[CodeType]:
    for function in handler.written:
        if isinstance(code := getattr(function, "__code__", None), CodeType):
            yield code


def _code_constants(code: CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_constants(constant)
        elif type(constant) in (int, float) or (type(constant) is str and len(constant) <= WORD_CHARS_MAX):
            yield constant


@cache
def _item_field(hint: Any) -> Field:
    """Return a field with the type of a list's or dict's values."""
    return fields(msgspec.defstruct("Item", [("item", hint)]))[0]


class Maker:
    """Generates values of every type that an event can contain."""

    def __init__(self, seed: str, vocabulary: Sequence[Any] = ()) -> None:
        self.random = Random(seed)
        self._words = [*WORDS, *(word for word in vocabulary if isinstance(word, str))]
        self._numbers = [number for number in vocabulary if not isinstance(number, str) and abs(number) <= NUMBER_MAX]

    def field(self, kind: Field, now: datetime) -> Any:
        """Return a generated value for a field; sometimes None, if the field allows it. Generated times are near `now`,
        the log time."""
        if kind.nullable and self.random.random() < NONE_SHARE:
            return None
        return self.value(kind.base, now)

    def value(self, base: Any, now: datetime) -> Any:
        inner = get_args(base)
        if get_origin(base) is Literal:
            return self.random.choice(inner)
        if get_origin(base) is list:
            return [self._item_value(inner[0], now) for _ in range(self.random.randint(0, ITEMS_MAX))]
        if get_origin(base) is dict:
            names = self.random.sample(self._words, self.random.randint(0, ITEMS_MAX))
            return {name: self._item_value(inner[1], now) for name in names}
        if issubclass(base, enum.Enum):
            return self.random.choice(list(base))
        if issubclass(base, Record):
            return base(**{field.name: self.field(field, now) for field in fields(base)})
        return self._scalar_value(base, now)

    def unique(self, base: Any, number: int) -> Any:
        """Return a generated value for an event's id field. Each number produces a different value, if the field's type
        has that many values."""
        values = {str: f"id-{number}", int: number, Decimal: Decimal(number), UUID: UUID(int=number)}
        values[datetime] = BEGIN + timedelta(milliseconds=number)
        return values[base] if base in values else self.value(base, BEGIN)

    def _item_value(self, hint: Any, now: datetime) -> Any:
        return self.field(_item_field(hint), now)

    def _scalar_value(self, base: type, now: datetime) -> Any:
        if base is str:
            return self.random.choice(self._words)
        if base is bool:
            return self.random.random() < 0.5
        if base is bytes:
            return self.random.choice(self._words).encode() + self.random.randbytes(self.random.randint(0, 4))
        if base is datetime:
            return now - timedelta(milliseconds=self.random.choice((0, 1, 250, 60_000, 86_400_000)))
        if base is date:
            return now.date() - timedelta(days=self.random.randint(0, 40))
        if base is UUID:
            return UUID(int=self.random.getrandbits(128), version=4)
        return self._number(base)

    def _number(self, base: type) -> Any:
        """Return an int, float or Decimal: usually near zero, sometimes equal or next to a number in the handlers'
        code."""
        if self._numbers and self.random.random() < 0.2:
            number = float(self.random.choice(self._numbers)) + self.random.choice((-1, 0, 0, 1))
        else:
            number = self.random.gauss(0, self.random.choice((1, 10, NUMBER_MAX / 4)))
        if base is int:
            return round(number)
        return Decimal(round(number * 100)).scaleb(-2) if base is Decimal else number
