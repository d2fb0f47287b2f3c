"""Rules that find code whose results may differ between runs, by reading its syntax tree.

The rules look for forbidden names, for code that depends on the order of a set, and for changes to objects outside the
handler. Uncertain cases are not reported, because nobody would use a check with false alarms.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

CLOCK = "is the wall clock, which differs in every run; use ctx.now or a time in the event"
RANDOM = "draws different values in each run; use ctx.random"
UNIQUE = "differs in every run; use UUID(int=ctx.random.getrandbits(128), version=4), or an id in the event"
OUTSIDE = "reads or writes outside the handler, with results that may differ in another run; use fields of the event"
ENVIRONMENT = "may differ in another process; use a constant in the file, or fields of the event"
ZONE = "uses the machine's time zone; use a datetime with an explicit time zone, as in tz=UTC"
HASH = "of the same string differs in every process; use the value itself, or zlib.crc32 of its bytes"
IDENTITY = "is an address, which differs in every process; use a field that identifies the value"
ORDER = "the order of a set differs in every process; use sorted(...)"
SHARED = "is outside the state: each process has a copy, which is lost when the process ends; keep it in the state"
COUNTED = f"is changed by each call, and {SHARED}"

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_BANNED: Mapping[str, tuple[str, ...]] = {
    CLOCK: (
        *(f"time.{name}{unit}" for name in _CLOCKS for unit in ("", "_ns")),
        *(f"datetime.{name}" for name in ("datetime.now", "datetime.utcnow", "datetime.today", "date.today")),
        *(f"pandas.Timestamp.{name}" for name in ("now", "utcnow", "today")),
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
"""The reason why each name is forbidden. A name that ends with a dot covers everything in that module; the longest
match wins."""
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
"""Functions that are allowed if they are called with at least this many arguments, such as a seed or a time zone."""
PATH_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes"}
"""Methods of `pathlib.Path` that few other classes have."""
FILE_METHODS = PATH_METHODS | {"open", "exists", "is_file", "is_dir", "iterdir", "glob", "stat", "mkdir", "unlink"}
ORDER_FREE = {f"builtins.{name}" for name in ("sorted", "len", "min", "max", "sum", "any", "all", "set", "frozenset")}
ORDER_TAKING = {f"builtins.{name}" for name in ("list", "tuple", "enumerate", "iter", "zip", "map", "filter")} | {
    "builtins.str", "builtins.repr", "collections.deque", "builtins.dict.fromkeys",
}  # fmt: skip
ORDER_TAKING_METHODS = {"join", "extend", "extendleft", "writelines"}
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference", "copy"}
SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)
COUNTERS = {"append", "appendleft", "extend", "extendleft", "insert", "reverse", "subtract"}
"""Methods that change a container each time they are called with the same arguments, unlike those that fill a cache."""
MUTATORS = COUNTERS | {
    "add", "update", "pop", "popleft", "popitem", "remove", "discard", "clear", "setdefault", "sort",
}  # fmt: skip
CONTAINERS = {f"builtins.{name}" for name in ("list", "dict", "set", "bytearray")} | {
    f"collections.{name}" for name in ("defaultdict", "deque", "Counter", "OrderedDict")
}


class Suspect(NamedTuple):
    line: int
    message: str


@dataclass
class Names:
    """The meaning of names in a block of a handler's code.

    From its file: `imports` by local name, `values` assigned at the top level, and `declared` functions and classes.
    From the piece itself: all names bound in it (`local`), names bound only to sets (`sets`), parameters whose default
    value is shared by all calls (`shared`), and names declared `global` (`written`).
    """

    imports: Mapping[str, str]
    values: Mapping[str, ast.expr]
    declared: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    def dotted(self, node: ast.expr) -> str | None:
        """Return the full name that an expression refers to, as in `datetime.datetime.now`, or None if it is
        unknown."""
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
        """Return the name at the start of an expression such as `NAME[key].part`, if it belongs to the file, or None
        otherwise."""
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        own = node.id not in self.local and (node.id in self.values or node.id in self.declared)
        return node.id if own or node.id in self.shared else None

    def is_container(self, node: ast.expr) -> bool:
        """Return whether an expression creates a list, dict or set."""
        if isinstance(node, ast.Call):
            return self.dotted(node.func) in CONTAINERS
        return isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)

    def is_set(self, node: ast.expr) -> bool:
        """Return whether an expression is certainly a set whose order can vary. A set literal with only numbers has the
        same order in every process, so it does not count."""
        if isinstance(node, ast.Name):
            if node.id in self.local:
                return node.id in self.sets
            value = self.values.get(node.id)
            return value is not None and not isinstance(value, ast.Name) and self.is_set(value)
        if isinstance(node, ast.Set):
            return not all(
                isinstance(element, ast.Constant) and isinstance(element.value, int | float) for element in node.elts
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, SET_OPERATORS):
            return any(self.is_set(side) or _is_dict_view(side) for side in (node.left, node.right))
        if isinstance(node, ast.Call):
            return self._makes_set(node)
        if isinstance(node, ast.IfExp):
            return self.is_set(node.body) or self.is_set(node.orelse)
        return isinstance(node, ast.SetComp)

    def _makes_set(self, call: ast.Call) -> bool:
        if isinstance(call.func, ast.Attribute) and call.func.attr in SET_METHODS:
            return self.is_set(call.func.value)
        return self.dotted(call.func) in ("builtins.set", "builtins.frozenset")


def _is_dict_view(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")


def suspects(piece: ast.AST, names: Names) -> Iterator[Suspect]:
    """Yield each place in a handler's code that uses something that may differ between two runs."""
    yield from _forbidden_uses(piece, names)
    yield from _order_suspects(piece, names, False)
    yield from _outside_writes(piece, names)


