"""Event, Record and State: typed value classes, and the mapping of their types to Arrow and to the wire format.

This module defines the types for the whole system. Spark reads the Arrow types; the conversion to JSON is in
`columns.py`. An incoming event is decoded into a *wire class*, a twin of the user's class that is as strict as Arrow
and Spark: times must have a time zone, and integers must fit in 64 bits.
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)
from uuid import UUID

import msgspec

from penstock.core.errors import DeclarationError
from penstock.core.state_value import StateValue, fresh

if TYPE_CHECKING:
    import pyarrow as pa

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
MILLIS_MIN, MILLIS_MAX = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999
DECIMAL_DIGITS, DECIMAL_SCALE = 38, 18
KIND_EVENT, KIND_TICK, KIND_GONE = 0, 1, 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SYSTEM_COLUMNS = ("_id", "_key", "_ingest_time", "_kind")
OFFSET_COLUMN = "_offset"
"""The column that the log adds when rows are read: each row's offset in its partition."""
HIDDEN_COLUMNS = (*SYSTEM_COLUMNS, OFFSET_COLUMN)
"""Columns that are hidden from readers of events."""
INGEST_COLUMN = "ingest_time"
"""The column that contains the ingest time in views based on ingest time."""


Function = TypeVar("Function", bound=Callable[..., Any])


def per_class(function: Function) -> Function:
    """Cache the results of a function that takes a class. Used instead of `functools.cache`, whose type hints do not
    accept classes with fields."""
    return cast(Function, functools.cache(function))


@dataclass(frozen=True)
class Epoch:
    """Marker for a datetime that is sent as an integer, in milliseconds since 1970."""


EpochMillis = Annotated[datetime, Epoch()]
"""A time that producers send as milliseconds since 1970. In views, handlers and responses it is an ordinary time."""


def _note_past(cls: Any, version: int | None, renamed: Any, dropped: Any) -> None:
    """Store a class's version in the class, together with the fields renamed or dropped since earlier versions."""
    if isinstance(dropped, str):
        raise TypeError(f"dropped must be a list of names: dropped=[{dropped!r}]")
    if version is not None:
        setattr(cls, "__event_version__" if hasattr(cls, "__event_version__") else "__state_version__", version)
    if renamed is not None:
        cls.__renamed__ = dict(renamed)
    if dropped is not None:
        cls.__dropped__ = tuple(dropped)


class _ValueMeta(msgspec.StructMeta):
    """Metaclass for frozen classes with keyword-only fields. The class statement for an event accepts `id=` and
    `time=`. Like the class statement for a state, it also accepts `version=`, `renamed=` and `dropped=`."""

    def __new__(
        mcls,
        name: str,
        bases: Any,
        space: Any,
        *,
        id: str | None = None,
        time: str | None = None,
        version: int | None = None,
        renamed: Any = None,
        dropped: Any = None,
    ) -> Any:
        cls: Any = super().__new__(mcls, name, bases, space, frozen=True, kw_only=True)
        cls.__declared__ = cls
        if (version, renamed, dropped) != (None, None, None) and not hasattr(cls, "__event_version__"):
            raise TypeError(
                f"{name} cannot have its own versions: pass version, renamed and dropped to the event that contains it"
            )
        _note_past(cls, version, renamed, dropped)
        if id is not None:
            cls.__id_field__ = id
        if time is not None:
            cls.__time_field__ = time
        return cls

    def __init__(cls, name: str, bases: Any, space: Any, **_: Any) -> None:
        super().__init__(name, bases, space)


if TYPE_CHECKING:  # msgspec's type hints make its classes mutable; these are frozen, with keyword-only arguments

    @dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
    class _Value:
        __struct_fields__: ClassVar[tuple[str, ...]]
else:

    class _Value(msgspec.Struct, metaclass=_ValueMeta):
        pass


class Record(_Value):
    """A value nested in an event, such as a venue or an address."""


class _StateMeta(msgspec.StructMeta):
    """Metaclass that accepts `version=`, `renamed=` and `dropped=` in the class statement, and allows sketches as field
    defaults."""

    def __new__(
        mcls, name: str, bases: Any, space: Any, *, version: int | None = None, renamed: Any = None, dropped: Any = None
    ) -> Any:
        own = {
            attribute: fresh(value) if isinstance(value, StateValue) else value for attribute, value in space.items()
        }
        cls: Any = super().__new__(mcls, name, bases, own, kw_only=True)
        _note_past(cls, version, renamed, dropped)
        return cls

    def __init__(cls, name: str, bases: Any, space: Any, **_: Any) -> None:
        super().__init__(name, bases, space)


