"""Classes and their instances: which are the app's own, and what a person wrote in them."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from penstock.fingerprints.code import is_local, is_local_function

_OF_CLASS = frozenset(
    {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__",
     "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__conditional_annotations__",
     "__orig_bases__", "__parameters__", "__abstractmethods__", "_abc_impl", "__dataclass_fields__", "__match_args__",
     "__dataclass_params__", "__struct_config__", "__struct_fields__", "__struct_defaults__",
     "__struct_encode_fields__"}
)  # fmt: skip


def is_local_class(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    if module is None:
        return cls.__module__ != "builtins"  # from a file that is no longer loaded, or was never imported
    file = getattr(module, "__file__", None)
    return (file is not None and is_local(file)) or cls.__module__ == "__main__"


def field_texts(cls: type) -> Iterator[tuple[str, str]]:
    """The fields of a class with the text of their types: those of dataclasses and structs are part of what it is."""
    try:
        found = cls.__annotations__ if "__annotations__" in vars(cls) or hasattr(cls, "__annotate__") else {}
    except Exception:
        found = {}
    for name, kind in found.items():
        yield name, kind.__qualname__ if isinstance(kind, type) else str(kind)


def contents(cls: type) -> Iterator[tuple[str, Any]]:
    """What the body of a class says. What dataclasses, structs and named tuples make from it is left out, but for the
    defaults."""
    made = hasattr(cls, "__dataclass_fields__")
    made_new = "_field_defaults" in vars(cls) and issubclass(cls, tuple)  # the fields of a named tuple say the same
    is_enum = issubclass(cls, enum.Enum)
    for name, content in vars(cls).items():
        generated = made and isinstance(content, FunctionType) and not _written(content)
        generated |= made_new and name == "__new__"
        if name in _OF_CLASS or isinstance(content, MemberDescriptorType | GetSetDescriptorType):
            continue
        if generated or (is_enum and not _is_of_enum(cls, name, content)):
            continue
        yield name, content
    if made:
        fields: Mapping[str, Any] = cls.__dataclass_fields__  # type: ignore[attr-defined]
        yield "dataclass fields", {name: (each.default, each.default_factory) for name, each in fields.items()}
    if hasattr(cls, "__struct_defaults__"):
        yield "struct fields", (cls.__struct_fields__, cls.__struct_defaults__)  # type: ignore[attr-defined]


def _is_of_enum(cls: type[enum.Enum], name: str, content: Any) -> bool:
    """Whether the body of an enum says it, and it is no member: those are told apart."""
    if isinstance(content, FunctionType):
        return _written(content)
    return not name.startswith("_") and name not in cls.__members__


def _written(function: FunctionType) -> bool:
    """Whether a person wrote it: dataclasses and enums make functions of a text that has no file."""
    return is_local_function(function) and function.__code__.co_filename != "<string>"


def state(value: Any) -> list[tuple[str, Any]]:
    """The attributes of an instance, by name."""
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    if hasattr(type(value), "__struct_fields__"):
        found |= {name: getattr(value, name) for name in type(value).__struct_fields__}
    return sorted(found.items())
