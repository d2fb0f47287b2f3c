"""Event, Record and State: typed value classes, and how their types map to Arrow and to the wire.

One table of types for the whole system. The Spark face is the Arrow face read by Spark; the JSON face is in
`columns.py`. An event on the wire is decoded into a *wire class*, a twin of the user's class that is strict where
Arrow and Spark are: times carry a zone, whole numbers fit 64 bits.
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

from penstock.errors import DeclarationError
from penstock.packed import Packed, fresh

if TYPE_CHECKING:
    import pyarrow as pa

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
MILLIS_MIN, MILLIS_MAX = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999
DECIMAL_DIGITS, DECIMAL_SCALE = 38, 18
KIND_EVENT, KIND_TICK, KIND_GONE = 0, 1, 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SYSTEM_COLUMNS = ("_id", "_key", "_ingest_time", "_kind")
INGEST_COLUMN = "ingest_time"
"""The column that a view by ingest time has for it."""


Function = TypeVar("Function", bound=Callable[..., Any])


def per_class(function: Function) -> Function:
    """Remember what a function of a class answers. (As `functools.cache`, whose type takes no classes with fields.)"""
    return cast(Function, functools.cache(function))


@dataclass(frozen=True)
class Epoch:
    """Marks a datetime that travels as a whole number of milliseconds since 1970."""


EpochMillis = Annotated[datetime, Epoch()]
"""A time that producers send as milliseconds since 1970. In views, handlers and answers it is an ordinary time."""


def _note_past(cls: Any, version: int | None, renamed: Any, dropped: Any) -> None:
    """Keep what a class statement says of earlier versions of the class."""
    if isinstance(dropped, str):
        raise TypeError(f"dropped takes a list of names: dropped=[{dropped!r}]")
    if version is not None:
        setattr(cls, "__event_version__" if hasattr(cls, "__event_version__") else "__state_version__", version)
    if renamed is not None:
        cls.__renamed__ = dict(renamed)
    if dropped is not None:
        cls.__dropped__ = tuple(dropped)


class _ValueMeta(msgspec.StructMeta):
    """Makes frozen classes whose fields are given by name. The class statement of an event takes `id=` and `time=`, and
    `version=`, `renamed=` and `dropped=` as that of a state does."""

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
                f"{name} has no versions of its own: give version, renamed and dropped to the event with it"
            )
        _note_past(cls, version, renamed, dropped)
        if id is not None:
            cls.__id_field__ = id
        if time is not None:
            cls.__time_field__ = time
        return cls

    def __init__(cls, name: str, bases: Any, space: Any, **_: Any) -> None:
        super().__init__(name, bases, space)


if TYPE_CHECKING:  # msgspec tells type checkers of mutable classes; ours are not, and take no positional arguments

    @dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
    class _Value:
        __struct_fields__: ClassVar[tuple[str, ...]]
else:

    class _Value(msgspec.Struct, metaclass=_ValueMeta):
        pass


class Record(_Value):
    """A value nested in an event: a venue, an address."""


class _StateMeta(msgspec.StructMeta):
    """Takes `version=`, `renamed=` and `dropped=` in the class statement, and sketches as defaults of fields."""

    def __new__(
        mcls, name: str, bases: Any, space: Any, *, version: int | None = None, renamed: Any = None, dropped: Any = None
    ) -> Any:
        own = {each: fresh(value) if isinstance(value, Packed) else value for each, value in space.items()}
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
    """What a handler remembers of one key. Every field has a default: a new key starts with `State()`.

    The class may change under state that exists. A new field has its default. `renamed` tells old names with the new
    ones, `dropped` those that are gone. For anything else raise `version` and give a static method `migrate(version,
    fields)`: it gets a dict of the fields as that version had them, and returns them as the next version has them.
    """

    __state_version__: ClassVar[int] = 1
    __renamed__: ClassVar[dict[str, str]] = {}
    __dropped__: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:

        def __init_subclass__(
            cls, *, version: int = 1, renamed: Mapping[str, str] | None = None, dropped: Sequence[str] = ()
        ) -> None: ...


class Event(_Value):
    """An immutable typed record. `id=` names the field that identifies it, `time=` the one that says when it happened.

    class Fix(Event, id="fix_id", time="at"):
        fix_id: str
        at: datetime

    The class may change under events that are stored: they are read as the new class. A new field has its default.
    `renamed` gives old names with the new ones, `dropped` those that are gone. For anything else raise `version` and
    give a static method `migrate(version, fields)`: it gets a dict of the fields as that version had them, and returns
    them as the next version has them.

    `__declared__` is the class as it was written, also of an event that was read from a log: that is of a twin.
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
    """The event of a stream that has no event class: bytes, as they came."""

    data: bytes


class Rejected(Event):
    """A dead letter: what was sent, why it was not taken, and where the fault is (`path`, as in `$.venue.lat`)."""

    reason: str
    path: str | None
    raw: bytes


class Failed(Event):
    """An event that a handler raised on: what it was (as JSON), where it stands, and the traceback."""

    stream: str
    partition: int
    offset: int
    key: str | None
    error: str
    traceback: str
    event: str