if TYPE_CHECKING:

    @dataclass_transform(kw_only_default=True, field_specifiers=(msgspec.field,))
    class _Mutable:
        __struct_fields__: ClassVar[tuple[str, ...]]
else:

    class _Mutable(msgspec.Struct, metaclass=_StateMeta):
        pass


class State(_Mutable):
    """The state that a handler keeps for one key. Every field has a default, because a new key starts with `State()`.

    The class can be changed even if states are already stored. New fields get their defaults. `renamed` maps old field
    names to new names, and `dropped` lists removed fields. For any other change, increase `version` and define a static
    method `migrate(version, fields)`, which takes a dict of the fields in that version and returns the fields of the
    next version.
    """

    __state_version__: ClassVar[int] = 1
    __renamed__: ClassVar[dict[str, str]] = {}
    __dropped__: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:

        def __init_subclass__(
            cls, *, version: int = 1, renamed: Mapping[str, str] | None = None, dropped: Sequence[str] = ()
        ) -> None: ...


class Event(_Value):
    """An immutable typed record. `id=` names the field that identifies the event, and `time=` names the field with its
    event time.

    class Fix(Event, id="fix_id", time="at"):
        fix_id: str
        at: datetime

    The class can be changed even if events are already stored; they are then read as the new class. New fields get
    their defaults. `renamed` maps old field names to new names, and `dropped` lists removed fields. For any other
    change, increase `version` and define a static method `migrate(version, fields)`, which takes a dict of the fields
    in that version and returns the fields of the next version.

    `__declared__` is the class that the user wrote, even for an event read from a log, whose actual class is a wire
    twin.
    """

    __declared__: ClassVar[type[Any]]
    __id_field__: ClassVar[str | None] = None
    __time_field__: ClassVar[str | None] = None
    __event_version__: ClassVar[int] = 1
    __renamed__: ClassVar[dict[str, str]] = {}
    __dropped__: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:

        def __init_subclass__(
            cls,
            *,
            id: str | None = None,
            time: str | None = None,
            version: int = 1,
            renamed: Mapping[str, str] | None = None,
            dropped: Sequence[str] = (),
        ) -> None: ...


class Raw(Event):
    """An event in a stream without an event class: the bytes as they were sent."""

    data: bytes


class Rejected(Event):
    """A dead letter: the data that was sent, the reason it was rejected, and the position of the error (`path`, such as
    `$.venue.lat`)."""

    reason: str
    path: str | None
    raw: bytes


class Failed(Event):
    """An event for which a handler raised an exception: its JSON, its position, and the traceback."""

    stream: str
    partition: int
    offset: int
    key: str | None
    error: str
    traceback: str
    event: str


class MissedWindow(Record):
    """A window that had closed before one of its events arrived."""

    start: datetime
    end: datetime


class Late(Event):
    """An event that arrived too late for a view: its JSON, its position, and the windows it missed.

    `at` is the event time, and `watermark` is the view's watermark when the event was read. `late_s` says by how many
    seconds the watermark had passed the end of the newest window that the event missed. If the event did not miss a
    window, `late_s` is measured from the event time.
    """

    stream: str
    partition: int
    offset: int
    id: str | None
    at: datetime
    watermark: datetime
    late_s: float
    windows: list[MissedWindow]
    event: str


@dataclass(frozen=True)
class Field:
    """One field of an event class: its Python type without `Annotated` and `None`, and its markers."""

    name: str
    hint: Any
    base: Any
    nullable: bool
    epoch: bool


class UnmappedType(DeclarationError):
    code = "unmapped_type"

    def __init__(self, path: str, hint: Any, why: str = "") -> None:
        shown = getattr(hint, "__name__", None) or str(hint)
        super().__init__(
            f"{path}: the type {shown} is not supported{why}; use str, int, float, bool, bytes, datetime, date, "
            "Decimal, UUID, Enum, Literal, a Record, or Optional, list and dict[str, ...] of them",
            path=path,
        )


