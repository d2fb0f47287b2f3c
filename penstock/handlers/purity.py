"""Static detection of handlers that are not deterministic because they use the clock, random numbers, files, or the
order of sets.

It reads each handler's function, timer functions and state class, and the `migrate` methods of states and events. It
also reads the functions, classes, methods (matched by name) and constants that these use in the same file. It does not
read functions in other files. `penstock check --determinism` also runs the handlers, which finds more problems.

`findings` applies the same rules, or others, to a single function, such as a Python function in a view's query.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CellType, CodeType, ModuleType
from typing import Any

from penstock.app.app import App
from penstock.app.declared import Handler, Where
from penstock.core.schema import migrate_of
from penstock.handlers.purity_rules import (
    CLOCK,
    ENVIRONMENT,
    OUTSIDE,
    RANDOM,
    SHARED,
    UNIQUE,
    Names,
    Suspect,
    suspects,
)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_Found = tuple[str, int, str]
"""A file, a line number, and the finding."""
Rule = Callable[[ast.AST, Names], Iterator[Suspect]]
"""A function that yields the suspects in a block of code."""
CONSTRUCTORS = ("__new__", "__init__", "__post_init__")


@dataclass(frozen=True)
class _File:
    """A Python file: its imports and its top-level declarations."""

    path: str
    tree: ast.Module
    imports: dict[str, str]
    functions: dict[str, FunctionNode]
    classes: dict[str, ast.ClassDef]
    values: dict[str, ast.expr]

    @property
    def methods(self) -> dict[str, list[FunctionNode]]:
        """The methods of all classes in the file, by name."""
        methods: dict[str, list[FunctionNode]] = {}
        for cls in self.classes.values():
            for node in cls.body:
                if isinstance(node, FunctionNode):
                    methods.setdefault(node.name, []).append(node)
        return methods

    def declared(self) -> frozenset[str]:
        return frozenset((*self.functions, *self.classes))


@dataclass(frozen=True)
class _Piece:
    """Code to read: a function, a class or a constant. `title` names the piece if it is not the handler itself. `outer`
    contains the names whose meaning differs from that in the file."""

    node: ast.AST
    title: str = ""
    outer: frozenset[str] = frozenset()

    @property
    def is_constant(self) -> bool:
        return isinstance(self.node, ast.expr) and not isinstance(self.node, ast.Lambda)


@dataclass(frozen=True)
class Impurity:
    """A place in the code whose result can differ between runs. It affects `handlers`, or the events in `streams`,
    which handlers then read. `reaches_outside` means that running the code may do harm."""

    where: Where
    handlers: tuple[str, ...]
    message: str
    streams: tuple[str, ...] = ()

    @property
    def reaches_outside(self) -> bool:
        return self.message.endswith(OUTSIDE)

    @property
    def draws_or_reads_clock(self) -> bool:
        return self.message.endswith((CLOCK, RANDOM, UNIQUE))

    def __str__(self) -> str:
        users = f"stream {', '.join(self.streams)}" if self.streams else f"handler {', '.join(self.handlers)}"
        return f"{self.where}: {users}: {self.message}"


def impurities(app: App) -> list[Impurity]:
    """Return the findings in all of an app's handlers and events, once for each place, sorted by file and line."""
    handlers: dict[_Found, dict[str, None]] = {}
    streams: dict[_Found, dict[str, None]] = {}
    for handler in app.handlers:
        for finding in _findings_in_handler(handler):
            handlers.setdefault(finding, {})[handler.name] = None
    for stream in (*app.streams, *app.outputs):
        for finding in _findings_in_migrate(stream.event):
            streams.setdefault(finding, {})[stream.name] = None
            readers = (reader.name for reader in app.handlers if stream.name in reader.reads)
            handlers.setdefault(finding, {}).update(dict.fromkeys(readers))
    return [
        Impurity(Where.of(file, line), tuple(names), message, tuple(streams.get((file, line, message), ())))
        for (file, line, message), names in sorted(handlers.items())
    ]


def _findings_in_handler(handler: Handler) -> Iterator[_Found]:
    for given in (*handler.written, handler.state):
        yield from _findings_in(given)
    yield from _findings_in_migrate(handler.state)


def _findings_in_migrate(cls: type) -> Iterator[_Found]:
    migrate = migrate_of(cls)
    if migrate is not None and hasattr(migrate, "__code__"):
        yield from _findings_in(migrate, f"in {cls.__name__}.migrate(): ")


def findings(function: Any, rule: Rule = suspects) -> Iterator[_Found]:
    """Yield the findings of a rule in a function or class, and in everything that it uses in its file. Yields nothing
    if the source is not available."""
    yield from _findings_in(function, rule=rule)


