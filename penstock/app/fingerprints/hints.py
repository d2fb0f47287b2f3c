"""Type hints in fingerprints: the types that the names in a hint stand for, which its text does not show."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getattr_static
from types import UnionType
from typing import Annotated, Any, ForwardRef, NewType, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

_FIELDED = ("__dataclass_fields__", "__struct_fields__", "_fields", "__total__")
"""An attribute of each dataclass, struct, named tuple and typed dict."""
_NAMING: tuple[Any, ...] = (NewType, TypeVar, ParamSpec, ForwardRef)


def own_annotations(cls: type) -> dict[str, Any]:
    """Return the annotations in a class's own body. Empty if they cannot be evaluated."""
    try:
        lazy = getattr_static(cls, "__annotate__", None) is not None  # Python 3.14
        return dict(cls.__annotations__) if "__annotations__" in vars(cls) or lazy else {}
    except Exception:
        return {}


def has_fields(cls: type) -> bool:
    """Return whether the annotations of a class define its fields."""
    return any(name in vars(base) for base in cls.__mro__ for name in _FIELDED)


def field_hints(cls: type) -> list[tuple[str, Any]]:
    """Return the fields that a class body declares, with their resolved type hints, sorted by name. A hint with a name
    that cannot be resolved stays as it is."""
    return sorted(resolved(own_annotations(cls), cls.__module__).items()) if has_fields(cls) else []


def resolved(annotations: dict[str, Any], module: str) -> dict[str, Any]:
    """Return annotations of a module with their names resolved, each on its own."""
    hints = {}
    for name, hint in annotations.items():
        try:
            holder = type("Holder", (), {"__annotations__": {name: hint}, "__module__": module})
            hints[name] = get_type_hints(holder, include_extras=True)[name]
        except Exception:
            hints[name] = hint
    return hints


def hint_text(hint: Any) -> str:
    """Return a type hint as text, with the names that the user wrote."""
    return hint.__qualname__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def names_types(hint: Any) -> bool:
    """Return whether a type hint contains names of types that its text does not show, such as a `NewType`, or values,
    as in `Annotated`."""
    return (
        isinstance(hint, _NAMING)
        or type(hint).__name__ == "TypeAliasType"
        or get_origin(hint) is Annotated
        or any(map(names_types, _arguments(hint)))
    )


def hint_parts(hint: Any) -> tuple[str, tuple[Any, ...], tuple[Any, ...]] | None:
    """Return the kind of a type hint, the hints in it, and the values in it. None if it has no parts."""
    if isinstance(hint, NewType):
        return "new type", (hint.__supertype__,), ()
    if isinstance(hint, TypeVar):
        has_default = getattr(hint, "has_default", bool)()  # Python 3.13
        limits = (hint.__bound__, *hint.__constraints__, getattr(hint, "__default__", None) if has_default else None)
        return "type variable", tuple(limit for limit in limits if limit is not None), ()
    if type(hint).__name__ == "TypeAliasType":
        return "type alias", (hint.__value__,), ()
    origin = get_origin(hint)
    if origin is None:
        return None
    if origin in (Union, UnionType):
        return "union", get_args(hint), ()
    kind = str(getattr(origin, "__name__", origin))
    if origin is Annotated:
        return kind, (hint.__origin__,), tuple(hint.__metadata__)
    return (kind, (), get_args(hint)) if kind == "Literal" else (kind, (origin, *_arguments(hint)), ())


def _arguments(hint: Any) -> Iterator[Any]:
    """Yield the arguments of a type hint, including those in the list of parameters of a `Callable`."""
    if get_origin(hint) is None or str(getattr(get_origin(hint), "__name__", "")) == "Literal":
        return
    for argument in get_args(hint):
        yield from argument if isinstance(argument, list) else (argument,)
