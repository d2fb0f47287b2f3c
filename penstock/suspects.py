"""What makes a piece of Python give other results in another run, as far as its text shows it.

A rule of thumb for each kind: a name that must not be used, a set whose order is used, something outside that is
written. What is not certain is let pass: a check that cries wolf is not run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

CLOCK = "is the wall clock, which another run reads at another time; use ctx.now or a time of the event"
RANDOM = "draws other values in each run; use ctx.random"
UNIQUE = "is another one in each run; use UUID(int=ctx.random.getrandbits(128), version=4), or an id of the event"
OUTSIDE = "reaches outside, where another run may find something else; use fields of the event"
ENVIRONMENT = "is another one in another process; use a constant of the file, or fields of the event"
ZONE = "takes the time zone of the machine; use a datetime and give it a zone, as in tz=UTC"
HASH = "of the same text is another number in each process; use the value itself, or zlib.crc32 of its bytes"
IDENTITY = "is an address, another one in each process; use a field that identifies the value"
ORDER = "the order of a set is another one in each process; use sorted(...)"
SHARED = "is outside of the state: it starts anew with each process, and each has its own; keep it in the state"

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_BANNED: Mapping[str, tuple[str, ...]] = {
    CLOCK: (
        *(f"time.{name}{unit}" for name in _CLOCKS for unit in ("", "_ns")),
        *(f"datetime.{name}" for name in ("datetime.now", "datetime.utcnow", "datetime.today", "date.today")),
    ),
    RANDOM: ("os.urandom", "os.getrandom", "random.", "secrets.", "numpy.random."),
    UNIQUE: ("uuid.uuid1", "uuid.uuid4"),
    ENVIRONMENT: ("os.environ", "os.environb", "os.getenv", "os.getpid", "os.getcwd"),
    OUTSIDE: (
        *("builtins.open", "builtins.input", "io.open", "os.", "pathlib.Path.cwd", "pathlib.Path.home"),
        *("socket.", "requests.", "httpx.", "aiohttp.", "urllib.request.", "http.client.", "sqlite3."),
        *("subprocess.", "shutil.", "tempfile.", "glob."),
    ),
    ZONE: ("time.mktime",),
    HASH: ("builtins.hash",),
    IDENTITY: ("builtins.id",),
}
NAMES = {name: reason for reason, names in _BANNED.items() for name in names}
"""What each name is. One that ends in a dot stands for all that is in that module; the longest that fits counts."""
PURE = (
    *(f"os.path.{name}" for name in ("join", "basename", "dirname", "split", "splitext", "normpath", "commonprefix")),
    *("os.fspath", "os.sep", "os.linesep"),
)
WITHOUT = {
    "random.Random": (1, RANDOM),
    "numpy.random.default_rng": (1, RANDOM),
    "numpy.random.RandomState": (1, RANDOM),
    "datetime.datetime.fromtimestamp": (2, ZONE),
    "datetime.date.fromtimestamp": (2, ZONE),
    "time.localtime": (2, ZONE),
    "time.gmtime": (1, CLOCK),
    "time.strftime": (2, CLOCK),
}
"""Functions that are sound if they are called with so many arguments: a seed, a time zone, a time."""
PATH_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes"}
"""Methods of `pathlib.Path`, and hardly of anything else."""
FILE_METHODS = PATH_METHODS | {"open", "exists", "is_file", "is_dir", "iterdir", "glob", "stat", "mkdir", "unlink"}
ORDER_FREE = {f"builtins.{name}" for name in ("sorted", "len", "min", "max", "sum", "any", "all", "set", "frozenset")}
ORDER_TAKING = {f"builtins.{name}" for name in ("list", "tuple", "enumerate", "iter", "zip", "map", "filter")} | {
    "builtins.str", "builtins.repr", "collections.deque", "builtins.dict.fromkeys",
}  # fmt: skip
ORDER_TAKING_METHODS = {"join", "extend", "extendleft", "writelines"}
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference", "copy"}
SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)
MUTATORS = {
    "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "pop", "popleft", "popitem", "remove",
    "discard", "clear", "setdefault", "sort", "reverse", "subtract",
}  # fmt: skip
CONTAINERS = {f"builtins.{name}" for name in ("list", "dict", "set", "bytearray")} | {
    f"collections.{name}" for name in ("defaultdict", "deque", "Counter", "OrderedDict")
}


class Suspect(NamedTuple):
    line: int
    message: str


@dataclass
class Names:
    """What names mean in a piece of code: `imports` by the name they have there, `values` that its file assigns at the
    top level, `declared` functions and classes of the file; and what is bound within the piece itself (`local`), to
    sets only (`sets`), or to a default value that all calls share (`shared`); `written` are those of `global`."""

    imports: Mapping[str, str]
    values: Mapping[str, ast.expr]
    declared: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    def dotted(self, node: ast.expr) -> str | None:
        """The full name of what an expression names, as in `datetime.datetime.now`; None if it is not known."""
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return f"{owner}.{node.attr}" if owner is not None else None
        if not isinstance(node, ast.Name) or node.id in self.local:
            return None
        if node.id in self.imports:
            return self.imports[node.id]
        if node.id in self.values:
            value = self.values[node.id]
            return self.dotted(value) if isinstance(value, ast.Attribute) else None
        return None if node.id in self.declared else f"builtins.{node.id}"

    def outer(self, node: ast.expr) -> str | None:
        """The name of the file's own that an expression such as `NAME[key].part` begins with; None if there is none."""
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        own = node.id not in self.local and (node.id in self.values or node.id in self.declared)
        return node.id if own or node.id in self.shared else None

    def is_container(self, node: ast.expr) -> bool:
        """Whether an expression makes a list, dict or set."""
        if isinstance(node, ast.Call):
            return self.dotted(node.func) in CONTAINERS
        return isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)

    def is_set(self, node: ast.expr) -> bool:
        """Whether an expression is a set for certain. One of numbers written out has the same order everywhere."""
        if isinstance(node, ast.Name):
            if node.id in self.local:
                return node.id in self.sets
            value = self.values.get(node.id)
            return value is not None and not isinstance(value, ast.Name) and self.is_set(value)
        if isinstance(node, ast.Set):
            return not all(isinstance(each, ast.Constant) and isinstance(each.value, int | float) for each in node.elts)
        if isinstance(node, ast.BinOp) and isinstance(node.op, SET_OPERATORS):
            return any(self.is_set(side) or _is_keys(side) for side in (node.left, node.right))
        if isinstance(node, ast.Call):
            return self._makes_set(node)
        if isinstance(node, ast.IfExp):
            return self.is_set(node.body) or self.is_set(node.orelse)
        return isinstance(node, ast.SetComp)

    def _makes_set(self, call: ast.Call) -> bool:
        if isinstance(call.func, ast.Attribute) and call.func.attr in SET_METHODS:
            return self.is_set(call.func.value)
        return self.dotted(call.func) in ("builtins.set", "builtins.frozenset")


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")