def _forbidden_uses(node: ast.AST, names: Names) -> Iterator[Suspect]:
    """Yield uses of forbidden names, whether they are called or passed as values."""
    if isinstance(node, ast.Call):
        yield from _forbidden_calls(node, names)
        name = names.dotted(node.func)
        parts = [node.func] if name not in WITHOUT else []
        for part in (*parts, *node.args, *node.keywords):
            yield from _forbidden_uses(part, names)
        return
    if isinstance(node, ast.Attribute | ast.Name):
        name = names.dotted(node)
        if name is not None:
            reason = _forbidden_reason(name)
            yield from [Suspect(node.lineno, f"{_shown_forbidden_name(name)} {reason}")] if reason is not None else []
            return
    for child in ast.iter_child_nodes(node):
        yield from _forbidden_uses(child, names)


def _forbidden_calls(call: ast.Call, names: Names) -> Iterator[Suspect]:
    name = names.dotted(call.func) or ""
    if name in WITHOUT:
        wanted, reason = WITHOUT[name]
        if len(call.args) + len(call.keywords) < wanted:
            yield Suspect(call.lineno, f"{_shown_forbidden_name(name)} {reason}")
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "astimezone" and not call.args:
        if not call.keywords:
            yield Suspect(call.lineno, f"astimezone() {ZONE}")
    elif isinstance(call.func, ast.Attribute) and call.func.attr in FILE_METHODS:
        inner = call.func.value
        is_path = isinstance(inner, ast.Call) and names.dotted(inner.func) == "pathlib.Path"
        if is_path or call.func.attr in PATH_METHODS:
            yield Suspect(call.lineno, f"{call.func.attr}() {OUTSIDE}")


def _forbidden_reason(name: str) -> str | None:
    """Return the reason why a name is forbidden, or None. The longest entry that equals the name or is a dotted
    prefix of it decides."""
    if name.startswith(PURE) or name in WITHOUT:
        return None
    fits = [entry for entry in NAMES if name == entry or name.startswith(entry if entry.endswith(".") else f"{entry}.")]
    return NAMES[max(fits, key=len)] if fits else None


