"""Imports inside functions: the local modules that a function imports when it runs, and the attributes that it uses."""

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

from penstock.app.fingerprints.code import attributes_after, is_local

_VARIABLE = re.compile(r"(LOAD|STORE)_(FAST|DEREF|NAME|GLOBAL)")
_BETWEEN = frozenset({"SWAP", "ROT_TWO", "POP_TOP"})
Chain = tuple[str, ...]


@dataclass(frozen=True, order=True)
class Import:
    """An import as written in the code, with a dot for each relative level. `taken` is the imported name, or empty if
    the module itself is imported. With `top`, the import binds the module's top-level package, as `import a.b` binds
    `a`. `attributes` is the chain accessed directly on the imported value."""

    module: str
    taken: str = ""
    top: bool = False
    attributes: Chain = ()


def imports(code: CodeType) -> list[Import]:
    """Return the imports in a fingerprinted function's code and in its nested functions, each with the longest
    attribute chain accessed, such as `a.b.c`."""
    uses: dict[str, dict[Chain, None]] = defaultdict(dict)
    codes = list(_nested_code(code))
    for body in codes:
        for name, chain in _variable_uses(body):
            uses[name][chain] = None
    all_imports: dict[Import, None] = {}
    for body in codes:
        for wanted, variable in _import_bindings(body):
            for chain in uses.get(variable or "") or {(): None}:
                all_imports[replace(wanted, attributes=chain)] = None
    return list(all_imports)


def imported(wanted: Import, package: str | None) -> tuple[bool, Any]:
    """Return whether an import refers to a local module, and the imported value. A local module is loaded, which runs
    its code as the function would; other modules are not loaded. Raises whatever the module raises."""
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


def _nested_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_code(constant)


def _variable_uses(code: CodeType) -> Iterator[tuple[str, Chain]]:
    """Yield the variables that code loads, each with the attributes accessed on it."""
    instructions = list(dis.get_instructions(code))
    for index, instruction in enumerate(instructions):
        variables = _instruction_variables(instruction)
        for number, (kind, name) in enumerate(variables, 1):
            if kind == "LOAD":
                yield name, attributes_after(instructions, index + 1) if number == len(variables) else ()


def _instruction_variables(instruction: dis.Instruction) -> list[tuple[str, str]]:
    """Return the variables that an instruction loads or stores: in newer versions of Python, some instructions handle
    two variables."""
    kinds = [kind for kind, _ in _VARIABLE.findall(instruction.opname)]
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return list(zip(kinds, map(str, names), strict=False))


def _import_bindings(code: CodeType) -> Iterator[tuple[Import, str | None]]:
    """Yield each import with its variable, or with None if other code can reach the variable, for example as a class
    attribute."""
    instructions = list(dis.get_instructions(code))
    for index, instruction in enumerate(instructions):
        if instruction.opname != "IMPORT_NAME":
            continue
        module = "." * int(instructions[index - 2].argval or 0) + str(instruction.argval)
        if instructions[index - 1].argval:
            yield from _from_import_names(module, instructions, index + 1)
        else:
            yield _module_import(module, instructions, index + 1)


def _from_import_names(
    module: str, instructions: list[dis.Instruction], start: int
) -> Iterator[tuple[Import, str | None]]:
    for index in range(start, len(instructions) - 1, 2):
        if instructions[index].opname != "IMPORT_FROM":
            return
        yield Import(module, str(instructions[index].argval)), _import_variable(instructions[index + 1])


def _module_import(module: str, instructions: list[dis.Instruction], index: int) -> tuple[Import, str | None]:
    """Return the import for `import a.b`, which binds `a`, or `import a.b as c`, which binds `b` to `c`."""
    top = "." in module and instructions[index].opname != "IMPORT_FROM"
    while instructions[index].opname == "IMPORT_FROM" or instructions[index].opname in _BETWEEN:
        index += 1
    return Import(module, top=top), _import_variable(instructions[index])


def _import_variable(instruction: dis.Instruction) -> str | None:
    variables = _instruction_variables(instruction)
    own = instruction.opname.startswith(("STORE_FAST", "STORE_DEREF"))
    return variables[0][1] if variables and own else None


def _is_local_module(name: str) -> bool:
    module = sys.modules.get(name)
    try:
        spec = getattr(module, "__spec__", None) or find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and any(map(is_local, _import_paths(spec)))


def _import_paths(spec: ModuleSpec) -> list[str]:
    return [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