def _findings_in(given: Any, title: str = "", rule: Rule = suspects) -> Iterator[_Found]:
    file, node = _handler_source(given)
    if file is None or node is None:
        return
    function = inspect.unwrap(given)
    shadowed = _shadowed_builtins(function, file)
    for piece in _reachable(file, _Piece(node, outer=shadowed | _enclosing_variables(function, file)), shadowed):
        for line, message in dict.fromkeys(_suspects_in(file, piece, rule)):
            yield file.path, line, f"{piece.title or title}{message}"


def _shadowed_builtins(given: Any, file: _File) -> frozenset[str]:
    """Return the names of built-in functions that mean something else in a function's module, as after `import *`."""
    names = getattr(given, "__globals__", {})
    return frozenset(
        name
        for name in names.keys() & vars(builtins).keys() - file.imports.keys() - file.values.keys() - file.declared()
        if names[name] is not getattr(builtins, name)
    )


def _enclosing_variables(given: Any, file: _File) -> frozenset[str]:
    """Return the variables that a function takes from its enclosing functions, except names that the enclosing
    functions have imported."""
    code = getattr(given, "__code__", None)
    if code is None:
        return frozenset()
    imported = {
        name
        for name, cell in zip(code.co_freevars, given.__closure__ or (), strict=False)
        if name in file.imports and _is_importable_cell(cell)
    }
    return frozenset(code.co_freevars) - imported


def _is_importable_cell(cell: CellType) -> bool:
    try:
        content = cell.cell_contents
    except ValueError:
        return True  # not known yet
    return isinstance(content, ModuleType) or callable(content)


def _suspects_in(file: _File, piece: _Piece, rule: Rule) -> Iterator[tuple[int, str]]:
    names = _piece_names(file, piece)
    for body in _bodies(piece.node):
        for suspect in rule(body, names):
            if not piece.is_constant or not suspect.message.endswith((OUTSIDE, ENVIRONMENT, SHARED)):
                yield suspect  # a constant can come from outside, because it is the same for all events in a run


def _handler_source(given: Any) -> tuple[_File | None, ast.AST | None]:
    """Return the file and the syntax tree of a handler's function or class, or None if its source is not available."""
    given = inspect.unwrap(given)
    try:
        path = inspect.getsourcefile(given)
        file = _parse_file(path) if path is not None else None
    except (TypeError, OSError, SyntaxError, UnicodeDecodeError):
        return None, None
    if file is None or isinstance(given, type):
        return file, file.classes.get(given.__name__) if file is not None else None
    return file, _function_node(file.tree, given.__code__)


def _function_node(tree: ast.Module, code: CodeType) -> FunctionNode | ast.Lambda | None:
    """Return the function that code was compiled from. If several lambdas are on the same line, possibly nested, return
    the innermost lambda that contains all of the code. A decorated function starts at its first decorator's line."""
    functions = (node for node in ast.walk(tree) if isinstance(node, FunctionNode | ast.Lambda))
    on_line = [
        node
        for node in functions
        if _function_line(node) == code.co_firstlineno and _function_name(node) == code.co_name
    ]
    around = [node for node in on_line if isinstance(node, ast.Lambda) and _lambda_holds_code(node, code)]
    return next(iter(around[-1:] or on_line), None)


def _lambda_holds_code(node: ast.Lambda, code: CodeType) -> bool:
    start = node.lineno, node.col_offset
    end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return all(
        start <= (line, column) and (end_line, end_column) <= end
        for line, end_line, column, end_column in code.co_positions()
        if line is not None and end_line is not None and column is not None and end_column  # 0: the start of the code
    )


def _function_name(node: FunctionNode | ast.Lambda) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _function_line(node: FunctionNode | ast.Lambda) -> int:
    """Return the first line of a function, including its decorators."""
    decorators: Sequence[ast.expr] = () if isinstance(node, ast.Lambda) else node.decorator_list
    return min(node.lineno, *(decorator.lineno for decorator in decorators), node.lineno)


@cache
def _parse_file(path: str) -> _File:
    tree = ast.parse(Path(path).read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, FunctionNode)}
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return _File(path, tree, _file_imports(tree), functions, classes, _file_values(tree))


