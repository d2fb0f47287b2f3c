"""Classes and their instances in fingerprints: finds the classes that belong to the app, and the attributes that the
user wrote."""

from __future__ import annotations

import enum
import sys
from abc import ABC
from collections.abc import Iterable, Iterator, Mapping
from inspect import getattr_static
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, Generic, Protocol, get_args, get_type_hints

from penstock.app.fingerprints.code import is_local, is_local_function
from penstock.app.fingerprints.hints import own_annotations

_MISSING = object()
_OF_CLASS = frozenset(
    {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__",
     "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__conditional_annotations__",
     "__orig_bases__", "__parameters__", "__abstractmethods__", "_abc_impl", "__dataclass_fields__", "__match_args__",
     "__dataclass_params__", "__struct_config__", "__struct_fields__", "__struct_defaults__",
     "__struct_encode_fields__"}
)  # fmt: skip


WRAPPING = frozenset(
    {
        "__wrapped__",
        "__name__",
        "__qualname__",
        "__doc__",
        "__module__",
        "__annotations__",
        "__dict__",
        "__type_params__",
    }
)
"""The attributes that `functools.wraps` copies from the wrapped function."""
_WITHOUT_STATE = frozenset({object, ABC, Generic, Protocol})
_NO_OPTION = frozenset({"init", "repr"})
"""Dataclass options that are left out: they affect only the methods of the class, or how an instance is printed."""


