"""A traversal that turns everything a function reaches into tokens of a digest. `functions.py` describes what is
included."""

from __future__ import annotations

import enum
import functools
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator
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

from penstock.app.fingerprints.classes import (
    WRAPPING,
    answered_wrapped,
    class_hints,
    class_options,
    contents,
    field_texts,
    has,
    has_installed_base,
    hinted_classes,
    is_local_class,
    is_wrapper,
    later_contents,
    private_slots,
    state,
)
from penstock.app.fingerprints.code import (
    CoversForm,
    class_name,
    file_name,
    is_local,
    is_local_function,
    module_name,
    references,
)
from penstock.app.fingerprints.digests import TokenDigest
from penstock.app.fingerprints.hints import field_hints, hint_parts, hint_text, names_types, resolved
from penstock.app.fingerprints.imports import imported, imports
from penstock.app.fingerprints.instances import (
    BY_ATTRIBUTES,
    PLAIN_TYPES,
    SEQUENCES,
    SINCE_FORM,
    bound_object,
    built_in_base,
    has_only_attributes,
    is_declaration,
    reduced_parts,
)
from penstock.app.fingerprints.observing import ANNOTATIONS, class_texts, function_texts, observations

FORM = 4
"""The version of the fingerprint format, which determines what fingerprints cover. Increased when they cover more."""
VALUES_MAX = 1_000_000
"""Maximum number of values visited for one fingerprint; visiting them takes a few seconds. Further values are
opaque."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_BY_REPR = (datetime, date, time, timedelta, tzinfo, Decimal, Fraction, UUID, PurePath, range, slice, re.Pattern,
            UnionType, GenericAlias)  # fmt: skip
PATTERN_CHARS_SHOWN = 200
"""The length at which Python truncates the `repr` of a regular expression."""
_NAMED = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType, MemberDescriptorType)
Code = Callable[[TokenDigest, CodeType, CoversForm], bool]


class Walk:
    """The traversal for one fingerprint. `code` adds the tokens of one function's code, and returns whether it
    succeeded.

    Globals are visited in the order in which the instructions load them, so that renaming one changes nothing. With
    `by_name`, they are visited in order of name, which does not depend on the version of Python.

    A traversal with an earlier `form` can be compared with fingerprints in that form. Form 1 does not cover imports in
    functions, the contents of instances of subclasses of built-in classes, enum members, metaclasses or mapping
    proxies. Form 2 does not cover attributes of functions, of wrappers, or of subclasses of dates and time zones. Nor
    does it cover the objects of bound built-in methods, classes that only type hints mention, options of dataclasses
    and structs, or private methods of enums. Form 3 does not cover types behind names in type hints, observed names,
    state that classes written in C keep, nor the values in `classes.later_contents`, and it has other syntax trees.
    `added` contains each form for which the traversal found values that earlier forms do not cover.

    `observes` contains what the visited code reads of functions and classes, such as `__name__` (`observing.py`). Only
    a second traversal, with these as `observed`, adds what the code reads.
    """

    def __init__(
        self, code: Code, *, by_name: bool = False, form: int = FORM, observed: frozenset[str] = frozenset()
    ) -> None:
        self.tokens = TokenDigest()
        self.opaque: list[str] = []
        self.lacking = False
        self.added: set[int] = set()
        self.observes: set[str] = set()
        self._observed = observed
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
        else:
            self._add_code(function.__code__)
        for number, cell in enumerate(function.__closure__ or ()):
            self._add_cell_value(cell, _closure_variable(function, number))
        if local:
            self.value(function.__defaults__, "defaults")
            self.value(function.__kwdefaults__, "defaults")
            self._add_global_values(function)
            self._add_imported_values(function)
            self._add_observed_texts(function_texts(function, self._observed))
        if local and ANNOTATIONS in self._observed and self._covers_form(4):
            for name, hint in sorted(resolved(function.__annotations__, function.__module__).items()):
                self.tokens.put("annotation", name)
                self._add_hint(hint, name)
        if "__wrapped__" in function.__dict__:
            self.value(function.__dict__["__wrapped__"], "__wrapped__")
        attributes = {name: value for name, value in function.__dict__.items() if name not in WRAPPING}
        if local and attributes and self._covers_form(3):
            self._add_value_attributes(sorted(attributes.items()), function.__name__)

    def _add_code(self, code: CodeType) -> None:
        self.lacking |= not self._code(self.tokens, code, self._covers_form)
        self.observes.update(observations(code))

    def _add_observed_texts(self, texts: Iterator[str]) -> None:
        for text in texts:
            if self._covers_form(4):
                self.tokens.put("observed", text)

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
        self._add_class_details(cls)

    def _add_class_details(self, cls: type) -> None:
        """Add what a class has besides its bases and the contents of its body."""
        options = class_options(cls)
        if options and self._covers_form(3):
            self.tokens.put("options", *options)
        earlier_hints = dict(class_hints(cls))
        for name, hint in earlier_hints.items():
            self._add_hinted_classes(hint, f"{cls.__name__}.{name}")
        self._add_field_hints(cls, earlier_hints)
        added_later = sorted(later_contents(cls), key=itemgetter(0))
        if added_later and self._covers_form(4):
            self._add_value_attributes(added_later, cls.__name__)
        self._add_observed_texts(class_texts(cls, self._observed))

    def _add_field_hints(self, cls: type, earlier: Collection[str]) -> None:
        """Add the types behind the names in the hints of fields, and the app's classes in hints that `class_hints` does
        not return."""
        texts = dict(field_texts(cls))
        for name, hint in field_hints(cls):
            shown_name = f"{cls.__name__}.{name}"
            if (names_types(hint) or hint_text(hint) != texts[name]) and self._covers_form(4):
                self.tokens.put("field type", name)
                self._add_hint(hint, shown_name)
            elif name not in earlier:
                self._add_hinted_classes(hint, shown_name, form=4)

    def _add_hint(self, hint: Any, name: str) -> None:
        """Add a type hint with the types behind its names."""
        if isinstance(hint, type) and hint_parts(hint) is None:
            self.value(hint, name)
            return
        if id(hint) in self._above:
            self.tokens.put("above", self._above.index(id(hint)))
            return
        self._above.append(id(hint))
        self._add_hint_parts(hint, name)
        self._above.pop()

    def _add_hint_parts(self, hint: Any, name: str) -> None:
        kind, hints, values = hint_parts(hint) or (str(hint), (), ())
        self.tokens.put("hint", kind, len(hints), len(values))
        for part in hints:
            self._add_hint(part, name)
        for value in values:
            self.value(value, name)

    def _add_hinted_classes(self, hint: Any, name: str, form: int = 3) -> None:
        """Add the app's classes in a type hint, which code may construct without naming them."""
        classes = [cls for cls in hinted_classes(hint) if is_local_class(cls)]
        if classes and self._covers_form(form):
            self._add_sequence_values("hinted", classes, name)

    def _add_named_types(self, hint: Any, name: str) -> None:
        """Add the types behind the names in a hint that is a value, such as an alias."""
        if names_types(hint) and self._covers_form(4):
            self._add_hint_parts(hint, name)

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
            self._add_named_types(value, name)
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
            self._add_code(value)
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
            inner = _inner_repr(value)
            if inner != repr(value) and self._covers_form(4):
                self.tokens.put("inner", inner)
        if isinstance(value, re.Pattern) and len(repr(value.pattern)) > PATTERN_CHARS_SHOWN and self._covers_form(3):
            self.value(value.pattern, name)
        if isinstance(value, UnionType | GenericAlias):
            self._add_hinted_classes(value, name)
            self._add_named_types(value, name)

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
            self._add_local_kind(value, name)
        elif isinstance(value, staticmethod | classmethod):
            self._add_sequence_values(type(value).__name__, (value.__func__,), name)
            self._add_local_kind(value, name)
        elif isinstance(value, property):
            self._add_sequence_values("property", (value.fget, value.fset, value.fdel), name)
            self._add_local_kind(value, name)
        elif isinstance(value, _NAMED):
            module = module_name(str(getattr(value, "__module__", "")))
            named = class_name(value) if isinstance(value, type) else getattr(value, "__qualname__", repr(value))
            self.tokens.put("named", module, named)
            owner = bound_object(value)
            if owner is not None and self._covers_form(3):
                self.value(owner, name)
        elif is_declaration(value):
            self._add_sequence_values(class_name(type(value)), (value.name, getattr(value, "function", None)), name)
        elif type(value).__module__.startswith("pyspark."):
            self._add_spark_value(value, name)
        elif is_wrapper(value):
            self._add_wrapper(value, value.__wrapped__, name)
            if is_local_class(type(value)) and (built_in_base(value) or private_slots(value)) and self._covers_form(4):
                self._add_content(value, name)
        elif has(type(value), "__getattr__") and not self._covers_form(4) and (answered := answered_wrapped(value)):
            self._add_wrapper(value, answered[0], name)
        elif type(value) in BY_ATTRIBUTES and self._covers_form(SINCE_FORM.get(type(value), 3)):
            attributes = [(key, getattr(value, key)) for key in BY_ATTRIBUTES[type(value)]]
            self.tokens.put("named", type(value).__module__, type(value).__qualname__)
            self._add_value_attributes(attributes, name)
        else:
            self._add_instance_value(value, name)

    def _add_wrapper(self, value: Any, wrapped: Any, name: str) -> None:
        self._add_sequence_values("wrapped", (type(value), wrapped), name)
        attributes = [(key, content) for key, content in state(value) if key not in WRAPPING]
        if attributes and is_local_class(type(value)) and self._covers_form(3):
            self._add_value_attributes(attributes, name)

    def _add_local_kind(self, value: Any, name: str) -> None:
        """Add the class and the attributes of an instance of the app's subclass of a class such as `property`."""
        if is_local_class(type(value)) and self._covers_form(4):
            attributes = [(key, content) for key, content in state(value) if key not in WRAPPING]
            self._add_sequence_values("kind", (type(value), attributes), name)

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
        if is_local_class(cls) or (has(value, "__dict__") and "__reduce__" not in vars(cls) and vars(value)):
            self.tokens.put("instance")
            self.value(cls, cls.__name__)
            for key, content in state(value):
                self.tokens.put(key)
                self.value(content, f"{name}.{key}")
            self._add_content(value, name)
            self._add_inner_state(value, name)
            return
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:
            self._add_opaque_value(value, name)
            return
        if isinstance(reduced, str):
            self.tokens.put("named", module_name(cls.__module__), reduced)
            return
        self._add_sequence_values("reduced", reduced_parts(reduced), name)

    def _add_content(self, value: Any, name: str) -> None:
        """Add what an instance holds besides its attributes: built-in content and private slots."""
        self._add_built_in_value(value, name)
        mangled = private_slots(value)
        if mangled and self._covers_form(3):
            self._add_value_attributes(mangled, name)

    def _add_inner_state(self, value: Any, name: str) -> None:
        """Add the state that an installed base class keeps outside the attributes of an instance, for example because
        it is written in C."""
        if built_in_base(value) is not None or not has_installed_base(type(value)):
            return
        known = next((base for base in BY_ATTRIBUTES if isinstance(value, base)), None)
        try:
            reduced = value.__reduce_ex__(4) if known is None else ()
        except Exception:
            reduced = None
        only_attributes = reduced is not None and has_only_attributes(value, reduced)
        if only_attributes or not self._covers_form(4):
            return
        if known is not None:
            self._add_value_attributes([(key, getattr(value, key)) for key in BY_ATTRIBUTES[known]], name)
        elif reduced is None:
            self._add_opaque_value(value, name)
        else:
            self._add_sequence_values("inner", reduced_parts(reduced), name)

    def _add_built_in_value(self, value: Any, name: str) -> None:
        """Add to the fingerprint the value that an instance of a subclass of a built-in class holds besides its
        attributes."""
        base = built_in_base(value)
        if base is None or not self._covers_form(2):
            return
        self.tokens.put("content", base.__name__)
        if base in PLAIN_TYPES:
            self.tokens.put(base.__repr__(value))
        elif base is dict:
            factory = value.default_factory if has(value, "default_factory") else None
            self.value([*dict.items(value), factory], name)
        else:
            elements = base.__iter__(value)
            self.value(list(elements) if base in SEQUENCES else frozenset(elements), name)
        if base is deque and value.maxlen is not None and self._covers_form(4):
            self.tokens.put("maxlen", value.maxlen)

    def _add_sequence_values(self, kind: str, values: Any, name: str) -> None:
        self.tokens.put(kind, len(values))
        for value in values:
            self.value(value, name)

    def _element_fingerprint(self, value: Any, name: str) -> str:
        """Return a separate fingerprint for a set element, by which elements can be sorted, because sets have no
        order."""
        other = Walk(self._code, by_name=self._by_name, form=self._form, observed=self._observed)
        other._seen, other._above, other._count = dict(self._seen), self._above, self._count
        other.value(value, name)
        self.opaque += other.opaque
        self.lacking |= other.lacking
        self.added |= other.added
        self.observes |= other.observes
        self._count = other._count
        return other.tokens.hex()

    def _add_opaque_value(self, value: Any, name: str) -> None:
        kind = type(value)
        self.tokens.put("opaque", module_name(kind.__module__), class_name(kind))
        self.opaque.append(f"{name or 'a value'} ({kind.__module__}.{kind.__qualname__})")


def _closure_variable(function: FunctionType, number: int) -> str:
    return function.__code__.co_freevars[number]


def _inner_repr(value: Any) -> str:
    """Return a value's `repr` as its built-in class defines it. A time zone has none."""
    base = next(base for base in _BY_REPR if isinstance(value, base))
    return repr(value) if base is tzinfo else base.__repr__(value)