def _shown_forbidden_name(name: str) -> str:
    return f"{name.removeprefix('builtins.')}()" if name != "os.environ" else name


def _order_suspects(node: ast.AST, names: Names, free: bool) -> Iterator[Suspect]:
    """Yield the places in a handler's code that depend on the order of a set. `free` means that the consumer of this
    expression ignores order."""
    if any(names.is_set(expression) for expression in _iterated_in_order(node, names, free)):
        yield Suspect(getattr(node, "lineno", 0), ORDER)
    free = isinstance(node, ast.Call) and (
        names.dotted(node.func) in ORDER_FREE or (free and _passes_on_order(node, names))
    )
    for child in ast.iter_child_nodes(node):
        yield from _order_suspects(child, names, free)


def _passes_on_order(call: ast.Call, names: Names) -> bool:
    """Return whether a call only passes the order of its argument on to its result."""
    return names.dotted(call.func) in ORDER_TAKING


def _iterated_in_order(node: ast.AST, names: Names, free: bool) -> Iterator[ast.expr]:
    """Yield the expressions that a node iterates over, if the order matters."""
    if isinstance(node, ast.For | ast.AsyncFor):
        yield node.iter
    elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp) and not free:
        yield from (generator.iter for generator in node.generators)
    elif isinstance(node, ast.Call) and not free:
        yield from _taken_in_order(node, names)
    elif isinstance(node, ast.expr | ast.stmt) and _unpacks_in_order(node) and not free:
        yield node.value  # type: ignore[union-attr]  # all nodes that unpack have a value


def _taken_in_order(call: ast.Call, names: Names) -> Iterator[ast.expr]:
    """Yield the arguments whose order a call uses. For `pop()`, yield the object it is called on: a set's `pop` removes
    an arbitrary item."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if names.dotted(call.func) in ORDER_TAKING or method in ORDER_TAKING_METHODS:
        yield from call.args
    elif isinstance(call.func, ast.Attribute) and method == "pop" and not call.args:
        yield call.func.value


def _unpacks_in_order(node: ast.AST) -> bool:
    """Return whether a node unpacks its value in order: `a, b = value`, `items += value`, `yield from value`, `*value`,
    or a value in an f-string."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Tuple | ast.List) and len(node.targets[0].elts) > 1
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Add)
    return isinstance(node, ast.YieldFrom | ast.FormattedValue | ast.Starred)


def _outside_writes(piece: ast.AST, names: Names) -> Iterator[Suspect]:
    """Yield changes to objects outside the handler: globals and their parts."""
    counted = {id(node.target) for node in ast.walk(piece) if isinstance(node, ast.AugAssign)}
    for node in ast.walk(piece):
        name, reason = None, COUNTED if id(node) in counted else SHARED
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            name = node.id if node.id in names.written else None
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            name = names.outer(node)
        elif isinstance(node, ast.Call):
            name, reason = _mutated_by_call(node, names)
        if name is not None:
            yield Suspect(getattr(node, "lineno", 0), f"{name} {reason}")


def _mutated_by_call(call: ast.Call, names: Names) -> tuple[str | None, str]:
    """Return the file's own list, dict, set, iterator or random generator that a call changes, and the reason to report
    it."""
    if names.dotted(call.func) == "builtins.next" and call.args and isinstance(call.args[0], ast.Name):
        return names.outer(call.args[0]), COUNTED
    if not isinstance(call.func, ast.Attribute) or (name := names.outer(call.func.value)) is None:
        return None, SHARED
    value = names.values.get(name)
    if isinstance(value, ast.Call) and names.dotted(value.func) == "random.Random":
        return name, COUNTED  # each draw changes it
    mutable = name in names.shared or (value is not None and names.is_container(value))
    reason = COUNTED if call.func.attr in COUNTERS else SHARED
    return name if mutable and call.func.attr in MUTATORS else None, reason