def _file_imports(tree: ast.AST) -> dict[str, str]:
    """Return the full name of each name imported by a handler's file. This includes imports inside functions: a name
    rarely has two meanings in one file."""
    imports: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                imports[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imports |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return imports


def _file_values(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values that a handler's file assigns at its top level, including inside `if` and `try`."""
    values: dict[str, ast.expr] = {}
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
        elif not isinstance(node, FunctionNode | ast.ClassDef):
            pending += [statement for statement in ast.iter_child_nodes(node) if isinstance(statement, ast.stmt)]
    return values


def _reachable(file: _File, start: _Piece, outer: frozenset[str] = frozenset()) -> Iterator[_Piece]:
    """Yield a piece, and everything in the file that it uses, directly or indirectly. `outer` contains the names that
    mean something different throughout the file from what the file itself shows."""
    pieces, seen = [start], {start.node}
    while pieces:
        piece = pieces.pop(0)
        yield piece
        for following in _used_pieces(file, piece):
            if following.node not in seen:
                seen.add(following.node)
                pieces.append(replace(following, outer=outer))


def _used_pieces(file: _File, piece: _Piece) -> Iterator[_Piece]:
    local, methods = _bound_names(piece.node) | piece.outer, file.methods
    for child in (inner for body in _bodies(piece.node) for inner in ast.walk(body)):
        if isinstance(child, ast.Attribute):
            yield from (_Piece(method, f"in {child.attr}(): ") for method in methods.get(child.attr, ()))
        elif isinstance(child, ast.Name) and child.id not in local:
            yield from _declared_pieces(file, child.id)


def _declared_pieces(file: _File, name: str) -> Iterator[_Piece]:
    if name in file.functions:
        yield _Piece(file.functions[name], f"in {name}(): ")
    elif name in file.classes:
        cls = file.classes[name]
        yield _Piece(cls, f"in {name}: ")
        methods = (method for method in cls.body if isinstance(method, FunctionNode) and method.name in CONSTRUCTORS)
        yield from (_Piece(method, f"in {name}.{method.name}(): ") for method in methods)
    elif name in file.values:
        yield _Piece(file.values[name], f"{name}: ")


def _bodies(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a handler's code that are executed: a function's statements and defaults, or a class's
    values, without annotations."""
    if isinstance(node, FunctionNode):
        defaults = (*node.args.defaults, *node.args.kw_defaults)
        return [*node.body, *(default for default in defaults if default is not None)]
    if isinstance(node, ast.ClassDef):
        fields = (statement.value for statement in node.body if isinstance(statement, ast.Assign | ast.AnnAssign))
        return [value for value in fields if value is not None]
    return [node]


def _piece_names(file: _File, piece: _Piece) -> Names:
    node = piece.node
    names = Names(file.imports, file.values, file.declared(), _bound_names(node) | piece.outer)
    names.sets = _set_names(node, names)
    names.written = _global_names(node)
    if isinstance(node, FunctionNode):
        pairs = zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)
        names.shared = frozenset(argument.arg for argument, default in pairs if names.is_container(default))
    return names


def _bound_names(node: ast.AST) -> frozenset[str]:
    """Return the names bound within a node of a handler's code, except names declared `global`."""
    names: set[str] = set()
    whole = [node] if isinstance(node, FunctionNode) else _bodies(node)
    for child in (inner for part in whole for inner in ast.walk(part)):
        if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
            names.add(child.id)
        elif isinstance(child, ast.arg):
            names.add(child.arg)
        elif isinstance(child, FunctionNode | ast.ClassDef | ast.ExceptHandler) and child is not node and child.name:
            names.add(child.name)
    return frozenset(names - _global_names(node))


def _global_names(node: ast.AST) -> frozenset[str]:
    return frozenset(
        name for statement in ast.walk(node) if isinstance(statement, ast.Global) for name in statement.names
    )


def _set_names(node: ast.AST, names: Names) -> frozenset[str]:
    """Return the names in a handler's code that are only ever bound to sets within a node."""
    bound: Counter[str] = Counter()
    sets: Counter[str] = Counter()
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            bound[child.id] += 1
        elif isinstance(child, ast.arg):
            bound[child.arg] += 1
            sets[child.arg] += _is_set_annotation(child.annotation)
        elif isinstance(child, ast.Assign):
            sets.update(one.id for one in child.targets if isinstance(one, ast.Name) and names.is_set(child.value))
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            sets[child.target.id] += _is_set_annotation(child.annotation)
        elif isinstance(child, ast.AugAssign) and isinstance(child.target, ast.Name):
            bound[child.target.id] -= 1  # an augmented assignment does not change the type
    return frozenset(name for name, count in sets.items() if count == bound[name] > 0)


def _is_set_annotation(annotation: ast.expr | None) -> bool:
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(base, ast.Name) and base.id in ("set", "frozenset", "Set", "FrozenSet", "AbstractSet")
