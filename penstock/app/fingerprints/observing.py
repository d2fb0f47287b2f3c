"""Names, docstrings and annotations that code can read at run time. Fingerprints contain them only if the code that a
fingerprint covers reads them, so that renaming a function usually changes nothing."""

from __future__ import annotations

import dataclasses
import dis
from collections.abc import Iterator
from inspect import getattr_static
from types import CodeType, FunctionType
from typing import Any

from penstock.app.fingerprints.code import ATTRIBUTE_OPS, GLOBAL_OPS

NAMES = frozenset({"__name__", "__qualname__"})
DOC, ANNOTATIONS, TEXT = "__doc__", "__annotations__", "text"
_ATTRIBUTES = {*NAMES, DOC, ANNOTATIONS}
_FUNCTIONS = {
    **dict.fromkeys(("get_type_hints", "get_annotations", "signature", "getfullargspec"), ANNOTATIONS),
    "getdoc": DOC,
}
"""Functions of the standard library that read annotations and docstrings."""
_TEXT_FUNCTIONS = frozenset({"str", "repr", "ascii", "format", "print"})
_TEXT_ATTRIBUTES = frozenset({"format", "__str__", "__repr__", "__format__"})
_TEXT_OPS = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"})


def observations(code: CodeType) -> Iterator[str]:
    """Yield what code and its nested functions read of functions and classes: `__name__`, `__qualname__`, `__doc__`,
    `__annotations__`, or `text` if the code might convert an instance to text."""
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ATTRIBUTE_OPS or instruction.opname == "IMPORT_FROM":
            yield from _observed_by_attribute(name)
        elif instruction.opname in GLOBAL_OPS:
            yield from (_FUNCTIONS[name],) if name in _FUNCTIONS else ()
            yield from (TEXT,) if name in _TEXT_FUNCTIONS else ()
        elif instruction.opname in _TEXT_OPS:
            yield TEXT
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from observations(constant)
        elif isinstance(constant, str) and constant in _ATTRIBUTES:
            yield constant  # for `getattr`


def _observed_by_attribute(name: str) -> Iterator[str]:
    if name in _ATTRIBUTES:
        yield name
    elif name in _FUNCTIONS:
        yield _FUNCTIONS[name]
    elif name in _TEXT_ATTRIBUTES:
        yield TEXT


def function_texts(function: FunctionType, observed: frozenset[str]) -> Iterator[str]:
    """Yield the observed names and docstring of a function."""
    yield from (f"{name} {getattr(function, name)}" for name in sorted(NAMES & observed))
    if DOC in observed:
        yield f"doc {function.__doc__!r}"


def class_texts(cls: type, observed: frozenset[str]) -> Iterator[str]:
    """Yield the observed names and docstring of a class. If its instances can be converted to text, this includes the
    parts of a generated `repr` that the rest of a fingerprint does not cover."""
    shown = NAMES if TEXT in observed and _has_generated_text(cls) else frozenset()
    yield from (f"{name} {getattr(cls, name)}" for name in sorted(NAMES & (observed | shown)))
    if DOC in observed:
        yield f"doc {vars(cls).get('__doc__')!r}"
    if TEXT in observed and "__dataclass_fields__" in vars(cls):
        yield from (f"hidden {field.name}" for field in dataclasses.fields(cls) if not field.repr)


def _has_generated_text(cls: type) -> bool:
    """Return whether the text of an instance contains the name of its class, because a dataclass, struct or named tuple
    generates it."""
    generated: Any = vars(cls).get("__dataclass_params__")
    if generated is not None:
        return bool(generated.repr)
    is_named_tuple = issubclass(cls, tuple) and "_fields" in vars(cls)
    return is_named_tuple or getattr_static(cls, "__struct_fields__", None) is not None
