"""The code of functions as tokens, and which code is the app's own."""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import penstock
from penstock.fingerprints.digests import Tokens
from penstock.fingerprints.trees import function_tree

GLOBAL_OPS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x100 | 0x200
"""Of a code's flags those that change what a call does: *args, **kwargs, generator, coroutine."""
ATTRIBUTE_OPS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


def is_local(file: str | None) -> bool:
    """Whether a file belongs to the app: not to Python, an installed package or Penstock. Code that has no file, as in
    a notebook or a test, does."""
    return file is None or (file.startswith("<") and not file.startswith("<frozen")) or _is_local(file)


@cache
def _is_local(file: str) -> bool:
    path = Path(file).resolve()
    return not any(path.is_relative_to(each) for each in _installed())


@cache
def _installed() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    named = {paths[each] for each in ("stdlib", "platstdlib", "purelib", "platlib")}
    packages = {each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")}
    own = {str(Path(penstock.__file__).parent)}
    return tuple(Path(each).resolve() for each in (*named, *packages, *own))


def is_local_function(function: FunctionType) -> bool:
    return is_local(function.__code__.co_filename)


@dataclass(frozen=True, order=True)
class Reference:
    """A global name that code loads, and the attributes that it takes of it straight away."""

    name: str
    attributes: tuple[str, ...] = ()


def references(code: CodeType) -> Iterator[Reference]:
    """The global names that the code loads, that of nested functions included, each with `a.b.c` as far as it goes."""
    found = list(dis.get_instructions(code))
    for index, each in enumerate(found):
        if each.opname in GLOBAL_OPS:
            yield Reference(each.argval, attributes_after(found, index + 1))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from references(constant)


def attributes_after(found: list[dis.Instruction], start: int) -> tuple[str, ...]:
    """The attributes that are taken, one of the other, of the value that was loaded before."""
    taken = []
    for each in found[start:]:
        if each.opname not in ATTRIBUTE_OPS:
            break
        taken.append(str(each.argval))
    return tuple(taken)


def code_tokens(tokens: Tokens, code: CodeType) -> bool:
    """Put the instructions of code. Names of globals are left out: what they refer to counts, and is put after it."""
    count = code.co_argcount + code.co_kwonlyargcount
    tokens.put("code", code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & FLAGS)
    tokens.put(*code.co_varnames[:count], "frees", len(code.co_freevars), len(code.co_cellvars))
    found = list(dis.get_instructions(code))
    at = {each.offset: index for index, each in enumerate(found)}
    for each in found:
        tokens.put(each.opname)
        if each.opcode in dis.hasconst:
            _constant(tokens, each.argval)
        elif each.opname in GLOBAL_OPS:
            tokens.put(int(each.argrepr.startswith("NULL")))
        elif each.opcode in dis.hasname:
            tokens.put(each.argrepr)
        elif each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            tokens.put(at.get(each.argval, -1))
        else:
            tokens.put(each.arg)
    tokens.put(code.co_exceptiontable)
    return True


def source_tokens(tokens: Tokens, code: CodeType) -> bool:
    """Put the syntax tree of code; False if there is no text of it."""
    tree = function_tree(code)
    if tree is None:
        return False
    tokens.put(tree)
    return True


def _constant(tokens: Tokens, value: Any) -> None:
    """A constant of the compiler's: plain values, tuples and sets of them, and code."""
    if isinstance(value, CodeType):
        code_tokens(tokens, value)
    elif isinstance(value, tuple):
        tokens.put("tuple", len(value))
        for each in value:
            _constant(tokens, each)
    elif isinstance(value, frozenset):
        tokens.put("set", *sorted(f"{type(each).__name__} {each!r}" for each in value))
    else:
        tokens.put(type(value).__name__, repr(value))