def suspects(piece: ast.AST, names: Names) -> Iterator[Suspect]:
    """Everything in a piece of code that may differ between two runs."""
    yield from _named(piece, names)
    yield from _ordered(piece, names, False)
    yield from _written(piece, names)


def _named(node: ast.AST, names: Names) -> Iterator[Suspect]:
    """Uses of names that are no good, whether they are called or handed on."""
    if isinstance(node, ast.Call):
        yield from _called(node, names)
        name = names.dotted(node.func)
        parts = [node.func] if name not in WITHOUT else []
        for each in (*parts, *node.args, *node.keywords):
            yield from _named(each, names)
        return
    if isinstance(node, ast.Attribute | ast.Name):
        name = names.dotted(node)
        if name is not None:
            reason = _reason(name)
            yield from [Suspect(node.lineno, f"{_shown(name)} {reason}")] if reason is not None else []
            return
    for child in ast.iter_child_nodes(node):
        yield from _named(child, names)


def _called(call: ast.Call, names: Names) -> Iterator[Suspect]:
    name = names.dotted(call.func) or ""
    if name in WITHOUT:
        wanted, reason = WITHOUT[name]
        if len(call.args) + len(call.keywords) < wanted:
            yield Suspect(call.lineno, f"{_shown(name)} {reason}")
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "astimezone" and not call.args:
        if not call.keywords:
            yield Suspect(call.lineno, f"astimezone() {ZONE}")
    elif isinstance(call.func, ast.Attribute) and call.func.attr in FILE_METHODS:
        inner = call.func.value
        made = isinstance(inner, ast.Call) and names.dotted(inner.func) == "pathlib.Path"
        if made or call.func.attr in PATH_METHODS:
            yield Suspect(call.lineno, f"{call.func.attr}() {OUTSIDE}")


