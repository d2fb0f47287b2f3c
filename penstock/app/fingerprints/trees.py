"""Syntax trees as text, without layout, comments, docstrings and annotations: the same for every version of Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SKIPPED = frozenset({"ctx", "kind", "type_comment", "type_params", "decorator_list", "returns", "annotation"})
_files: dict[str, tuple[tuple[int, int], ast.Module]] = {}


def function_tree(code: CodeType) -> str | None:
    """Return the syntax tree, as text, of the function that code was compiled from, or None if its source is not
    available. If several functions begin on the same line, returns the trees of all of them."""
    tree = _file_tree(code.co_filename)
    if tree is None:
        return None
    functions = [
        function for function in _tree_functions(tree) if _function_first_line(function) == code.co_firstlineno
    ]
    return " ".join(map(dump, functions)) or None


def dump(node: ast.AST) -> str:
    """Return a syntax tree as text: node names, fields that are not empty, and constants with their types."""
    if isinstance(node, ast.Constant):
        return f"Constant({type(node.value).__name__} {node.value!r})"
    return f"{type(node).__name__}({', '.join(_dumped_fields(node))})"


def _dumped_fields(node: ast.AST) -> Iterator[str]:
    for name in node._fields:
        value = getattr(node, name, None)
        if name in _SKIPPED or value is None or value == []:
            continue
        if name == "name" and isinstance(node, FunctionNode):
            continue
        if name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            value = _without_docstring(value)
        if isinstance(value, list):
            yield f"{name}=[{', '.join(dump(child) if isinstance(child, ast.AST) else repr(child) for child in value)}]"
        else:
            yield f"{name}={dump(value) if isinstance(value, ast.AST) else repr(value)}"


def _without_docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return list(body[1:] if text else body)


def _tree_functions(tree: ast.Module) -> Iterator[FunctionNode]:
    return (node for node in ast.walk(tree) if isinstance(node, FunctionNode))


def _function_first_line(node: FunctionNode) -> int:
    """Return the first line of a function as Python reports it, including its decorators."""
    decorators: Sequence[ast.expr] = () if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _file_tree(file: str) -> ast.Module | None:
    """Return the syntax tree of a file, parsed again if the file has changed."""
    try:
        status = Path(file).stat()
        mark = (status.st_mtime_ns, status.st_size)
        if file not in _files or _files[file][0] != mark:
            _files[file] = (mark, ast.parse(Path(file).read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return None
    return _files[file][1]
