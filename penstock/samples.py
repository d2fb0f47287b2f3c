"""Events made up from their classes, the same for the same seed: to run handlers on when there are none yet.

Values are few and small rather than extreme: keys come again, so that state builds up; texts and numbers that stand in
the handlers' own code are among them, so that more of it is reached; and no number is so large that a loop up to it
would take long.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from random import Random
from types import CodeType
from typing import Any, Literal, NamedTuple, get_args, get_origin
from uuid import UUID

import msgspec

from penstock.app import App
from penstock.declared import Handler, Stream
from penstock.schema import Event, Field, Record, fields
from penstock.testing import BEGIN

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
    """A row of a stream: its log time and its event; a tick has none."""

    time: datetime
    event: Event | None


def samples(app: App, stream: Stream, count: int, seed: int = 0) -> Iterator[Sample]:
    """Rows of a stream with `count` events, and ticks among them."""
    maker = Maker(f"{seed}/{stream.name}", _vocabulary(app, stream))
    kinds = {each.name: each for each in fields(stream.event)}
    keys = _keys(app, stream)
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


def _keys(app: App, stream: Stream) -> set[str]:
    """The fields of a stream that are keys, its own and those of handlers that read it."""
    readers = [handler for handler in app.handlers if stream.name in handler.inputs]
    found = {name for handler in readers for name in handler.key_of(stream.name)}
    return found if stream.key is None else found | {stream.key}


def _vocabulary(app: App, stream: Stream) -> list[Any]:
    """The texts and numbers that stand in the code of those who read a stream."""
    readers = [handler for handler in app.handlers if stream.name in handler.inputs]
    return list(dict.fromkeys(each for handler in readers for code in _codes(handler) for each in _constants(code)))


def _codes(handler: Handler) -> Iterator[CodeType]:
    for function in handler.written:
        if isinstance(code := getattr(function, "__code__", None), CodeType):
            yield code


def _constants(code: CodeType) -> Iterator[Any]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _constants(each)
        elif type(each) in (int, float) or (type(each) is str and len(each) <= WORD_CHARS_MAX):
            yield each


@cache
def _item(hint: Any) -> Field:
    """The type of a list's or dict's values, taken apart as that of a field is."""
    return fields(msgspec.defstruct("Item", [("item", hint)]))[0]


class Maker:
    """Makes values of every type that an event may have."""

    def __init__(self, seed: str, vocabulary: Sequence[Any] = ()) -> None:
        self.random = Random(seed)
        self._words = [*WORDS, *(each for each in vocabulary if isinstance(each, str))]
        self._numbers = [each for each in vocabulary if not isinstance(each, str) and abs(each) <= NUMBER_MAX]

    def field(self, kind: Field, now: datetime) -> Any:
        """A value of a field; None now and then, if it may be. `now` is the log time, near which times are."""
        if kind.nullable and self.random.random() < NONE_SHARE:
            return None
        return self.value(kind.base, now)

    def value(self, base: Any, now: datetime) -> Any:
        inner = get_args(base)
        if get_origin(base) is Literal:
            return self.random.choice(inner)
        if get_origin(base) is list:
            return [self._inner(inner[0], now) for _ in range(self.random.randint(0, ITEMS_MAX))]
        if get_origin(base) is dict:
            names = self.random.sample(self._words, self.random.randint(0, ITEMS_MAX))
            return {name: self._inner(inner[1], now) for name in names}
        if issubclass(base, enum.Enum):
            return self.random.choice(list(base))
        if issubclass(base, Record):
            return base(**{each.name: self.field(each, now) for each in fields(base)})
        return self._scalar(base, now)

    def unique(self, base: Any, number: int) -> Any:
        """A value for the field that identifies an event: another one for each number, if its type has so many."""
        made = {str: f"id-{number}", int: number, Decimal: Decimal(number), UUID: UUID(int=number)}
        made[datetime] = BEGIN + timedelta(milliseconds=number)
        return made[base] if base in made else self.value(base, BEGIN)

    def _inner(self, hint: Any, now: datetime) -> Any:
        return self.field(_item(hint), now)

    def _scalar(self, base: type, now: datetime) -> Any:
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
        """A whole number, a float or a Decimal: near zero mostly, or one of the handler's own, or beside that."""
        if self._numbers and self.random.random() < 0.2:
            number = float(self.random.choice(self._numbers)) + self.random.choice((-1, 0, 0, 1))
        else:
            number = self.random.gauss(0, self.random.choice((1, 10, NUMBER_MAX / 4)))
        if base is int:
            return round(number)
        return Decimal(round(number * 100)).scaleb(-2) if base is Decimal else number