@per_class
def fields(cls: type) -> tuple[Field, ...]:
    """Return the fields of an event or record class, with their types resolved."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(_field_of_hint(name, hints[name]) for name in cls.__struct_fields__)  # type: ignore[attr-defined]


def untyped(cls: type) -> list[str]:
    """Return class attributes that look like fields without a type: `Order.price` for `price = 3.5`."""
    typed = typing.get_type_hints(cls)
    names = [
        f"{cls.__name__}.{name}"
        for name, value in vars(cls).items()
        if name not in typed and _is_plain_value(name, value)
    ]
    for field in fields(cls):
        for part in (field.base, *get_args(field.base)):
            if isinstance(part, type) and issubclass(part, Record):
                names += untyped(part)
    return names


def _is_plain_value(name: str, value: Any) -> bool:
    return not name.startswith("_") and not callable(value) and not hasattr(value, "__get__")


def _field_of_hint(name: str, hint: Any) -> Field:
    base, nullable, epoch = hint, False, False
    while True:
        if get_origin(base) is Annotated:
            epoch = epoch or any(isinstance(mark, Epoch) for mark in base.__metadata__)
            base = get_args(base)[0]
        elif get_origin(base) in (Union, types.UnionType) and type(None) in get_args(base):
            nullable = True
            rest = tuple(arg for arg in get_args(base) if arg is not type(None))
            base = rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007  # built from a tuple
        else:
            return Field(name, hint, base, nullable, epoch)


def _scalar_arrow_types() -> dict[Any, pa.DataType]:
    import pyarrow as pa

    return {
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        bytes: pa.binary(),
        datetime: pa.timestamp("us", "UTC"),
        date: pa.date32(),
        Decimal: pa.decimal128(DECIMAL_DIGITS, DECIMAL_SCALE),
        UUID: pa.string(),
    }


def arrow_type(hint: Any, path: str = "$", nested: bool = False, above: tuple[type, ...] = ()) -> pa.DataType:
    """Return the Arrow type of a Python type. Raises `UnmappedType` with the path of the part that has no Arrow
    type."""
    import pyarrow as pa

    field = _field_of_hint("", hint)
    base, inner = field.base, get_args(field.base)
    if field.epoch and (nested or base is not datetime):
        raise UnmappedType(path, hint, ": EpochMillis can be used only for a field of the event itself")
    scalar = _scalar_arrow_types().get(base) if isinstance(base, type) else None
    if scalar is not None:
        return scalar
    if isinstance(base, type) and issubclass(base, enum.Enum):
        return _arrow_of_values([member.value for member in base], path, hint)
    if get_origin(base) is Literal:
        return _arrow_of_values(list(inner), path, hint)
    if get_origin(base) is list and inner:
        return pa.list_(arrow_type(inner[0], f"{path}[]", True, above))
    if get_origin(base) is dict and inner and inner[0] is str:
        return pa.map_(pa.string(), arrow_type(inner[1], f"{path}{{}}", True, above))
    if isinstance(base, type) and issubclass(base, Record) and base is not Record:
        return _arrow_struct(base, path, above)
    if isinstance(base, type) and issubclass(base, StateValue):
        raise UnmappedType(
            path, hint, ": it can be used only in a handler's state; in an event, use bytes from to_bytes()"
        )
    raise UnmappedType(path, hint)


def _arrow_of_values(values: list[Any], path: str, hint: Any) -> pa.DataType:
    import pyarrow as pa

    if values and all(isinstance(value, str) for value in values):
        return pa.string()
    if values and all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return pa.int64()
    raise UnmappedType(path, hint, ": its values must be either all strings or all integers")


def _arrow_struct(cls: type[Record], path: str, above: tuple[type, ...]) -> pa.DataType:
    import pyarrow as pa

    if cls in above:
        raise UnmappedType(path, cls, ": it contains itself")
    if not fields(cls):
        raise UnmappedType(path, cls, ": it has no fields")
    return pa.struct(
        [
            pa.field(field.name, arrow_type(field.hint, f"{path}.{field.name}", True, (*above, cls)))
            for field in fields(cls)
        ]
    )


@per_class
def event_schema(cls: type[Event]) -> pa.Schema:
    """Return the Arrow schema of a stream with this event class: the event's fields, then the system columns. In a
    tick, all fields except the event time are null."""
    import pyarrow as pa

    own = [pa.field(field.name, arrow_type(field.hint, f"$.{field.name}")) for field in fields(cls)]
    return pa.schema([*own, *system_fields()])


def shown(schema: pa.Schema) -> pa.Schema:
    """Return a schema without the system columns, as readers see it."""
    import pyarrow as pa

    return pa.schema([field for field in schema if field.name not in HIDDEN_COLUMNS])


def system_fields() -> tuple[pa.Field, ...]:
    """Return the system columns, which follow the event's fields in every stream."""
    import pyarrow as pa

    kinds = (pa.string(), pa.string(), pa.timestamp("us", "UTC"), pa.int8())
    return tuple(pa.field(name, kind) for name, kind in zip(SYSTEM_COLUMNS, kinds, strict=True))


