"""The functions in the app's files that a value uses when it is called: through variables, imports, classes and
closures, in any file.

Installed packages are not followed, except for the functions that they wrap, such as a user's function in one of
Spark's.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from penstock.app.fingerprints.classes import is_local_class
from penstock.app.fingerprints.code import is_local, is_local_function, references
from penstock.app.fingerprints.imports import imported, imports

VALUES_MAX = 20_000
"""Maximum number of values visited. Further values are not followed."""
_CONTAINERS = (list, tuple, set, frozenset)
_SPECIAL = frozenset({"__new__", "__init__", "__post_init__", "__call__"})
"""Methods that run although no code names them."""
Wanted = frozenset[str] | None
"""The names of the methods to follow, or None for all methods."""


def used_functions(value: Any) -> Iterator[FunctionType]:
    """Yield the functions in the app's files that `value` uses, each once. Loads the local modules that these functions
    import in their bodies. If `value` is a class, all its methods are followed, because Spark calls them by name."""
    pending: deque[tuple[Any, Wanted]] = deque([(value, None)])
    seen: dict[tuple[int, Wanted], Any] = {}
    yielded: set[CodeType] = set()
    while pending and len(seen) < VALUES_MAX:
        current, wanted = pending.popleft()
        if (id(current), wanted) in seen:
            continue
        seen[id(current), wanted] = current  # keeps it alive, so that its id stays unique
        if isinstance(current, FunctionType):
            if is_local_function(current) and current.__code__ not in yielded:
                yielded.add(current.__code__)
                yield current
            pending += _used_by_function(current)
        else:
            pending += _used_by_value(current, wanted)


def _used_by_function(function: FunctionType) -> Iterator[tuple[Any, Wanted]]:
    local = is_local_function(function)
    wanted = _code_names(function.__code__) if local else None
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents, wanted
        except ValueError:
            continue
    if "__wrapped__" in function.__dict__:
        yield function.__dict__["__wrapped__"], wanted
    if local:
        yield from ((value, wanted) for value in _loaded_by_function(function))
        yield from ((value, wanted) for value in (function.__defaults__ or ()))


def _loaded_by_function(function: FunctionType) -> Iterator[Any]:
    """Yield the global values that a function loads, and the values that it imports from local modules."""
    for reference in references(function.__code__):
        if reference.name in function.__globals__:
            yield _follow_attributes(function.__globals__[reference.name], reference.attributes)
    for wanted in imports(function.__code__):
        try:
            local, value = imported(wanted, function.__globals__.get("__package__"))
        except Exception:  # the import fails in the same way when the function runs
            continue
        if local:
            yield _follow_attributes(value, wanted.attributes)


def _follow_attributes(value: Any, attributes: tuple[str, ...]) -> Any:
    """Follow attributes as far as they lead through local modules."""
    for attribute in attributes:
        if not (isinstance(value, ModuleType) and is_local(getattr(value, "__file__", None))):
            break
        value = getattr(value, attribute, None)
    return value


def _used_by_value(value: Any, wanted: Wanted) -> Iterator[tuple[Any, Wanted]]:
    if isinstance(value, MethodType):
        yield from (
            (value.__func__, wanted),
            (type(value.__self__), _code_names(getattr(value.__func__, "__code__", None))),
        )
    elif isinstance(value, functools.partial):
        yield from ((part, wanted) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__, wanted
    elif isinstance(value, property):
        yield value.fget, wanted
    elif isinstance(value, type):
        yield from ((content, wanted) for content in _used_methods(value, wanted))
    elif isinstance(value, _CONTAINERS):
        yield from ((element, wanted) for element in value if _may_use_functions(element))
    elif isinstance(value, dict):
        yield from ((element, wanted) for element in value.values() if _may_use_functions(element))
    elif is_local_class(type(value)):
        yield type(value), wanted
        yield from (
            (content, wanted) for content in getattr(value, "__dict__", {}).values() if _may_use_functions(content)
        )
    elif hasattr(value, "__wrapped__"):
        yield value.__wrapped__, wanted
    elif hasattr(value, "evalType") and hasattr(value, "func"):  # a function that was made a UDF
        yield value.func, wanted


def _used_methods(cls: type, wanted: Wanted) -> Iterator[Any]:
    for base in filter(is_local_class, cls.__mro__):
        for name, content in vars(base).items():
            if wanted is None or name in wanted or name in _SPECIAL:
                yield content


def _may_use_functions(value: Any) -> bool:
    return not isinstance(value, str | bytes | int | float | complex | None)


def _code_names(code: CodeType | None) -> frozenset[str]:
    """Return all names of globals and attributes in code and in its nested functions."""
    if code is None:
        return frozenset()
    nested = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*map(_code_names, nested))
