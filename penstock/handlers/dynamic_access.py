"""Rules for finding code that accesses values by names computed at run time, as `eval` does. A fingerprint does not
cover such values."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.handlers.purity_rules import Names, Suspect

_FUNCTIONS = {f"builtins.{name}" for name in ("eval", "exec", "globals", "__import__")} | {
    *("importlib.import_module", "importlib.__import__", "runpy.run_path", "runpy.run_module"),
    *("sys.modules", "sys._getframe", "inspect.currentframe", "inspect.stack"),
}
_ATTRIBUTES = {"__globals__", "f_globals"}


def dynamic_access(piece: ast.AST, names: Names) -> Iterator[Suspect]:
    """Yield each use of a function that accesses values that the code does not name.

    `getattr`, `vars` and `locals` are not reported, because the module or object passed to them is compared as a whole.
    """
    if isinstance(piece, ast.expr) and not isinstance(piece, ast.Lambda | ast.Attribute | ast.Name):
        return  # the value of a constant is compared, however it was computed
    for node in ast.walk(piece):
        if isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
            yield Suspect(node.lineno, node.attr)
        elif isinstance(node, ast.Attribute | ast.Name):
            name = names.dotted(node)
            if name in _FUNCTIONS:
                yield Suspect(node.lineno, _shown_access(name))


def _shown_access(name: str) -> str:
    return name if name == "sys.modules" else f"{name.removeprefix('builtins.')}()"