@per_class
def wire_class(cls: type) -> type[msgspec.Struct]:
    """Return the strict twin of a class, used to decode request bodies."""
    return _strict_class(cls, wire_class, wired=True)


@per_class
def value_class(cls: type) -> type[msgspec.Struct]:
    """Return the strict twin of a class, used to check values that a user's code returns."""
    return _strict_class(cls, value_class, wired=False)


def _strict_class(cls: type, again: Callable[[type], type], *, wired: bool) -> type[msgspec.Struct]:
    specs: list[Any] = []
    for field in fields(cls):
        info = next(f for f in msgspec.structs.fields(cls) if f.name == field.name)
        kind = _strict_type(field.hint, again, wired)
        if info.default is not msgspec.NODEFAULT:
            specs.append((field.name, kind, info.default))
        elif info.default_factory is not msgspec.NODEFAULT:
            specs.append((field.name, kind, msgspec.field(default_factory=info.default_factory)))
        else:
            specs.append((field.name, kind))
    return msgspec.defstruct(cls.__name__, specs, kw_only=True, frozen=True, gc=False)


def _strict_type(hint: Any, again: Callable[[type], type], wired: bool) -> Any:
    field = _field_of_hint("", hint)
    base, inner = field.base, get_args(field.base)
    strict: Any = base
    if field.epoch and wired:
        strict = Annotated[int, msgspec.Meta(ge=MILLIS_MIN, le=MILLIS_MAX)]
    elif base is int:
        strict = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
    elif base is datetime:
        strict = Annotated[datetime, msgspec.Meta(tz=True)]
    elif get_origin(base) is list:
        strict = list[_strict_type(inner[0], again, wired)]  # type: ignore[misc]
    elif get_origin(base) is dict:
        strict = dict[str, _strict_type(inner[1], again, wired)]  # type: ignore[misc]
    elif isinstance(base, type) and issubclass(base, Record):
        strict = again(base)
    return strict | None if field.nullable else strict


def may_share(cls: type) -> bool:
    """Return whether an instance can contain a list or a dict, which other code could still modify."""
    return any(_holds_container(field.base) for field in fields(cls))


def _holds_container(base: Any) -> bool:
    if isinstance(base, type) and issubclass(base, Record):
        return may_share(base)
    return get_origin(base) in (list, dict)


def state_problem(cls: Any) -> str | None:
    """Return why a class cannot be a handler's state, or None if it can."""
    if not (isinstance(cls, type) and issubclass(cls, State) and cls is not State):
        return f"{cls!r} is not a class derived from State"
    try:
        required = [field.name for field in msgspec.structs.fields(cast(Any, cls)) if field.required]
        if required:
            name = cls.__name__
            return f"{name}.{required[0]} needs a default, because the state of a new key starts as {name}()"
        for field in fields(cls):
            arrow_type(_unpacked(field.hint), f"{cls.__name__}.{field.name}")
    except UnmappedType as error:
        return error.message
    except NameError as error:
        return f"a type of {cls.__name__} cannot be resolved: {error}"
    return _change_problem(cls)


def _unpacked(hint: Any) -> Any:
    """Return the type of a state's field with state values replaced by bytes, even inside a list or a dict."""
    base, inner = _field_of_hint("", hint).base, get_args(_field_of_hint("", hint).base)
    if isinstance(base, type) and issubclass(base, StateValue):
        return bytes
    if get_origin(base) is list and inner:
        return list[_unpacked(inner[0])]  # type: ignore[misc]
    if get_origin(base) is dict and len(inner) == 2:
        return dict[inner[0], _unpacked(inner[1])]  # type: ignore[valid-type,misc]
    return hint


