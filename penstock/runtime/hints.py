"""Hints for mistakes in an app's file: the keyword or attribute that was probably meant, or the form of the call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from inspect import Parameter, isfunction, signature
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, get_args, get_type_hints

from penstock.app import App
from penstock.suggestions import NAMES_SHOWN

PACKAGE = "penstock"
MODULES_SHOWN = ("cep", "collect", "joins", "windows")
"""The modules whose functions are called by the name of the module: `windows.tumbling(...)`."""
_UNEXPECTED = re.compile(r"(?:([\w.]+)\(\) )?got an unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"([\w.]+)\(\) (?:missing \d+ required|takes .*positional arguments? but \d+)")
_Called = Callable[..., Any]


def hinted(error: Exception, file: Path) -> str:
    """The text of an error that an app's file raised, with a hint if it is about a name of Penstock."""
    if isinstance(error, AttributeError):
        return f"{error}{_attribute(error)}"
    if not isinstance(error, TypeError):
        return str(error)
    frame, inner = _frames(error, file)
    if found := _UNEXPECTED.search(str(error)):
        called = _entered(inner) if inner is not None else _named(frame, found[1] or "")
        return str(error) if called is None else _of_keyword(called, found[2])
    found = _MISSING.match(str(error)) if inner is None else None
    called = _named(frame, found[1]) if found is not None else None
    return str(error) if called is None else f"{error}; write {_example(called)}"


def _frames(error: Exception, file: Path) -> tuple[FrameType | None, FrameType | None]:
    """The last frame of the file, and the one that it called."""
    frame = inner = None
    trace = error.__traceback__
    while trace is not None:
        here = trace.tb_frame
        if Path(here.f_code.co_filename).resolve() == file.resolve():
            frame, inner = here, None
        elif frame is not None and inner is None:
            inner = here
        trace = trace.tb_next
    return frame, inner


def _entered(inner: FrameType) -> _Called | None:
    """The function of a frame, if it hands keywords on: then Python names another one."""
    found = inner.f_globals.get(inner.f_code.co_name)
    takes_more = isfunction(found) and any(each.kind is Parameter.VAR_KEYWORD for each in _parameters(found))
    return found if takes_more and _is_ours(found) else None


def _named(frame: FrameType | None, name: str) -> _Called | None:
    """The function or class that Python names, among what the file has imported; of methods those of App at least."""
    if frame is None:
        return None
    first, _, rest = name.partition(".")
    modules = [each for each in frame.f_globals.values() if isinstance(each, ModuleType) and _is_ours(each)]
    holders: list[dict[str, Any]] = [frame.f_globals, *map(vars, modules), {"App": App}]
    owner = next((each[first] for each in holders if first in each), None)  # a function of the file's own comes first
    found = owner if rest in ("", "__init__") else getattr(owner, rest, None)
    return found if _is_callable_of_ours(found) else None


def _is_callable_of_ours(value: Any) -> bool:
    return (isinstance(value, type) or isfunction(value)) and _is_ours(value)


def _is_ours(value: Any) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def _of_keyword(called: _Called, given: str) -> str:
    names = dict(_keywords(called))
    listed = [name for name, only in names.items() if only] or list(names)
    near = get_close_matches(given, names, 1)
    hint = f"did you mean {near[0]}=?" if near else f"it takes {', '.join(listed)}"
    return f"{called.__qualname__}() got an unexpected keyword argument {given!r}; {hint}"


def _keywords(called: _Called) -> Iterator[tuple[str, bool]]:
    """The names that may be given as keywords, each with whether it has to be one."""
    for each in _parameters(called):
        if each.kind is Parameter.VAR_KEYWORD:
            for options in get_args(get_type_hints(called).get(each.name)):
                yield from ((name, True) for name in options.__annotations__)
        elif each.kind is not Parameter.VAR_POSITIONAL:
            yield each.name, each.kind is Parameter.KEYWORD_ONLY


def _parameters(called: _Called) -> list[Parameter]:
    found = list(signature(called).parameters.values())
    return found[1:] if isfunction(called) and "." in called.__qualname__ else found  # without self


def _example(called: _Called) -> str:
    """The shortest call: all that is required."""
    owner, _, name = called.__qualname__.rpartition(".")
    part = called.__module__.partition(".")[2].partition(".")[0]
    prefix = f"{owner.lower()}." if owner else f"{part}." if part in MODULES_SHOWN else ""
    required = [each for each in _parameters(called) if each.default is Parameter.empty]
    return f"{prefix}{name}({', '.join(_given(each) for each in required if 'VAR' not in each.kind.name)})"


def _given(parameter: Parameter) -> str:
    if parameter.kind is Parameter.KEYWORD_ONLY:
        return f"{parameter.name}=..."
    return '"name"' if parameter.name == "name" else parameter.name


def _attribute(error: AttributeError) -> str:
    """The nearest attribute that a value or module of Penstock has, or some of them."""
    owner = error.obj if isinstance(error.obj, ModuleType) else type(error.obj)
    if not error.name or not _is_ours(owner):
        return ""
    names = [each for each in getattr(owner, "__all__", dir(error.obj)) if not each.startswith("_")]
    near = get_close_matches(error.name, names, 1)
    more = ", ..." if len(names) > NAMES_SHOWN else ""
    return f"; did you mean {near[0]}?" if near else f"; it has {', '.join(names[:NAMES_SHOWN])}{more}"
