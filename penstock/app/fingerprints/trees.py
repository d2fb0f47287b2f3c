"""Syntax trees as text, without layout, comments, docstrings and annotations: the same for every version of Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SKIPPED = frozenset({"ctx", "kind", "type_comment", "type_params", "returns"})
_files: dict[str, tuple[tuple[int, int], ast.Module]] = {}


def function_tree(code: CodeType) -> str | None:
    """Return the syntax tree, as text, of the function that code was compiled from, or None if its source is not
    available."""
    functions = _functions_on_line(code)
    return " ".join(map(dump, _at_position(functions, code))) or None


def earlier_function_tree(code: CodeType) -> str | None:
    """Return the tree that forms of fingerprints before 4 contain: of all functions that begin on the same line,
    without the names of nested functions, without decorators, and without annotations in nested classes."""
    return " ".join(dump(function, whole=False) for function in _functions_on_line(code)) or None


def dump(node: ast.AST, parent: ast.AST | None = None, *, whole: bool = True) -> str:
    """Return a syntax tree as text: node names, fields that are not empty, and constants with their types. A function
    without a parent has no name and no decorators, because they are not part of its code."""
    if isinstance(node, ast.Constant):
        return f"Constant({type(node.value).__name__} {node.value!r})"
    return f"{type(node).__name__}({', '.join(_dumped_fields(node, parent, whole))})"


def _dumped_fields(node: ast.AST, parent: ast.AST | None, whole: bool) -> Iterator[str]:
    def text(child: object) -> str:
        return dump(child, node, whole=whole) if isinstance(child, ast.AST) else repr(child)

    for name in node._fields:
        value = getattr(node, name, None)
        if value is None or value == [] or _is_left_out(name, node, parent, whole):
            continue
        if name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            value = _without_docstring(value)
        yield f"{name}=[{', '.join(map(text, value))}]" if isinstance(value, list) else f"{name}={text(value)}"


def _is_left_out(name: str, node: ast.AST, parent: ast.AST | None, whole: bool) -> bool:
    """Return whether a field of a node is left out. Annotations count only in the bodies of nested classes, where they
    define the fields of a dataclass or struct."""
    if name == "decorator_list" or (name == "name" and isinstance(node, FunctionNode)):
        return parent is None or not whole
    if name == "annotation":
        return not (whole and isinstance(parent, ast.ClassDef))
    return name in _SKIPPED


def _without_docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return list(body[1:] if text else body)


def _functions_on_line(code: CodeType) -> list[FunctionNode]:
    """Return the functions that begin on the line where the function of this code begins."""
    tree = _file_tree(code.co_filename)
    return [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, FunctionNode) and _function_first_line(node) == code.co_firstlineno
    ]


def _at_position(functions: list[FunctionNode], code: CodeType) -> list[FunctionNode]:
    """Return the function that code was compiled from. Only lambdas can begin on the same line, so they are selected by
    their columns. Returns all lambdas on the line if the code has no columns: with `-X no_debug_ranges`, and on Python
    3.12 if the lambda only returns a constant."""
    is_lambda = code.co_name == "<lambda>"
    same_kind: list[FunctionNode] = [
        function for function in functions if isinstance(function, ast.Lambda) == is_lambda
    ]
    spans = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line is not None and end_line is not None and column is not None and end_column is not None
    ]
    spans = [(start, end) for start, end in spans if start != end]
    if not spans or not is_lambda:
        return same_kind
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    around = [node for node in same_kind if isinstance(node, ast.Lambda) and _is_around(node.body, first, last)]
    return [max(around, key=lambda node: (node.lineno, node.col_offset))] if around else same_kind


def _is_around(body: ast.expr, first: tuple[int, int], last: tuple[int, int]) -> bool:
    return (body.lineno, body.col_offset) <= first and last <= (body.end_lineno or 0, body.end_col_offset or 0)


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