def _change_problem(cls: type[State] | type[Event]) -> str | None:
    """Return why the version, renamed or dropped fields of a class are invalid, or None if they are valid."""
    names = cls.__struct_fields__
    version = cls.__event_version__ if issubclass(cls, Event) else cls.__state_version__
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        return f"the version of {cls.__name__} is {version!r}; use 1, 2, 3, ..."
    for name in (*cls.__dropped__, *cls.__renamed__):
        if name in names:
            return f"{cls.__name__}.{name} is declared as dropped or renamed, but the class still has it"
    for name in cls.__renamed__.values():
        if name not in names:
            return f"{cls.__name__} says that a field was renamed to {name}, but has no field of that name"
    both = set(cls.__dropped__) & set(cls.__renamed__)
    if both:
        return f"{cls.__name__} declares {min(both)} as both dropped and renamed"
    return None


def event_problem(cls: type[Event]) -> str | None:
    """Return why an event class's declarations about earlier versions are invalid, or None if they are valid."""
    reason = _change_problem(cls)
    migrate = migrate_of(cls)
    if reason is not None or migrate is None:
        return reason
    if cls.__event_version__ == 1:
        return f"{cls.__name__}.migrate is never called: {cls.__name__} has version 1; set version=2 or higher"
    try:
        inspect.signature(migrate).bind(1, {})
    except TypeError:
        return f"{cls.__name__}.migrate must be a static method with two arguments: migrate(version, fields)"
    return None


Migrate = Callable[[int, dict[str, Any]], dict[str, Any]]


def migrate_of(cls: type) -> Migrate | None:
    """Return the static method with which a state or event class converts the fields of one version to those of the
    next, or None if the class has no such method."""
    method = getattr(cls, "migrate", None) if "migrate" not in cls.__struct_fields__ else None  # type: ignore[attr-defined]
    return method if callable(method) else None


def holds_decimal(hint: Any) -> bool:
    """Return whether a type contains a Decimal, whose range msgspec does not check."""
    base = _field_of_hint("", hint).base
    if isinstance(base, type) and issubclass(base, Record):
        return any(holds_decimal(field.hint) for field in fields(base))
    return base is Decimal or any(holds_decimal(arg) for arg in get_args(base) if arg is not type(None))


def decimal_fits(value: Decimal) -> bool:
    """Return whether a Decimal keeps its value in the column type. It can lose trailing zeros, as long as it does not
    have more digits than Arrow can parse."""
    if not value.is_finite():
        return False
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    if scale > DECIMAL_SCALE and (max(scale, len(digits)) > DECIMAL_DIGITS or any(digits[DECIMAL_SCALE - scale :])):
        return False
    return len(digits) - scale <= DECIMAL_DIGITS - DECIMAL_SCALE


def to_millis(value: datetime) -> int:
    """Convert a time to milliseconds since 1970; a naive time is interpreted as UTC."""
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)


def type_name(hint: Any) -> str:
    """Return a type's name in the API, which describes what a producer must send. `epoch` means milliseconds since 1970
    as an integer."""
    field = _field_of_hint("", hint)
    base, inner = field.base, get_args(field.base)
    if field.epoch:
        name = "epoch"
    elif get_origin(base) is Literal:
        name = " | ".join(map(repr, inner))
    elif get_origin(base) is list:
        name = f"list<{type_name(inner[0])}>"
    elif get_origin(base) is dict:
        name = f"map<str, {type_name(inner[1])}>"
    elif get_origin(base) is tuple:
        name = f"tuple<{', '.join(map(type_name, inner))}>"
    elif issubclass(base, enum.Enum):
        name = " | ".join(repr(member.value) for member in base)
    elif issubclass(base, Record | Event):
        name = f"struct<{', '.join(f'{field.name}: {type_name(field.hint)}' for field in fields(base))}>"
        if getattr(base, "__event_version__", 1) > 1:  # an event stored in a state
            name += f" of version {base.__event_version__}"
    elif base is bytearray:  # used in states, which are modified in place
        name = "bytes"
    else:
        name = getattr(base, "__stored_name__", base.__name__.lower())
    return f"{name} | null" if field.nullable else name
