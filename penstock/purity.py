"""Handlers that cannot be deterministic, found by reading them: the clock, random numbers, files, the order of sets.

What is read is each handler's function, those of its timers and its state class, the methods `migrate` of states and
events, and what they use of the same file: functions, classes, methods by their name, constants. What they call in
other files is not read: `penstock check --determinism` runs the handlers too, which finds what reading does not.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from penstock.app import App
from penstock.declared import Handler, Where
from penstock.schema import migrate_of
from penstock.suspects import CLOCK, ENVIRONMENT, OUTSIDE, RANDOM, SHARED, UNIQUE, Names, suspects

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_Found = tuple[str, int, str]
"""A file, a line of it, and what is found there."""
CONSTRUCTORS = ("__new__", "__init__", "__post_init__")


@dataclass(frozen=True)
class _File:
    """A file of Python: what it imports and what it declares at its top level."""

    path: str
    tree: ast.Module
    imports: dict[str, str]
    functions: dict[str, FunctionNode]
    classes: dict[str, ast.ClassDef]
    values: dict[str, ast.expr]

    @property
    def methods(self) -> dict[str, list[FunctionNode]]:
        """The methods of all its classes, by name."""
        found: dict[str, list[FunctionNode]] = {}
        for cls in self.classes.values():
            for each in cls.body:
                if isinstance(each, FunctionNode):
                    found.setdefault(each.name, []).append(each)
        return found

    def declared(self) -> frozenset[str]:
        return frozenset((*self.functions, *self.classes))


@dataclass(frozen=True)
class _Piece:
    """Something to read: a function, a class or a constant. `title` says which one, if it is not the handler itself."""

    node: ast.AST
    title: str = ""


@dataclass(frozen=True)
class Impurity:
    """One place that makes handlers differ from run to run, or the events of `streams`, which handlers then read.
    `reaches_outside` says that running it may do harm."""

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
    """What is found in all handlers and events of an app, each place once, in the order of the files' lines."""
    handlers: dict[_Found, dict[str, None]] = {}
    streams: dict[_Found, dict[str, None]] = {}
    for handler in app.handlers:
        for found in _of_handler(handler):
            handlers.setdefault(found, {})[handler.name] = None
    for stream in (*app.streams, *app.outputs):
        for found in _of_migrate(stream.event):
            streams.setdefault(found, {})[stream.name] = None
            readers = (each.name for each in app.handlers if stream.name in each.reads)
            handlers.setdefault(found, {}).update(dict.fromkeys(readers))
    return [
        Impurity(Where.of(file, line), tuple(names), message, tuple(streams.get((file, line, message), ())))
        for (file, line, message), names in sorted(handlers.items())
    ]


def _of_handler(handler: Handler) -> Iterator[_Found]:
    for given in (*handler.written, handler.state):
        yield from _of(given)
    yield from _of_migrate(handler.state)


def _of_migrate(cls: type) -> Iterator[_Found]:
    migrate = migrate_of(cls)
    if migrate is not None and hasattr(migrate, "__code__"):
        yield from _of(migrate, f"in {cls.__name__}.migrate(): ")


def _of(given: Any, title: str = "") -> Iterator[_Found]:
    file, node = _source(given)
    if file is None or node is None:
        return
    for piece in _reached(file, node):
        for line, message in dict.fromkeys(_found(file, piece)):
            yield file.path, line, f"{piece.title or title}{message}"


def _found(file: _File, piece: _Piece) -> Iterator[tuple[int, str]]:
    names = _names(file, piece.node)
    for body in _bodies(piece.node):
        for suspect in suspects(body, names):
            if not isinstance(piece.node, ast.expr) or not suspect.message.endswith((OUTSIDE, ENVIRONMENT, SHARED)):
                yield suspect  # a constant may come from outside: it is the same for all events of a run


def _source(given: Any) -> tuple[_File | None, ast.AST | None]:
    """The file and the node of a function or class; None if there is no text of it."""
    given = inspect.unwrap(given)
    try:
        path = inspect.getsourcefile(given)
        file = _read(path) if path is not None else None
    except (TypeError, OSError, SyntaxError, UnicodeDecodeError):
        return None, None
    if file is None or isinstance(given, type):
        return file, file.classes.get(given.__name__) if file is not None else None
    return file, _node(file.tree, given.__code__)


def _node(tree: ast.Module, code: CodeType) -> FunctionNode | ast.Lambda | None:
    """The function that some code was compiled from. A decorator has the line of its function, and a line may have
    several lambdas, some in others: then it is the innermost that all of the code stands in."""
    functions = (node for node in ast.walk(tree) if isinstance(node, FunctionNode | ast.Lambda))
    on_line = [node for node in functions if _line(node) == code.co_firstlineno and _name(node) == code.co_name]
    around = [node for node in on_line if isinstance(node, ast.Lambda) and _holds(node, code)]
    return next(iter(around[-1:] or on_line), None)


def _holds(node: ast.Lambda, code: CodeType) -> bool:
    start = node.lineno, node.col_offset
    end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return all(
        start <= (line, column) and (end_line, end_column) <= end
        for line, end_line, column, end_column in code.co_positions()
        if line is not None and end_line is not None and column is not None and end_column  # 0: where the code begins
    )