class MissedWindow(Record):
    """A window that was complete before an event of it came."""

    start: datetime
    end: datetime


class Late(Event):
    """An event that came too late for a view: what it was (as JSON), where it stands, and what it missed.

    `at` is its event time, `watermark` that of the view when the event was read. `late_s` is by how much it was late:
    how far the watermark had passed the end of the newest window that it missed, or the event's own time if it is not
    for a window that it was late.
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
    """One field of an event class: its Python type without `Annotated` and `None`, and how it is marked."""

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
            f"{path}: the type {shown} has no mapping{why}; use str, int, float, bool, bytes, datetime, date, Decimal, "
            "UUID, Enum, Literal, a Record, or Optional, list and dict[str, ...] of them",
            path=path,
        )


@per_class
def fields(cls: type) -> tuple[Field, ...]:
    """The fields of an event or record class, with their types resolved."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(_field(name, hints[name]) for name in cls.__struct_fields__)  # type: ignore[attr-defined]


def untyped(cls: type) -> list[str]:
    """Attributes that were meant as fields, it seems, but have no type: `Order.price`, for `price = 3.5`."""
    typed = typing.get_type_hints(cls)
    found = [
        f"{cls.__name__}.{name}" for name, value in vars(cls).items() if name not in typed and _is_plain(name, value)
    ]
    for each in fields(cls):
        for part in (each.base, *get_args(each.base)):
            if isinstance(part, type) and issubclass(part, Record):
                found += untyped(part)
    return found


def _is_plain(name: str, value: Any) -> bool:
    return not name.startswith("_") and not callable(value) and not hasattr(value, "__get__")


def _field(name: str, hint: Any) -> Field:
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


def _scalars() -> dict[Any, pa.DataType]:
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
    """The Arrow type of a Python type; `UnmappedType` with the path of the part that has none."""
    import pyarrow as pa

    field = _field("", hint)
    base, inner = field.base, get_args(field.base)
    if field.epoch and (nested or base is not datetime):
        raise UnmappedType(path, hint, ": EpochMillis is for a field of the event itself")
    scalar = _scalars().get(base) if isinstance(base, type) else None
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
    if isinstance(base, type) and issubclass(base, Packed):
        raise UnmappedType(path, hint, ": it is for the state of a handler; in an event, give bytes made by to_bytes()")
    raise UnmappedType(path, hint)


def _arrow_of_values(values: list[Any], path: str, hint: Any) -> pa.DataType:
    import pyarrow as pa

    if values and all(isinstance(value, str) for value in values):
        return pa.string()
    if values and all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return pa.int64()
    raise UnmappedType(path, hint, ": its values must be all text or all whole numbers")


def _arrow_struct(cls: type[Record], path: str, above: tuple[type, ...]) -> pa.DataType:
    import pyarrow as pa

    if cls in above:
        raise UnmappedType(path, cls, ": it contains itself")
    if not fields(cls):
        raise UnmappedType(path, cls, ": it has no fields")
    return pa.struct(
        [pa.field(each.name, arrow_type(each.hint, f"{path}.{each.name}", True, (*above, cls))) for each in fields(cls)]
    )


@per_class
def event_schema(cls: type[Event]) -> pa.Schema:
    """The Arrow schema of a stream of this event: its fields, then the system columns. A tick has no fields."""
    import pyarrow as pa

    own = [pa.field(each.name, arrow_type(each.hint, f"$.{each.name}")) for each in fields(cls)]
    return pa.schema([*own, *system_fields()])


def shown(schema: pa.Schema) -> pa.Schema:
    """A schema without the system columns: what readers see of it."""
    import pyarrow as pa

    return pa.schema([field for field in schema if field.name not in SYSTEM_COLUMNS])


def system_fields() -> tuple[pa.Field, ...]:
    """The columns that every stream has besides its own."""
    import pyarrow as pa

    kinds = (pa.string(), pa.string(), pa.timestamp("us", "UTC"), pa.int8())
    return tuple(pa.field(name, kind) for name, kind in zip(SYSTEM_COLUMNS, kinds, strict=True))


@per_class
def wire_class(cls: type) -> type[msgspec.Struct]:
    """The strict twin of a class that bodies are decoded into."""
    return _strict_class(cls, wire_class, wired=True)


@per_class
def value_class(cls: type) -> type[msgspec.Struct]:
    """The strict twin of a class that values made by a user's code are held against."""
    return _strict_class(cls, value_class, wired=False)


def _strict_class(cls: type, again: Callable[[type], type], *, wired: bool) -> type[msgspec.Struct]:
    specs: list[Any] = []
    for each in fields(cls):
        info = next(f for f in msgspec.structs.fields(cls) if f.name == each.name)
        kind = _strict_type(each.hint, again, wired)
        if info.default is not msgspec.NODEFAULT:
            specs.append((each.name, kind, info.default))
        elif info.default_factory is not msgspec.NODEFAULT:
            specs.append((each.name, kind, msgspec.field(default_factory=info.default_factory)))
        else:
            specs.append((each.name, kind))
    return msgspec.defstruct(cls.__name__, specs, kw_only=True, frozen=True, gc=False)


