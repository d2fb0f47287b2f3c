"""A traversal that turns everything a function reaches into tokens of a digest. `functions.py` describes what is
included."""

from __future__ import annotations

import enum
import functools
import re
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from operator import itemgetter
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

import msgspec

from penstock.app.fingerprints.classes import (
    WRAPPING,
    class_hints,
    class_options,
    contents,
    field_texts,
    hinted_classes,
    is_local_class,
    private_slots,
    state,
)
from penstock.app.fingerprints.code import class_name, file_name, is_local, is_local_function, module_name, references
from penstock.app.fingerprints.digests import TokenDigest
from penstock.app.fingerprints.imports import imported, imports

FORM = 3
"""The version of the fingerprint format, which determines what fingerprints cover. Increased when they cover more."""
VALUES_MAX = 1_000_000
"""Maximum number of values visited for one fingerprint; visiting them takes a few seconds. Further values are
opaque."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_BY_REPR = (datetime, date, time, timedelta, tzinfo, Decimal, Fraction, UUID, PurePath, range, slice, re.Pattern,
            UnionType, GenericAlias)  # fmt: skip
_SCALARS = (int, float, complex, str, bytes, bytearray)
_SEQUENCES = (list, tuple, deque)
PATTERN_CHARS_SHOWN = 200
"""The length at which Python truncates the `repr` of a regular expression."""
_BY_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    struct.Struct: ("format",),
    msgspec.json.Decoder: ("type", "strict", "dec_hook", "float_hook"),
    msgspec.msgpack.Decoder: ("type", "strict", "dec_hook", "ext_hook"),
    msgspec.json.Encoder: ("enc_hook", "decimal_format", "uuid_format", "order"),
    msgspec.msgpack.Encoder: ("enc_hook", "decimal_format", "uuid_format", "order"),
}
"""Classes from other packages whose instances cannot be pickled, with the attributes that define an instance."""
_HOLDERS: tuple[Any, ...] = (*_SCALARS, *_SEQUENCES, dict, set, frozenset)
_NAMED = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType, MemberDescriptorType)
Code = Callable[[TokenDigest, CodeType], bool]


class Walk:
    """The traversal for one fingerprint. `code` adds the tokens of one function's code, and returns whether it
    succeeded.

    Globals are visited in the order in which the instructions load them, so that renaming one changes nothing. With
    `by_name`, they are visited in order of name, which does not depend on the version of Python.

    A traversal with an earlier `form` can be compared with fingerprints in that form. Form 1 does not cover imports in
    functions, the contents of instances of subclasses of built-in classes, enum members, metaclasses or mapping
    proxies. Form 2 does not cover attributes of functions, of wrappers, or of subclasses of dates and time zones. Nor
    does it cover the objects of bound built-in methods, classes that only type hints mention, options of dataclasses
    and structs, or private methods of enums. `added` contains each form for which the traversal found values that
    earlier forms do not cover.
    """

    def __init__(self, code: Code, *, by_name: bool = False, form: int = FORM) -> None:
        self.tokens = TokenDigest()
        self.opaque: list[str] = []
        self.lacking = False
        self.added: set[int] = set()
        self._form = form
        self._code = code
        self._by_name = by_name
        self._seen: dict[int, tuple[int, Any]] = {}
        self._above: list[int] = []
        self._count = 0

    def _covers_form(self, form: int) -> bool:
        """Record in `added` that there is data that forms before `form` left out, and return whether to add it."""
        self.added.add(form)
        return self._form >= form

    def value(self, value: Any, name: str) -> None:
        """Add a value of any type to the fingerprint. `name` is the user's name for it, used for opaque values."""
        self._count += 1
        if self._count > VALUES_MAX:
            self._add_opaque_value(value, name)
        elif isinstance(value, enum.Enum):
            self._add_enum_value(value)
        elif type(value) in _PLAIN:
            self.tokens.put(type(value).__name__, repr(value))
        elif isinstance(value, FunctionType | type | ModuleType):
            self._add_once(value, name)
        elif id(value) in self._above:
            self.tokens.put("above", self._above.index(id(value)))
        else:
            self._above.append(id(value))
            try:
                self._add_compound_value(value, name)
            finally:
                self._above.pop()

    def _add_once(self, value: Any, name: str) -> None:
        """Add a function, class or module to the fingerprint: in full the first time, and as a reference after that."""
        if id(value) in self._seen:
            self.tokens.put("again", self._seen[id(value)][0])
            return
        self._seen[id(value)] = (len(self._seen), value)
        if isinstance(value, FunctionType):
            self._add_function_value(value)
        elif isinstance(value, ModuleType):
            self._add_module_value(value)
        else:
            self._add_class_value(value)

    def _add_function_value(self, function: FunctionType) -> None:
        local = is_local_function(function)
        self.tokens.put("function")
        if not local:
            self.tokens.put(file_name(function.__code__.co_filename), function.__code__.co_qualname)
        elif not self._code(self.tokens, function.__code__):
            self.lacking = True
        for number, cell in enumerate(function.__closure__ or ()):
            self._add_cell_value(cell, _closure_variable(function, number))
        if local:
            self.value(function.__defaults__, "defaults")
            self.value(function.__kwdefaults__, "defaults")
            self._add_global_values(function)
            self._add_imported_values(function)
        if "__wrapped__" in function.__dict__:
            self.value(function.__dict__["__wrapped__"], "__wrapped__")
        attributes = {name: value for name, value in function.__dict__.items() if name not in WRAPPING}
        if local and attributes and self._covers_form(3):
            self._add_value_attributes(sorted(attributes.items()), function.__name__)

    def _add_cell_value(self, cell: CellType, name: str) -> None:
        try:
            content = cell.cell_contents
        except ValueError:
            self.tokens.put("empty")
            return
        self.value(content, name)

    def _add_global_values(self, function: FunctionType) -> None:
        """Add everything that the function reaches through globals."""
        builtins = function.__globals__.get("__builtins__", {})
        known = vars(builtins) if isinstance(builtins, ModuleType) else builtins
        loaded = dict.fromkeys(references(function.__code__))
        global_references = sorted(loaded) if self._by_name else list(loaded)
        self.tokens.put("globals", len(global_references))
        for reference in global_references:
            if reference.name in function.__globals__:
                self._add_global_value(function.__globals__[reference.name], reference.name, reference.attributes)
            else:
                self.tokens.put("builtin" if reference.name in known else "missing", reference.name)

    def _add_imported_values(self, function: FunctionType) -> None:
        """Add everything that the function reaches in local modules that it imports itself."""
        own_imports = imports(function.__code__)
        if not own_imports or not self._covers_form(2):
            return
        for wanted in sorted(own_imports) if self._by_name else own_imports:
            name = ".".join(filter(None, (wanted.module, wanted.taken)))
            try:
                local, value = imported(wanted, function.__globals__.get("__package__"))
            except Exception as error:  # the import fails in the same way when the function runs
                self.tokens.put("import", name, "failed", type(error).__name__)
                continue
            if local:
                self.tokens.put("import", name)
                self._add_global_value(value, name, wanted.attributes)

    def _add_global_value(self, value: Any, name: str, attributes: tuple[str, ...]) -> None:
        """Add only the used part of a local module: `rates.VAT` adds the value of VAT."""
        for number, attribute in enumerate(attributes):
            if not (isinstance(value, ModuleType) and is_local(getattr(value, "__file__", None))):
                break
            if not hasattr(value, attribute):
                self.tokens.put("missing", attribute)
                return
            value, name = getattr(value, attribute), ".".join((name, *attributes[number : number + 1]))
        self.value(value, name)

    def _add_module_value(self, module: ModuleType) -> None:
        if not is_local(getattr(module, "__file__", None)) or module.__name__ == "builtins":
            self.tokens.put("module", module_name(module.__name__))
            return
        names = [name for name in vars(module) if not name.startswith("__")]
        self.tokens.put("module", len(names))
        for name in sorted(names):
            self.tokens.put(name)
            self.value(vars(module)[name], f"{module.__name__}.{name}")

    def _add_class_value(self, cls: type) -> None:
        if not is_local_class(cls):
            self.tokens.put("class", module_name(cls.__module__), class_name(cls))
            return
        self.tokens.put("class", len(cls.__bases__))
        for base in cls.__bases__:
            self.value(base, base.__name__)
        if is_local_class(type(cls)) and self._covers_form(2):
            self.tokens.put("metaclass")
            self.value(type(cls), type(cls).__name__)
        if issubclass(cls, enum.Enum):
            self.tokens.put("members", len(cls.__members__))
            for name, member in cls.__members__.items():
                self.tokens.put(name)
                self.value(member.value, name)
        for name, text in sorted(field_texts(cls)):
            self.tokens.put("field", name, text)
        for name, content in sorted(contents(cls), key=itemgetter(0)):
            later = issubclass(cls, enum.Enum) and not isinstance(content, FunctionType)
            if later and not self._covers_form(3 if name.startswith("_") else 2):
                continue
            self.tokens.put("attribute", name)
            self.value(content, f"{cls.__name__}.{name}")
        options = class_options(cls)
        if options and self._covers_form(3):
            self.tokens.put("options", *options)
        for name, hint in class_hints(cls):
            self._add_hinted_classes(hint, f"{cls.__name__}.{name}")

    def _add_hinted_classes(self, hint: Any, name: str) -> None:
        """Add the app's classes in a type hint, which code may construct without naming them."""
        classes = [cls for cls in hinted_classes(hint) if is_local_class(cls)]
        if classes and self._covers_form(3):
            self._add_sequence_values("hinted", classes, name)

    def _add_enum_value(self, member: enum.Enum) -> None:
        self.tokens.put("member", type(member).__qualname__, member.name)
        self.value(member.value, member.name)
        if is_local_class(type(member)) and self._covers_form(2):
            self.value(type(member), type(member).__name__)

    def _add_compound_value(self, value: Any, name: str) -> None:
        kind = type(value)
        if isinstance(value, _BY_REPR):
            self._add_value_by_repr(value, name)
        elif kind.__module__ == "typing":
            self.tokens.put("hint", repr(value))
            self._add_hinted_classes(value, name)
        elif kind in (list, tuple):
            self._add_sequence_values(kind.__name__, value, name)
        elif kind is dict:
            self.tokens.put("dict", len(value))
            for key, content in value.items():
                self.value(key, name)
                self.value(content, f"{name}[{key!r}]")
        elif kind in (set, frozenset):
            self.tokens.put("set", len(value), *sorted(self._element_fingerprint(element, name) for element in value))
        elif kind is MappingProxyType and self._covers_form(2):
            self._add_sequence_values("proxy", (dict(value),), name)
        elif isinstance(value, CodeType):
            self.lacking |= not self._code(self.tokens, value)
        else:
            self._add_object_value(value, name)

    def _add_value_by_repr(self, value: Any, name: str) -> None:
        """Add a value by its `repr`, which is complete except for the attributes of subclasses and for long
        patterns."""
        kind = type(value)
        self.tokens.put(kind.__qualname__, repr(value))
        if is_local_class(kind) and self._covers_form(2):
            self.value(kind, kind.__name__)
            attributes = state(value)
            if attributes and self._covers_form(3):
                self._add_value_attributes(attributes, name)
        if isinstance(value, re.Pattern) and len(repr(value.pattern)) > PATTERN_CHARS_SHOWN and self._covers_form(3):
            self.value(value.pattern, name)
        if isinstance(value, UnionType | GenericAlias):
            self._add_hinted_classes(value, name)

    def _add_value_attributes(self, attributes: list[tuple[str, Any]], name: str) -> None:
        self.tokens.put("attributes", len(attributes))
        for key, content in attributes:
            self.tokens.put(key)
            self.value(content, f"{name}.{key}")

    def _add_object_value(self, value: Any, name: str) -> None:
        if isinstance(value, MethodType):
            self._add_sequence_values("method", (value.__self__, value.__func__), name)
        elif isinstance(value, functools.partial):
            self._add_sequence_values("partial", (value.func, value.args, value.keywords), name)
        elif isinstance(value, staticmethod | classmethod):
            self._add_sequence_values(type(value).__name__, (value.__func__,), name)
        elif isinstance(value, property):
            self._add_sequence_values("property", (value.fget, value.fset, value.fdel), name)
        elif isinstance(value, _NAMED):
            module = module_name(str(getattr(value, "__module__", "")))
            named = class_name(value) if isinstance(value, type) else getattr(value, "__qualname__", repr(value))
            self.tokens.put("named", module, named)
            owner = _bound_object(value)
            if owner is not None and self._covers_form(3):
                self.value(owner, name)
        elif _is_declaration(value):
            self._add_sequence_values(class_name(type(value)), (value.name, getattr(value, "function", None)), name)
        elif type(value).__module__.startswith("pyspark."):
            self._add_spark_value(value, name)
        elif hasattr(value, "__wrapped__"):
            self._add_sequence_values("wrapped", (type(value), value.__wrapped__), name)
            attributes = [(key, content) for key, content in state(value) if key not in WRAPPING]
            if attributes and is_local_class(type(value)) and self._covers_form(3):
                self._add_value_attributes(attributes, name)
        elif type(value) in _BY_ATTRIBUTES and self._covers_form(3):
            attributes = [(key, getattr(value, key)) for key in _BY_ATTRIBUTES[type(value)]]
            self.tokens.put("named", type(value).__module__, type(value).__qualname__)
            self._add_value_attributes(attributes, name)
        else:
            self._add_instance_value(value, name)

    def _add_spark_value(self, value: Any, name: str) -> None:
        """Add to the fingerprint a function that was passed to Spark: the function itself, not its Spark wrapper."""
        if hasattr(value, "evalType") and hasattr(value, "func"):
            kind = str(value._returnType), value.evalType, value.deterministic
            self._add_sequence_values("udf", (value.func, *kind), name)
        elif type(value).__module__ == "pyspark.sql.types":
            self.tokens.put("type", repr(value))
        else:
            self._add_opaque_value(value, name)

    def _add_instance_value(self, value: Any, name: str) -> None:
        cls = type(value)
        if is_local_class(cls) or ("__dict__" in dir(value) and "__reduce__" not in vars(cls) and vars(value)):
            self.tokens.put("instance")
            self.value(cls, cls.__name__)
            for key, content in state(value):
                self.tokens.put(key)
                self.value(content, f"{name}.{key}")
            self._add_built_in_value(value, name)
            mangled = private_slots(value)
            if mangled and self._covers_form(3):
                self._add_value_attributes(mangled, name)
            return
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:
            self._add_opaque_value(value, name)
            return
        if isinstance(reduced, str):
            self.tokens.put("named", module_name(cls.__module__), reduced)
            return
        parts = [tuple(part) if isinstance(part, Iterator) else part for part in reduced]
        self._add_sequence_values("reduced", tuple(parts), name)

    def _add_built_in_value(self, value: Any, name: str) -> None:
        """Add to the fingerprint the value that an instance of a subclass of a built-in class holds besides its
        attributes."""
        base = next((holder for holder in _HOLDERS if isinstance(value, holder)), None)
        if base is None or not self._covers_form(2):
            return
        self.tokens.put("content", base.__name__)
        if base in _SCALARS:
            self.tokens.put(base.__repr__(value))
        elif base is dict:
            self.value([*dict.items(value), getattr(value, "default_factory", None)], name)
        else:
            elements = base.__iter__(value)
            self.value(list(elements) if base in _SEQUENCES else frozenset(elements), name)

    def _add_sequence_values(self, kind: str, values: Any, name: str) -> None:
        self.tokens.put(kind, len(values))
        for value in values:
            self.value(value, name)

    def _element_fingerprint(self, value: Any, name: str) -> str:
        """Return a separate fingerprint for a set element, by which elements can be sorted, because sets have no
        order."""
        other = Walk(self._code, by_name=self._by_name, form=self._form)
        other._seen, other._above, other._count = dict(self._seen), self._above, self._count
        other.value(value, name)
        self.opaque += other.opaque
        self.lacking |= other.lacking
        self.added |= other.added
        self._count = other._count
        return other.tokens.hex()

    def _add_opaque_value(self, value: Any, name: str) -> None:
        kind = type(value)
        self.tokens.put("opaque", module_name(kind.__module__), class_name(kind))
        self.opaque.append(f"{name or 'a value'} ({kind.__module__}.{kind.__qualname__})")


def _closure_variable(function: FunctionType, number: int) -> str:
    return function.__code__.co_freevars[number]


def _bound_object(value: Any) -> Any:
    """Return the object of a bound built-in method, or None. The result is None for a function that an installed module
    offers under the function's own name, such as `random.random`, because that name identifies it."""
    owner = getattr(value, "__self__", None)
    if owner is None or isinstance(owner, ModuleType | type):
        return None
    offered = getattr(sys.modules.get(type(owner).__module__), value.__name__, None)
    return owner if offered != value or is_local_class(type(owner)) else None


def _is_declaration(value: Any) -> bool:
    """Return whether a value is a stream, view, handler or app. A fingerprint includes a declaration's name and
    functions, but not its file and line."""
    return type(value).__module__ in ("penstock.app.declared", "penstock.app.app") and hasattr(value, "where")
