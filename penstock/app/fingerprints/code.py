"""Turns the code of functions into tokens, and decides which code belongs to the app."""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import penstock
from penstock.app.fingerprints.digests import TokenDigest
from penstock.app.fingerprints.trees import earlier_function_tree, function_tree

GLOBAL_OPS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x100 | 0x200
"""The flags of a code object that affect its calls: *args, **kwargs, generator, coroutine."""
ATTRIBUTE_OPS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
CoversForm = Callable[[int], bool]
"""Returns whether to add data that forms of fingerprints before the given one left out."""


EARLIER_MODULES = {
    "penstock.cep.recognize.compiling": "penstock.cep.recognize.reading",
    "penstock.core.deletes": "penstock.core.kept",
    "penstock.core.state_value": "penstock.core.packed",
    "penstock.joins.declaring": "penstock.joins.spec",
    "penstock.joins.output": "penstock.joins.telling",
    "penstock.windows.reordering": "penstock.windows.turns",
}
EARLIER_CLASSES = {
    ("penstock.app.declared", "ViewHandler"): "Keeper",
    ("penstock.core.state_value", "StateValue"): "Packed",
    ("penstock.windows.clock", "WindowClock"): "Clock",
    ("penstock.windows.reordering", "InEventOrder"): "InTurn",
    ("penstock.windows.reordering", "ReorderBuffer"): "Turns",
    ("penstock.windows.stacks", "StackBytes"): "Packed",
}
"""Names that stored fingerprints use for Penstock modules and classes that have since been renamed."""


def class_name(cls: type) -> str:
    """Return the qualified name of a class, as used in fingerprints."""
    return EARLIER_CLASSES.get((cls.__module__, cls.__qualname__), cls.__qualname__)


def module_name(name: str) -> str:
    """Return a module's name, as used in fingerprints. A Penstock module that was at the top of the package when the
    first fingerprints were stored keeps that name, wherever it is now."""
    name = EARLIER_MODULES.get(name, name)
    for package in ("penstock.core.", "penstock.app."):
        if name.startswith(package):
            return f"penstock.{name.removeprefix(package)}"
    return name


def file_name(file: str) -> str:
    """Return an installed file's path as used in fingerprints: its last two folders and the file name."""
    path, own = Path(file), Path(penstock.__file__).parent
    if path.is_relative_to(own):
        module = module_name(".".join(("penstock", *path.relative_to(own).with_suffix("").parts)))
        file = "/".join(("", "site-packages", *module.split("."))) + ".py"
    return "/".join(file.replace("\\", "/").rsplit("/", 3)[1:])


def is_local(file: str | None) -> bool:
    """Return whether a file belongs to the fingerprinted app, rather than to Python, an installed package or Penstock.
    Code without a file, for example in a notebook or a test, belongs to the app."""
    return file is None or (file.startswith("<") and not file.startswith("<frozen")) or _is_app_file(file)


@cache
def _is_app_file(file: str) -> bool:
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in _installed_folders())


@cache
def _installed_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    named = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    packages = {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    own = {str(Path(penstock.__file__).parent)}
    return tuple(Path(path).resolve() for path in (*named, *packages, *own))


def is_local_function(function: FunctionType) -> bool:
    return is_local(function.__code__.co_filename)


@dataclass(frozen=True, order=True)
class Reference:
    """A global name that code loads, with the chain of attributes accessed directly on it."""

    name: str
    attributes: tuple[str, ...] = ()


def references(code: CodeType) -> Iterator[Reference]:
    """Yield the global names that code and its nested functions load, each with the longest attribute chain accessed,
    such as `a.b.c`."""
    instructions = list(dis.get_instructions(code))
    for index, instruction in enumerate(instructions):
        if instruction.opname in GLOBAL_OPS:
            yield Reference(instruction.argval, attributes_after(instructions, index + 1))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from references(constant)


def attributes_after(instructions: list[dis.Instruction], start: int) -> tuple[str, ...]:
    """Return the chain of attributes that the instructions starting at `start` access on the value just loaded."""
    taken = []
    for instruction in instructions[start:]:
        if instruction.opname not in ATTRIBUTE_OPS:
            break
        taken.append(str(instruction.argval))
    return tuple(taken)


def code_tokens(tokens: TokenDigest, code: CodeType, covers_form: CoversForm) -> bool:
    """Add the instructions of a code object and its nested functions. Each global is represented by a number, in the
    order in which the names are first loaded, so that renaming it changes nothing. The values of globals are added
    afterwards, in the same order."""
    _instruction_tokens(tokens, code, {})
    return True


def _instruction_tokens(tokens: TokenDigest, code: CodeType, numbers: dict[str, int]) -> None:
    """Add the instructions of a code object. `numbers` contains the number of each global that has been loaded so
    far."""
    count = code.co_argcount + code.co_kwonlyargcount
    tokens.put("code", code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & FLAGS)
    tokens.put(*code.co_varnames[:count], "frees", len(code.co_freevars), len(code.co_cellvars))
    instructions = list(dis.get_instructions(code))
    at = {instruction.offset: index for index, instruction in enumerate(instructions)}
    for instruction in instructions:
        tokens.put(instruction.opname)
        if instruction.opcode in dis.hasconst and instruction.arg is not None:
            # not `argval`, which some versions of Python do not set for keyword names
            _constant_tokens(tokens, code.co_consts[instruction.arg], numbers)
        elif instruction.opname in GLOBAL_OPS:
            is_called = instruction.argrepr != instruction.argval
            tokens.put(int(is_called), numbers.setdefault(instruction.argval, len(numbers)))
        elif instruction.opcode in dis.hasname:
            tokens.put(instruction.argrepr)
        elif instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            tokens.put(at.get(instruction.argval, -1))
        else:
            tokens.put(instruction.arg)
    tokens.put(code.co_exceptiontable)


def source_tokens(tokens: TokenDigest, code: CodeType, covers_form: CoversForm) -> bool:
    """Add the syntax tree of a code object to a fingerprint. Returns False if its source is not available."""
    tree, earlier_tree = function_tree(code), earlier_function_tree(code)
    if tree is None:
        return False
    tokens.put(tree if tree == earlier_tree or covers_form(4) else earlier_tree)
    return True


def _constant_tokens(tokens: TokenDigest, value: Any, numbers: dict[str, int]) -> None:
    """Add a compiler constant: a plain value, a tuple or set of such values, or code."""
    if isinstance(value, CodeType):
        _instruction_tokens(tokens, value, numbers)
    elif isinstance(value, tuple):
        tokens.put("tuple", len(value))
        for element in value:
            _constant_tokens(tokens, element, numbers)
    elif isinstance(value, frozenset):
        tokens.put("set", *sorted(f"{type(element).__name__} {element!r}" for element in value))
    else:
        tokens.put(type(value).__name__, repr(value))