def _name(node: FunctionNode | ast.Lambda) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _line(node: FunctionNode | ast.Lambda) -> int:
    """Where a function begins: at its first decorator."""
    decorators: Sequence[ast.expr] = () if isinstance(node, ast.Lambda) else node.decorator_list
    return min(node.lineno, *(each.lineno for each in decorators), node.lineno)


@cache
def _read(path: str) -> _File:
    tree = ast.parse(Path(path).read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, FunctionNode)}
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return _File(path, tree, _imports(tree), functions, classes, _values(tree))


def _imports(tree: ast.AST) -> dict[str, str]:
    """What each imported name is in full. Those of functions count as well: a name is seldom two things."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                first = each.name.partition(".")[0]
                found[each.asname or first] = each.name if each.asname else first
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


def _values(tree: ast.Module) -> dict[str, ast.expr]:
    """What the file assigns at its top level, also under `if` and `try`."""
    found: dict[str, ast.expr] = {}
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id: node.value for each in targets if isinstance(each, ast.Name)}
        elif not isinstance(node, FunctionNode | ast.ClassDef):
            pending += [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
    return found


def _reached(file: _File, node: ast.AST) -> Iterator[_Piece]:
    """The node, and all of the file that it uses, directly or by way of others."""
    pieces, seen = [_Piece(node)], {node}
    while pieces:
        piece = pieces.pop(0)
        yield piece
        for following in _used(file, piece.node):
            if following.node not in seen:
                seen.add(following.node)
                pieces.append(following)


def _used(file: _File, node: ast.AST) -> Iterator[_Piece]:
    local, methods = _bound(node), file.methods
    for each in (inner for body in _bodies(node) for inner in ast.walk(body)):
        if isinstance(each, ast.Attribute):
            yield from (_Piece(method, f"in {each.attr}(): ") for method in methods.get(each.attr, ()))
        elif isinstance(each, ast.Name) and each.id not in local:
            yield from _declared(file, each.id)


def _declared(file: _File, name: str) -> Iterator[_Piece]:
    if name in file.functions:
        yield _Piece(file.functions[name], f"in {name}(): ")
    elif name in file.classes:
        cls = file.classes[name]
        yield _Piece(cls, f"in {name}: ")
        methods = (each for each in cls.body if isinstance(each, FunctionNode) and each.name in CONSTRUCTORS)
        yield from (_Piece(each, f"in {name}.{each.name}(): ") for each in methods)
    elif name in file.values:
        yield _Piece(file.values[name], f"{name}: ")


def _bodies(node: ast.AST) -> list[ast.AST]:
    """What of a piece is run: of a function its statements and defaults, of a class its values; no annotation."""
    if isinstance(node, FunctionNode):
        defaults = (*node.args.defaults, *node.args.kw_defaults)
        return [*node.body, *(each for each in defaults if each is not None)]
    if isinstance(node, ast.ClassDef):
        fields = (each.value for each in node.body if isinstance(each, ast.Assign | ast.AnnAssign))
        return [each for each in fields if each is not None]
    return [node]


def _names(file: _File, node: ast.AST) -> Names:
    names = Names(file.imports, file.values, file.declared(), _bound(node))
    names.sets = _sets(node, names)
    names.written = _global(node)
    if isinstance(node, FunctionNode):
        pairs = zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)
        names.shared = frozenset(each.arg for each, default in pairs if names.is_container(default))
    return names


def _bound(node: ast.AST) -> frozenset[str]:
    """The names that are bound within a piece, those of `global` left out."""
    found: set[str] = set()
    whole = [node] if isinstance(node, FunctionNode) else _bodies(node)
    for each in (inner for part in whole for inner in ast.walk(part)):
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
            found.add(each.id)
        elif isinstance(each, ast.arg):
            found.add(each.arg)
        elif isinstance(each, FunctionNode | ast.ClassDef | ast.ExceptHandler) and each is not node and each.name:
            found.add(each.name)
    return frozenset(found - _global(node))


def _global(node: ast.AST) -> frozenset[str]:
    return frozenset(name for each in ast.walk(node) if isinstance(each, ast.Global) for name in each.names)


def _sets(node: ast.AST, names: Names) -> frozenset[str]:
    """The names that are bound to sets, and to nothing else, within a piece."""
    bound: Counter[str] = Counter()
    sets: Counter[str] = Counter()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            bound[each.id] += 1
        elif isinstance(each, ast.arg):
            bound[each.arg] += 1
            sets[each.arg] += _says_set(each.annotation)
        elif isinstance(each, ast.Assign):
            sets.update(one.id for one in each.targets if isinstance(one, ast.Name) and names.is_set(each.value))
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            sets[each.target.id] += _says_set(each.annotation)
        elif isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name):
            bound[each.target.id] -= 1  # changed in place, it stays what it is
    return frozenset(name for name, count in sets.items() if count == bound[name] > 0)


def _says_set(annotation: ast.expr | None) -> bool:
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(base, ast.Name) and base.id in ("set", "frozenset", "Set", "FrozenSet", "AbstractSet")