def is_local_class(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    if module is None:
        return cls.__module__ != "builtins"  # its file is no longer loaded, or was never imported
    file = getattr(module, "__file__", None)
    return (file is not None and is_local(file)) or cls.__module__ == "__main__"


def has_installed_base(cls: type) -> bool:
    """Return whether a class inherits from a class of Python or an installed package that can keep state of its own."""
    return any(
        base not in _WITHOUT_STATE and not is_local_class(base) and not has(base, "__struct_fields__")
        for base in cls.__mro__
    )


def has(value: Any, name: str) -> bool:
    """Return whether an object has an attribute, without running the user's `__getattr__`."""
    return getattr_static(value, name, _MISSING) is not _MISSING


def is_wrapper(value: Any) -> bool:
    """Return whether a value wraps a function, as `functools.wraps` does."""
    return has(value, "__wrapped__")


def answered_wrapped(value: Any) -> list[Any]:
    """Return `value.__wrapped__` as forms of fingerprints before 4 read it, which can come from the user's
    `__getattr__`. Empty if there is none. A dict keeps the keys that it had."""
    known = not isinstance(value, dict) or dict.__contains__(value, "__wrapped__")
    answer = getattr(value, "__wrapped__", _MISSING)
    if not known:
        dict.pop(value, "__wrapped__", None)
    return [] if answer is _MISSING else [answer]


def field_texts(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class, with their types as text, for its fingerprint. Fields are included because they
    define a dataclass or struct."""
    for name, kind in own_annotations(cls).items():
        yield name, kind.__qualname__ if isinstance(kind, type) else str(kind)


def class_hints(cls: type) -> list[tuple[str, Any]]:
    """Return the field names of a dataclass, struct or named tuple with their resolved type hints, sorted by name.
    Empty if the hints cannot be resolved."""
    if not any(has(cls, name) for name in ("__dataclass_fields__", "__struct_fields__", "_fields")):
        return []
    try:
        return sorted(get_type_hints(cls).items())
    except Exception:
        return []


def hinted_classes(hint: Any) -> list[type]:
    """Return the classes in a type hint, such as `Item` in `list[Item]`, in order."""
    if isinstance(hint, type) and not get_args(hint):
        return [hint]
    parts = (getattr(hint, "__supertype__", None), *get_args(hint))
    return [cls for part in parts if part is not None for cls in hinted_classes(part)]


def class_options(cls: type) -> list[str]:
    """Return the options of a dataclass or struct and of its fields."""
    options: list[str] = []
    if "__dataclass_params__" in vars(cls):
        params = vars(cls)["__dataclass_params__"]
        names = [name for name in type(params).__slots__ if name not in _NO_OPTION]
        options += [f"{name}={getattr(params, name)}" for name in names]
        options += [
            f"{field.name}: init={field.init}, compare={field.compare}, hash={field.hash}, kw_only={field.kw_only}"
            for field in vars(cls)["__dataclass_fields__"].values()
        ]
    if has(cls, "__struct_config__"):
        config = cls.__struct_config__  # type: ignore[attr-defined]
        options += [f"{name}={getattr(config, name)}" for name in sorted(dir(config)) if not name.startswith("_")]
        options += [f"encoded as {name}" for name in cls.__struct_encode_fields__]  # type: ignore[attr-defined]
    return options


def contents(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the contents of a class body for its fingerprint, including defaults, but without anything that
    dataclasses, structs and named tuples generate."""
    is_dataclass = has(cls, "__dataclass_fields__")
    made_new = "_field_defaults" in vars(cls) and issubclass(cls, tuple)  # implied by the fields of the named tuple
    is_enum = issubclass(cls, enum.Enum)
    for name, content in vars(cls).items():
        generated = is_dataclass and isinstance(content, FunctionType) and not _is_written_function(content)
        generated |= made_new and name == "__new__"
        if name in _OF_CLASS or isinstance(content, MemberDescriptorType | GetSetDescriptorType):
            continue
        if generated or (is_enum and not _is_enum_nonmember(cls, name, content)):
            continue
        yield name, content
    if is_dataclass:
        fields: Mapping[str, Any] = cls.__dataclass_fields__  # type: ignore[attr-defined]
        yield "dataclass fields", {name: (field.default, field.default_factory) for name, field in fields.items()}
    if has(cls, "__struct_defaults__"):
        yield "struct fields", (cls.__struct_fields__, cls.__struct_defaults__)  # type: ignore[attr-defined]


def later_contents(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the contents of a class body that forms of fingerprints before 4 did not cover: `__match_args__`, unless it
    follows from the fields; metadata of the fields of a dataclass; and values in an enum with private or special
    names."""
    fields: Mapping[str, Any] = vars(cls).get("__dataclass_fields__", {})
    in_order = tuple(name for name, field in fields.items() if field.init and not field.kw_only)
    in_order = tuple(getattr(cls, "__struct_fields__", ())) if has(cls, "__struct_fields__") else in_order
    arguments = vars(cls).get("__match_args__", ())
    if arguments != in_order[: len(arguments)] and "_fields" not in vars(cls):
        yield "__match_args__", arguments
    metadata = {name: dict(field.metadata) for name, field in fields.items() if field.metadata}
    if metadata:
        yield "metadata", metadata
    if issubclass(cls, enum.Enum):
        yield from ((name, value) for name, value in vars(cls).items() if _is_hidden_in_enum(cls, name, value))


def _is_hidden_in_enum(cls: type[enum.Enum], name: str, content: Any) -> bool:
    """Return whether the user wrote a value with a private or special name in the body of an enum."""
    reserved = name in _OF_CLASS or name in vars(enum.Enum) or (name[:1] == "_" != name[1:2] and name[-1:] == "_")
    function = getattr(content, "__func__", getattr(content, "fget", content))
    is_value = not isinstance(function, FunctionType) and name not in cls.__members__
    return name.startswith("_") and not reserved and is_value


def nested_classes(classes: Iterable[type]) -> list[type]:
    """Return the given classes that belong to the app, and all of the app's classes that they inherit from or use in
    their fields, directly or indirectly."""
    nested: dict[type, None] = {}
    waiting = list(classes)
    while waiting:
        cls = waiting.pop(0)
        if cls in nested or not is_local_class(cls):
            continue
        nested[cls] = None
        waiting += [*cls.__bases__, *(part for _, hint in class_hints(cls) for part in hinted_classes(hint))]
    return list(nested)


def written_contents(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield what the user wrote in the body of an event, record, state or enum besides its fields and members, such as
    methods and properties. `migrate` is left out, because it is compared where stored data is read."""
    for name, content in vars(cls).items():
        function = getattr(content, "__func__", getattr(content, "fget", getattr(content, "func", content)))
        if name == "migrate" or name in _OF_CLASS or isinstance(content, MemberDescriptorType | GetSetDescriptorType):
            continue
        if isinstance(function, FunctionType):
            if _is_written_function(function):
                yield name, content
        elif not (name.startswith("__") and name.endswith("__")) and not _is_declared_by_enum(cls, name):
            yield name, content


def _is_declared_by_enum(cls: type, name: str) -> bool:
    return issubclass(cls, enum.Enum) and (name.startswith("_") or name in cls.__members__)


def _is_enum_nonmember(cls: type[enum.Enum], name: str, content: Any) -> bool:
    """Return whether an entry in an enum's body is not a member. Members are compared separately."""
    function = getattr(content, "__func__", getattr(content, "fget", content))
    if isinstance(function, FunctionType) and (name.startswith("_") or function is content):
        return _is_written_function(function)
    return not name.startswith("_") and name not in cls.__members__


def _is_written_function(function: FunctionType) -> bool:
    """Return whether the user wrote a function. Functions that dataclasses and enums generate have no file."""
    return is_local_function(function) and function.__code__.co_filename != "<string>"


def state(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an instance for a fingerprint, sorted by name."""
    attributes = dict(value.__dict__) if has(value, "__dict__") else {}
    for name, cls in _slots(value):
        attributes |= _slot(value, cls, name)
    if has(type(value), "__struct_fields__"):
        attributes |= {name: getattr(value, name) for name in type(value).__struct_fields__}
    return sorted(attributes.items())


def private_slots(value: Any) -> list[tuple[str, Any]]:
    """Return an instance's attributes in slots with a private name such as `__rate`, sorted by their mangled name."""
    attributes: dict[str, Any] = {}
    for name, cls in _slots(value):
        if name.startswith("__") and not name.endswith("__"):
            mangled = f"_{cls.__name__.lstrip('_')}{name}"
            attributes |= _slot(value, cls, mangled)
    return sorted(attributes.items())


def _slots(value: Any) -> Iterator[tuple[str, type]]:
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                yield name, cls


def _slot(value: Any, cls: type, name: str) -> dict[str, Any]:
    """Return the content of a slot by its name. Empty if it has no content."""
    try:
        return {name: vars(cls)[name].__get__(value)}
    except (AttributeError, KeyError):
        return {}
