"""The walk through everything that a function reaches, as tokens of a digest. See `functions.py` for what counts."""

from __future__ import annotations

import enum
import functools
import re
from collections import deque
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any
from uuid import UUID

from penstock.fingerprints.classes import contents, field_texts, is_local_class, state
from penstock.fingerprints.code import is_local, is_local_function, references
from penstock.fingerprints.digests import Tokens
from penstock.fingerprints.imports import imported, imports

FORM = 2
"""Of fingerprints: what they see. It is raised when they see more."""
VALUES_MAX = 1_000_000
"""Values that are looked at for one fingerprint: some seconds. What is beyond them is opaque."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_BY_REPR = (datetime, date, time, timedelta, tzinfo, Decimal, Fraction, UUID, PurePath, range, slice, re.Pattern,
            UnionType, GenericAlias)  # fmt: skip
_SCALARS = (int, float, complex, str, bytes, bytearray)
_SEQUENCES = (list, tuple, deque)
_HOLDERS: tuple[Any, ...] = (*_SCALARS, *_SEQUENCES, dict, set, frozenset)
_NAMED = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType, MemberDescriptorType)
Code = Callable[[Tokens, CodeType], bool]


class Walk:
    """One fingerprint in the making. `code` puts the tokens of one function's code, and says whether it could.

    Globals are walked in the order in which the instructions load them, so that a new name for one changes nothing; or
    `by_name`, which does not depend on the version of Python.

    In its first form a fingerprint did not see imports in functions, what instances of subclasses of built-in classes
    hold, enums by their members, metaclasses and mapping proxies. A walk of form 1 can be compared with those; `added`
    tells whether it leaves anything out that a walk of this form has.
    """

    def __init__(self, code: Code, *, by_name: bool = False, form: int = FORM) -> None:
        self.tokens = Tokens()
        self.opaque: list[str] = []
        self.lacking = False
        self.added = False
        self._form = form
        self._code = code
        self._by_name = by_name
        self._seen: dict[int, tuple[int, Any]] = {}
        self._above: list[int] = []
        self._count = 0

    def _sees_more(self) -> bool:
        """Whether something counts that the first form left out."""
        self.added = True
        return self._form > 1

    def value(self, value: Any, name: str) -> None:
        """Put a value of any type. `name` is how the user calls it, for what is opaque."""
        self._count += 1
        if self._count > VALUES_MAX:
            self._opaque(value, name)
        elif isinstance(value, enum.Enum):
            self._enum_member(value)
        elif type(value) in _PLAIN:
            self.tokens.put(type(value).__name__, repr(value))
        elif isinstance(value, FunctionType | type | ModuleType):
            self._once(value, name)
        elif id(value) in self._above:
            self.tokens.put("above", self._above.index(id(value)))
        else:
            self._above.append(id(value))
            try:
                self._compound(value, name)
            finally:
                self._above.pop()

    def _once(self, value: Any, name: str) -> None:
        """Functions, classes and modules are walked where they are met first."""
        if id(value) in self._seen:
            self.tokens.put("again", self._seen[id(value)][0])
            return
        self._seen[id(value)] = (len(self._seen), value)
        if isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, ModuleType):
            self._module(value)
        else:
            self._class(value)

    def _function(self, function: FunctionType) -> None:
        local = is_local_function(function)
        self.tokens.put("function")
        if not local:
            self.tokens.put(_module_of(function.__code__), function.__code__.co_qualname)
        elif not self._code(self.tokens, function.__code__):
            self.lacking = True
        for number, cell in enumerate(function.__closure__ or ()):
            self._cell(cell, _free_name(function, number))
        if local:
            self.value(function.__defaults__, "defaults")
            self.value(function.__kwdefaults__, "defaults")
            self._globals(function)
            self._imports(function)
        if "__wrapped__" in function.__dict__:
            self.value(function.__dict__["__wrapped__"], "__wrapped__")

    def _cell(self, cell: CellType, name: str) -> None:
        try:
            content = cell.cell_contents
        except ValueError:
            self.tokens.put("empty")
            return
        self.value(content, name)

    def _globals(self, function: FunctionType) -> None:
        """What the function reaches through globals."""
        builtins = function.__globals__.get("__builtins__", {})
        known = vars(builtins) if isinstance(builtins, ModuleType) else builtins
        loaded = dict.fromkeys(references(function.__code__))
        found = sorted(loaded) if self._by_name else list(loaded)
        self.tokens.put("globals", len(found))
        for each in found:
            if each.name in function.__globals__:
                self._global(function.__globals__[each.name], each.name, each.attributes)
            else:
                self.tokens.put("builtin" if each.name in known else "missing", each.name)

    def _imports(self, function: FunctionType) -> None:
        """What the function reaches in local modules that it imports itself."""
        found = imports(function.__code__)
        if not found or not self._sees_more():
            return
        for each in sorted(found) if self._by_name else found:
            name = ".".join(filter(None, (each.module, each.taken)))
            try:
                local, value = imported(each, function.__globals__.get("__package__"))
            except Exception as error:  # it fails in the same way where the function is run
                self.tokens.put("import", name, "failed", type(error).__name__)
                continue
            if local:
                self.tokens.put("import", name)
                self._global(value, name, each.attributes)

    def _global(self, value: Any, name: str, attributes: tuple[str, ...]) -> None:
        """Of a local module only what is used of it: `rates.VAT` is the value of VAT."""
        for number, each in enumerate(attributes):
            if not (isinstance(value, ModuleType) and is_local(getattr(value, "__file__", None))):
                break
            if not hasattr(value, each):
                self.tokens.put("missing", each)
                return
            value, name = getattr(value, each), ".".join((name, *attributes[number : number + 1]))
        self.value(value, name)

    def _module(self, module: ModuleType) -> None:
        if not is_local(getattr(module, "__file__", None)) or module.__name__ == "builtins":
            self.tokens.put("module", module.__name__)
            return
        names = [each for each in vars(module) if not each.startswith("__")]
        self.tokens.put("module", len(names))
        for each in sorted(names):
            self.tokens.put(each)
            self.value(vars(module)[each], f"{module.__name__}.{each}")

    def _class(self, cls: type) -> None:
        if not is_local_class(cls):
            self.tokens.put("class", cls.__module__, cls.__qualname__)
            return
        self.tokens.put("class", len(cls.__bases__))
        for base in cls.__bases__:
            self.value(base, base.__name__)
        if is_local_class(type(cls)) and self._sees_more():
            self.tokens.put("metaclass")
            self.value(type(cls), type(cls).__name__)
        if issubclass(cls, enum.Enum):
            self.tokens.put("members", len(cls.__members__))
            for name, member in cls.__members__.items():
                self.tokens.put(name)
                self.value(member.value, name)
        for name, text in sorted(field_texts(cls)):
            self.tokens.put("field", name, text)
        for name, content in sorted(contents(cls)):
            if issubclass(cls, enum.Enum) and not isinstance(content, FunctionType) and not self._sees_more():
                continue
            self.tokens.put("attribute", name)
            self.value(content, f"{cls.__name__}.{name}")

    def _enum_member(self, member: enum.Enum) -> None:
        self.tokens.put("member", type(member).__qualname__, member.name)
        self.value(member.value, member.name)
        if is_local_class(type(member)) and self._sees_more():
            self.value(type(member), type(member).__name__)

    def _compound(self, value: Any, name: str) -> None:
        kind = type(value)
        if isinstance(value, _BY_REPR):
            self.tokens.put(kind.__qualname__, repr(value))
            if is_local_class(kind) and self._sees_more():
                self.value(kind, kind.__name__)
        elif kind.__module__ == "typing":
            self.tokens.put("hint", repr(value))
        elif kind in (list, tuple):
            self._sequence(kind.__name__, value, name)
        elif kind is dict:
            self.tokens.put("dict", len(value))
            for key, content in value.items():
                self.value(key, name)
                self.value(content, f"{name}[{key!r}]")
        elif kind in (set, frozenset):
            self.tokens.put("set", len(value), *sorted(self._apart(each, name) for each in value))
        elif kind is MappingProxyType and self._sees_more():
            self._sequence("proxy", (dict(value),), name)
        elif isinstance(value, CodeType):
            self.lacking |= not self._code(self.tokens, value)
        else:
            self._object(value, name)

    def _object(self, value: Any, name: str) -> None:
        if isinstance(value, MethodType):
            self._sequence("method", (value.__self__, value.__func__), name)
        elif isinstance(value, functools.partial):
            self._sequence("partial", (value.func, value.args, value.keywords), name)
        elif isinstance(value, staticmethod | classmethod):
            self._sequence(type(value).__name__, (value.__func__,), name)
        elif isinstance(value, property):
            self._sequence("property", (value.fget, value.fset, value.fdel), name)
        elif isinstance(value, _NAMED):
            self.tokens.put("named", str(getattr(value, "__module__", "")), getattr(value, "__qualname__", repr(value)))
        elif _is_declaration(value):
            self._sequence(type(value).__name__, (value.name, getattr(value, "function", None)), name)
        elif type(value).__module__.startswith("pyspark."):
            self._of_spark(value, name)
        elif hasattr(value, "__wrapped__"):
            self._sequence("wrapped", (type(value), value.__wrapped__), name)
        else:
            self._instance(value, name)

    def _of_spark(self, value: Any, name: str) -> None:
        """A function that Spark was given, by what it is and not by what Spark has made of it."""
        if hasattr(value, "evalType") and hasattr(value, "func"):
            kind = str(value._returnType), value.evalType, value.deterministic
            self._sequence("udf", (value.func, *kind), name)
        elif type(value).__module__ == "pyspark.sql.types":
            self.tokens.put("type", repr(value))
        else:
            self._opaque(value, name)

    def _instance(self, value: Any, name: str) -> None:
        cls = type(value)
        if is_local_class(cls) or ("__dict__" in dir(value) and "__reduce__" not in vars(cls) and vars(value)):
            self.tokens.put("instance")
            self.value(cls, cls.__name__)
            for key, content in state(value):
                self.tokens.put(key)
                self.value(content, f"{name}.{key}")
            self._content(value, name)
            return
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:
            self._opaque(value, name)
            return
        if isinstance(reduced, str):
            self.tokens.put("named", cls.__module__, reduced)
            return
        parts = [tuple(each) if isinstance(each, Iterator) else each for each in reduced]
        self._sequence("reduced", tuple(parts), name)

    def _content(self, value: Any, name: str) -> None:
        """Put what an instance of a subclass of a built-in class holds beside its attributes."""
        base = next((each for each in _HOLDERS if isinstance(value, each)), None)
        if base is None or not self._sees_more():
            return
        self.tokens.put("content", base.__name__)
        if base in _SCALARS:
            self.tokens.put(base.__repr__(value))
        elif base is dict:
            self.value([*dict.items(value), getattr(value, "default_factory", None)], name)
        else:
            elements = base.__iter__(value)
            self.value(list(elements) if base in _SEQUENCES else frozenset(elements), name)

    def _sequence(self, kind: str, values: Any, name: str) -> None:
        self.tokens.put(kind, len(values))
        for each in values:
            self.value(each, name)

    def _apart(self, value: Any, name: str) -> str:
        """Digest of an element of a set, which has no place in an order."""
        other = Walk(self._code, by_name=self._by_name, form=self._form)
        other._seen, other._above, other._count = dict(self._seen), self._above, self._count
        other.value(value, name)
        self.opaque += other.opaque
        self.lacking |= other.lacking
        self.added |= other.added
        self._count = other._count
        return other.tokens.hex()

    def _opaque(self, value: Any, name: str) -> None:
        kind = type(value)
        self.tokens.put("opaque", kind.__module__, kind.__qualname__)
        self.opaque.append(f"{name or 'a value'} ({kind.__module__}.{kind.__qualname__})")


def _module_of(code: CodeType) -> str:
    """The file of an installed function, without the folder that it is installed in."""
    return "/".join(code.co_filename.replace("\\", "/").rsplit("/", 3)[1:])


def _free_name(function: FunctionType, number: int) -> str:
    return function.__code__.co_freevars[number]


def _is_declaration(value: Any) -> bool:
    """Streams, views, handlers and apps: their names count, and their functions; not where they were declared."""
    return type(value).__module__ in ("penstock.declared", "penstock.app") and hasattr(value, "where")