def _strict_type(hint: Any, again: Callable[[type], type], wired: bool) -> Any:
    field = _field("", hint)
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
    """Whether an instance can hold a list or a dict, which someone else may still change."""
    return any(_holds_container(each.base) for each in fields(cls))


def _holds_container(base: Any) -> bool:
    if isinstance(base, type) and issubclass(base, Record):
        return may_share(base)
    return get_origin(base) in (list, dict)


def state_problem(cls: Any) -> str | None:
    """Why a class cannot be a handler's state; None if it can."""
    if not (isinstance(cls, type) and issubclass(cls, State) and cls is not State):
        return f"{cls!r} is not a class derived from State"
    try:
        required = [each.name for each in msgspec.structs.fields(cast(Any, cls)) if each.required]
        if required:
            return f"{cls.__name__}.{required[0]} has no default, and a new key starts with {cls.__name__}()"
        for each in fields(cls):
            arrow_type(_unpacked(each.hint), f"{cls.__name__}.{each.name}")
    except UnmappedType as error:
        return error.message
    except NameError as error:
        return f"a type of {cls.__name__} cannot be resolved: {error}"
    return _change_problem(cls)


def _unpacked(hint: Any) -> Any:
    """The type of a field of a state with bytes in place of what is packed to bytes: by itself, in a list or a dict."""
    base, inner = _field("", hint).base, get_args(_field("", hint).base)
    if isinstance(base, type) and issubclass(base, Packed):
        return bytes
    if get_origin(base) is list and inner:
        return list[_unpacked(inner[0])]  # type: ignore[misc]
    if get_origin(base) is dict and len(inner) == 2:
        return dict[inner[0], _unpacked(inner[1])]  # type: ignore[valid-type,misc]
    return hint


def _change_problem(cls: type[State] | type[Event]) -> str | None:
    """Why what a class says of its past makes no sense."""
    names = cls.__struct_fields__
    version = cls.__event_version__ if issubclass(cls, Event) else cls.__state_version__
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        return f"the version of {cls.__name__} is {version!r}; use 1, 2, 3, ..."
    for name in (*cls.__dropped__, *cls.__renamed__):
        if name in names:
            return f"{cls.__name__}.{name} is declared as gone, and is there"
    for name in cls.__renamed__.values():
        if name not in names:
            return f"{cls.__name__} says that a field was renamed to {name}, and has none of that name"
    both = set(cls.__dropped__) & set(cls.__renamed__)
    if both:
        return f"{cls.__name__} says of {min(both)} both that it was dropped and that it was renamed"
    return None


def event_problem(cls: type[Event]) -> str | None:
    """Why what an event class says of its earlier versions makes no sense; None if it does."""
    reason = _change_problem(cls)
    migrate = migrate_of(cls)
    if reason is not None or migrate is None:
        return reason
    if cls.__event_version__ == 1:
        return f"{cls.__name__}.migrate is never called: it brings events of an earlier version to version 2 and on"
    try:
        inspect.signature(migrate).bind(1, {})
    except TypeError:
        return f"{cls.__name__}.migrate must be a static method of two arguments: migrate(version, fields)"
    return None


Migrate = Callable[[int, dict[str, Any]], dict[str, Any]]


def migrate_of(cls: type) -> Migrate | None:
    """The static method of a state or event class that brings fields from one version to the next."""
    found = getattr(cls, "migrate", None) if "migrate" not in cls.__struct_fields__ else None  # type: ignore[attr-defined]
    return found if callable(found) else None


def holds_decimal(hint: Any) -> bool:
    """Whether a Decimal stands somewhere in the type: its range must be checked apart, msgspec does not."""
    base = _field("", hint).base
    if isinstance(base, type) and issubclass(base, Record):
        return any(holds_decimal(each.hint) for each in fields(base))
    return base is Decimal or any(holds_decimal(arg) for arg in get_args(base) if arg is not type(None))


def decimal_fits(value: Decimal) -> bool:
    """Whether a Decimal keeps its worth in the column type. Zeros at its end may go, if it is written in no more digits
    than Arrow reads."""
    if not value.is_finite():
        return False
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    if scale > DECIMAL_SCALE and (max(scale, len(digits)) > DECIMAL_DIGITS or any(digits[DECIMAL_SCALE - scale :])):
        return False
    return len(digits) - scale <= DECIMAL_DIGITS - DECIMAL_SCALE


def to_millis(value: datetime) -> int:
    """A time as milliseconds since 1970; a naive one is taken as UTC."""
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)


def type_name(hint: Any) -> str:
    """A type as the API tells it: what a producer must send. `epoch` is whole milliseconds since 1970."""
    field = _field("", hint)
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
        name = f"struct<{', '.join(f'{each.name}: {type_name(each.hint)}' for each in fields(base))}>"
        if getattr(base, "__event_version__", 1) > 1:  # an event that is held in a state
            name += f" of version {base.__event_version__}"
    elif base is bytearray:  # of a state that changes them in place
        name = "bytes"
    else:
        name = base.__name__.lower()
    return f"{name} | null" if field.nullable else name
