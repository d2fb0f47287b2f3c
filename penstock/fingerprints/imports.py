"""Imports inside functions: which local modules a function imports when it runs, and what it uses of them."""

from __future__ import annotations

import dis
import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from types import CodeType
from typing import Any

from penstock.fingerprints.code import attributes_after, is_local

_VARIABLE = re.compile(r"(LOAD|STORE)_(FAST|DEREF|NAME|GLOBAL)")
_BETWEEN = frozenset({"SWAP", "ROT_TWO", "POP_TOP"})
Chain = tuple[str, ...]


@dataclass(frozen=True, order=True)
class Import:
    """A module that code imports, as it is written there: with a dot for each level that it is relative by. `taken` is
    the name that is taken from it, empty if the module itself is; with `top`, it is the package that the module is in,
    as `import a.b` gives `a`. `attributes` are taken of that straight away."""

    module: str
    taken: str = ""
    top: bool = False
    attributes: Chain = ()


def imports(code: CodeType) -> list[Import]:
    """The imports of code, those of nested functions included, each with `a.b.c` as far as it goes."""
    uses: dict[str, dict[Chain, None]] = defaultdict(dict)
    codes = list(_codes(code))
    for each in codes:
        for name, chain in _uses(each):
            uses[name][chain] = None
    found: dict[Import, None] = {}
    for each in codes:
        for wanted, variable in _bindings(each):
            for chain in uses.get(variable or "") or {(): None}:
                found[replace(wanted, attributes=chain)] = None
    return list(found)


def imported(wanted: Import, package: str | None) -> tuple[bool, Any]:
    """Whether an import is of a local module, and the value that it gives. Such a module is loaded, as the function
    would do; others are not. Raises whatever the module raises."""
    name = resolve_name(wanted.module, package) if wanted.module.startswith(".") else wanted.module
    if not _is_local_module(name.partition(".")[0]):
        return False, None
    module: Any = importlib.import_module(name)
    if wanted.top:
        return True, sys.modules[name.partition(".")[0]]
    if not wanted.taken:
        return True, module
    if not hasattr(module, wanted.taken):
        return True, importlib.import_module(f"{name}.{wanted.taken}")
    return True, getattr(module, wanted.taken)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _uses(code: CodeType) -> Iterator[tuple[str, Chain]]:
    """The variables that code loads, each with the attributes that are taken of it."""
    found = list(dis.get_instructions(code))
    for index, each in enumerate(found):
        variables = _variables(each)
        for number, (kind, name) in enumerate(variables, 1):
            if kind == "LOAD":
                yield name, attributes_after(found, index + 1) if number == len(variables) else ()


def _variables(instruction: dis.Instruction) -> list[tuple[str, str]]:
    """The variables that an instruction loads or stores: newer versions of Python have some for two of them."""
    kinds = [kind for kind, _ in _VARIABLE.findall(instruction.opname)]
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return list(zip(kinds, map(str, names), strict=False))


def _bindings(code: CodeType) -> Iterator[tuple[Import, str | None]]:
    """Each import with the variable that it is bound to, None if others can reach that, as the attribute of a class."""
    found = list(dis.get_instructions(code))
    for index, each in enumerate(found):
        if each.opname != "IMPORT_NAME":
            continue
        module = "." * int(found[index - 2].argval or 0) + str(each.argval)
        if found[index - 1].argval:
            yield from _names_from(module, found, index + 1)
        else:
            yield _whole(module, found, index + 1)


def _names_from(module: str, found: list[dis.Instruction], start: int) -> Iterator[tuple[Import, str | None]]:
    for index in range(start, len(found) - 1, 2):
        if found[index].opname != "IMPORT_FROM":
            return
        yield Import(module, str(found[index].argval)), _bound(found[index + 1])


def _whole(module: str, found: list[dis.Instruction], index: int) -> tuple[Import, str | None]:
    """`import a.b` gives `a`; `import a.b as c` takes `b` from it."""
    top = "." in module and found[index].opname != "IMPORT_FROM"
    while found[index].opname == "IMPORT_FROM" or found[index].opname in _BETWEEN:
        index += 1
    return Import(module, top=top), _bound(found[index])


def _bound(instruction: dis.Instruction) -> str | None:
    variables = _variables(instruction)
    own = instruction.opname.startswith(("STORE_FAST", "STORE_DEREF"))
    return variables[0][1] if variables and own else None


def _is_local_module(name: str) -> bool:
    module = sys.modules.get(name)
    try:
        spec = getattr(module, "__spec__", None) or find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and any(map(is_local, _places(spec)))


def _places(spec: ModuleSpec) -> list[str]:
    return [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
