"""Hints for mistakes in an app's file: the keyword or attribute that was probably meant, or an example of the call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from inspect import Parameter, isfunction, signature
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, get_args, get_type_hints

from penstock.app.app import App
from penstock.core.suggestions import NAMES_SHOWN

PACKAGE = "penstock"
MODULES_SHOWN = ("cep", "collect", "joins", "windows")
"""Modules whose functions are called with the module's name: `windows.tumbling(...)`."""
_UNEXPECTED = re.compile(r"(?:([\w.]+)\(\) )?got an unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"([\w.]+)\(\) (?:missing \d+ required|takes .*positional arguments? but \d+)")
_Called = Callable[..., Any]


def hinted(error: Exception, file: Path) -> str:
    """Return the text of an error raised by an app's file, with a hint if the error concerns a Penstock name."""
    if isinstance(error, AttributeError):
        return f"{error}{_attribute_hint(error)}"
    if not isinstance(error, TypeError):
        return str(error)
    frame, inner = _app_frames(error, file)
    if match := _UNEXPECTED.search(str(error)):
        called = _forwarding_function(inner) if inner is not None else _called_by_name(frame, match[1] or "")
        return str(error) if called is None else _keyword_hint(called, match[2])
    match = _MISSING.match(str(error)) if inner is None else None
    called = _called_by_name(frame, match[1]) if match is not None else None
    return str(error) if called is None else f"{error}; write {_example_call(called)}"


def _app_frames(error: Exception, file: Path) -> tuple[FrameType | None, FrameType | None]:
    """Return the last frame in the app's file, and the frame that it called."""
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


def _forwarding_function(inner: FrameType) -> _Called | None:
    """Return the function of a frame if it passes its keywords on: Python's message then names a different function."""
    function = inner.f_globals.get(inner.f_code.co_name)
    takes_more = isfunction(function) and any(
        parameter.kind is Parameter.VAR_KEYWORD for parameter in _called_parameters(function)
    )
    return function if takes_more and _is_penstock_value(function) else None


def _called_by_name(frame: FrameType | None, name: str) -> _Called | None:
    """Find, among the file's imports, the function or class that Python's message names. Methods of App are found;
    other methods might not be."""
    if frame is None:
        return None
    first, _, rest = name.partition(".")
    modules = [
        module for module in frame.f_globals.values() if isinstance(module, ModuleType) and _is_penstock_value(module)
    ]
    holders: list[dict[str, Any]] = [frame.f_globals, *map(vars, modules), {"App": App}]
    owner = next((holder[first] for holder in holders if first in holder), None)  # the file's own functions come first
    target = owner if rest in ("", "__init__") else getattr(owner, rest, None)
    return target if _is_penstock_callable(target) else None


def _is_penstock_callable(value: Any) -> bool:
    return (isinstance(value, type) or isfunction(value)) and _is_penstock_value(value)


def _is_penstock_value(value: Any) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def _keyword_hint(called: _Called, given: str) -> str:
    names = dict(_keyword_names(called))
    listed = [name for name, only in names.items() if only] or list(names)
    near = get_close_matches(given, names, 1)
    hint = f"did you mean {near[0]}=?" if near else f"it takes {', '.join(listed)}"
    return f"{called.__qualname__}() got an unexpected keyword argument {given!r}; {hint}"


def _keyword_names(called: _Called) -> Iterator[tuple[str, bool]]:
    """Yield the names that a call to a Penstock function can pass as keywords, each with a flag that is True if it is
    keyword-only."""
    for parameter in _called_parameters(called):
        if parameter.kind is Parameter.VAR_KEYWORD:
            for options in get_args(get_type_hints(called).get(parameter.name)):
                yield from ((name, True) for name in options.__annotations__)
        elif parameter.kind is not Parameter.VAR_POSITIONAL:
            yield parameter.name, parameter.kind is Parameter.KEYWORD_ONLY


def _called_parameters(called: _Called) -> list[Parameter]:
    parameters = list(signature(called).parameters.values())
    return parameters[1:] if isfunction(called) and "." in called.__qualname__ else parameters  # without self


def _example_call(called: _Called) -> str:
    """Return the shortest possible call of a Penstock function as an example, with only the required arguments."""
    owner, _, name = called.__qualname__.rpartition(".")
    part = called.__module__.partition(".")[2].partition(".")[0]
    prefix = f"{owner.lower()}." if owner else f"{part}." if part in MODULES_SHOWN else ""
    required = [parameter for parameter in _called_parameters(called) if parameter.default is Parameter.empty]
    return (
        f"{prefix}{name}("
        f"{', '.join(_example_argument(parameter) for parameter in required if 'VAR' not in parameter.kind.name)})"
    )


def _example_argument(parameter: Parameter) -> str:
    if parameter.kind is Parameter.KEYWORD_ONLY:
        return f"{parameter.name}=..."
    return '"name"' if parameter.name == "name" else parameter.name


def _attribute_hint(error: AttributeError) -> str:
    """Return a hint that names the nearest attribute of a Penstock value or module, or else lists some of its
    attributes."""
    owner = error.obj if isinstance(error.obj, ModuleType) else type(error.obj)
    if not error.name or not _is_penstock_value(owner):
        return ""
    names = [name for name in getattr(owner, "__all__", dir(error.obj)) if not name.startswith("_")]
    near = get_close_matches(error.name, names, 1)
    more = ", ..." if len(names) > NAMES_SHOWN else ""
    return f"; did you mean {near[0]}?" if near else f"; it has {', '.join(names[:NAMES_SHOWN])}{more}"