def _reason(name: str) -> str | None:
    """Why a name is no good: by the longest entry that it is, or is a part of."""
    if name.startswith(PURE) or name in WITHOUT:
        return None
    fits = [each for each in NAMES if name == each or name.startswith(each if each.endswith(".") else f"{each}.")]
    return NAMES[max(fits, key=len)] if fits else None


def _shown(name: str) -> str:
    return f"{name.removeprefix('builtins.')}()" if name != "os.environ" else name


def _ordered(node: ast.AST, names: Names, free: bool) -> Iterator[Suspect]:
    """Uses of the order of a set. `free` says that whoever takes this expression does not care for order."""
    if any(names.is_set(each) for each in _iterated(node, names, free)):
        yield Suspect(getattr(node, "lineno", 0), ORDER)
    free = isinstance(node, ast.Call) and (names.dotted(node.func) in ORDER_FREE or (free and _passes(node, names)))
    for child in ast.iter_child_nodes(node):
        yield from _ordered(child, names, free)


def _passes(call: ast.Call, names: Names) -> bool:
    """Whether a call hands the order of its argument on, and does nothing else with it."""
    return names.dotted(call.func) in ORDER_TAKING


def _iterated(node: ast.AST, names: Names, free: bool) -> Iterator[ast.expr]:
    """What is gone through by a node, if its order matters."""
    if isinstance(node, ast.For | ast.AsyncFor):
        yield node.iter
    elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp) and not free:
        yield from (each.iter for each in node.generators)
    elif isinstance(node, ast.Call) and not free:
        yield from _taken(node, names)
    elif isinstance(node, ast.expr | ast.stmt) and _unpacks(node) and not free:
        yield node.value  # type: ignore[union-attr]  # all that unpack have one


def _taken(call: ast.Call, names: Names) -> Iterator[ast.expr]:
    """The arguments of a call that it takes in order; what `pop` takes any one of."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if names.dotted(call.func) in ORDER_TAKING or method in ORDER_TAKING_METHODS:
        yield from call.args
    elif isinstance(call.func, ast.Attribute) and method == "pop" and not call.args:
        yield call.func.value


def _unpacks(node: ast.AST) -> bool:
    """Whether a node takes its value apart, in order: `a, b = value`, `items += value`, `*value`, text with value."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Tuple | ast.List) and len(node.targets[0].elts) > 1
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Add)
    return isinstance(node, ast.YieldFrom | ast.FormattedValue | ast.Starred)


def _written(piece: ast.AST, names: Names) -> Iterator[Suspect]:
    """Changes of what is not the handler's: globals, and what hangs on them."""
    for node in ast.walk(piece):
        found = None
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found = node.id if node.id in names.written else None
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            found = names.outer(node)
        elif isinstance(node, ast.Call):
            found = _changed(node, names)
        if found is not None:
            yield Suspect(getattr(node, "lineno", 0), f"{found} {SHARED}")


def _changed(call: ast.Call, names: Names) -> str | None:
    """The file's own list, dict, set, iterator or random generator that a call changes."""
    if names.dotted(call.func) == "builtins.next" and call.args and isinstance(call.args[0], ast.Name):
        return names.outer(call.args[0])
    if not isinstance(call.func, ast.Attribute) or (found := names.outer(call.func.value)) is None:
        return None
    value = names.values.get(found)
    if isinstance(value, ast.Call) and names.dotted(value.func) == "random.Random":
        return found  # each draw changes it
    mutable = found in names.shared or (value is not None and names.is_container(value))
    return found if mutable and call.func.attr in MUTATORS else None
