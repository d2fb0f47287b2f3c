"""The syntax tree of filters, with five kinds of nodes. This is the only module that uses the parser's tree. It has a
list of allowed nodes, and rejects all other nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, NamedTuple, NoReturn

from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError
from sqlglot.parser import Parser

from penstock.core.filters.limits import LEVELS_MAX, NAME_LENGTH_MAX, NAMES_MAX, NODES_MAX
from penstock.core.filters.tokens import FilterTokens


@dataclass(frozen=True, slots=True)
class Name:
    """A column in a filter."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class FieldAccess:
    """A field of a struct in a filter: `place.lat`."""

    of: Node
    name: str
    position: int
    name_position: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal in a filter: a string, a number, TRUE, FALSE or NULL."""

    value: str | Decimal | bool | None
    position: int


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function call or an operator in a filter: `lower`, `and`, `=`, `[]`."""

    name: str
    arguments: tuple[Node, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Lambda:
    """A condition on a list element, and the name that it uses for the element: `t -> t.urlkey = 'python'`."""

    name: str
    body: Node
    position: int


Node = Name | FieldAccess | Literal | FunctionCall | Lambda


class SelectItem(NamedTuple):
    """One column of a `select`: its expression, and its new name, if any."""

    node: Node
    name: str | None
    position: int


class PlainParser(Parser):
    """A parser without built-in functions. It parses each call as a name and arguments, and the compiler looks up the
    name."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {}
    NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {}
    SUBQUERY_PREDICATES: ClassVar[dict[Any, Any]] = {}


_BINARY: Mapping[str, str] = {
    "And": "and", "Or": "or", "EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=", "Add": "+",
    "Sub": "-", "Mul": "*", "Div": "/", "Mod": "%", "DPipe": "||",
}  # fmt: skip
_PARTS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_BINARY, frozenset({"this", "expression", "safe", "typed"})),
    **dict.fromkeys(("Like", "ILike"), frozenset({"this", "expression", "negate"})),
    **dict.fromkeys(("Is", "Dot", "Escape"), frozenset({"this", "expression", "negate"})),
    **dict.fromkeys(("Not", "Paren", "Neg", "Boolean"), frozenset({"this"})),
    **dict.fromkeys(("In", "Bracket", "Anonymous"), frozenset({"this", "expressions"})),
    "Column": frozenset({"this", "table", "db", "catalog"}),
    "Between": frozenset({"this", "low", "high"}),
    "Literal": frozenset({"this", "is_string"}),
    "Identifier": frozenset({"this", "quoted"}),
    "Null": frozenset(),
}
"""The allowed parser nodes, and the parts that each can have. A node with any other part is rejected."""
NUMBER_MAX = Decimal("1e300")
_HELP = "use columns, values, comparisons, IN, LIKE, BETWEEN, IS NULL, AND, OR, NOT, arithmetic and the known functions"


def condition(text: str) -> Node:
    tokens = FilterTokens("where", text)
    return _Texts(tokens).read(tokens.all)


def columns(text: str) -> list[SelectItem]:
    tokens = FilterTokens("select", text)
    reader, items = _Texts(tokens), list(tokens.items())
    if len(items) > NAMES_MAX:
        tokens.refuse(items[NAMES_MAX][0].start, f"there are more than {NAMES_MAX} columns")
    return [_select_item(reader, item) for item in items]


def _select_item(reader: _Texts, item: list[Token]) -> SelectItem:
    last = item[-1]
    is_name = last.token_type in (TokenType.VAR, TokenType.IDENTIFIER)
    if len(item) > 2 and is_name and item[-2].token_type == TokenType.VAR and item[-2].text.upper() == "AS":
        if not 0 < len(last.text) <= NAME_LENGTH_MAX:
            reader.tokens.refuse(last.start, f"a name must be 1 to {NAME_LENGTH_MAX} characters long")
        return SelectItem(reader.read(item[:-2]), last.text, last.start)
    return SelectItem(reader.read(item), None, item[0].start)


class SyntaxReader:
    """Converts a parser's tree to nodes, and counts them. `refuse` raises an error for a position in the expression."""

    PARTS: ClassVar[Mapping[str, frozenset[str]]] = _PARTS

    def __init__(self, refuse: Callable[[int, str], NoReturn], position: int = 0) -> None:
        self._refuse = refuse
        self._count = self._level = 0
        self._position = position

    def node(self, tree: Any) -> Node:
        self._require_allowed(tree)
        self._position = tree.meta.get("start", self._position)
        self._count += 1
        if self._count > NODES_MAX:
            self._refuse(self._position, f"it contains more than {NODES_MAX} names, values and operations")
        self._level += 1
        if self._level > LEVELS_MAX:
            self._refuse(self._position, f"its operations are nested more than {LEVELS_MAX} levels deep")
        node: Node = getattr(self, f"_{type(tree).__name__.lower()}", self._binary)(tree)
        self._level -= 1
        return node

    def _require_allowed(self, tree: Any) -> None:
        """Reject nodes that are not allowed. Not every parser node has a position, so the error uses the first position
        among the node's parts."""
        name = type(tree).__name__
        if tree is not None and name in self.PARTS:
            surplus = {part for part, value in tree.args.items() if value} - self.PARTS[name]
            if not surplus:
                return
        places = [] if tree is None else [part.meta["start"] for part in tree.walk() if "start" in part.meta]
        self._refuse(min(places, default=self._position), f"this is not allowed here; {_HELP}")

    def _binary(self, tree: Any) -> Node:
        return self._call(_BINARY[type(tree).__name__], tree.this, tree.expression)

    def _call(self, name: str, *arguments: Any) -> FunctionCall:
        nodes = tuple(map(self.node, arguments))
        return FunctionCall(name, nodes, min(node.position for node in nodes))

    def _paren(self, tree: Any) -> Node:
        self._count -= 1
        return self.node(tree.this)

    def _column(self, tree: Any) -> Node:
        for part in tree.parts:
            if type(part).__name__ != "Identifier":
                self.node(part)
        first, *others = tree.parts
        node: Node = Name(first.this, first.meta.get("start", self._position))
        for part in others:
            node = FieldAccess(node, part.this, node.position, part.meta.get("start", self._position))
        return node

    def _dot(self, tree: Any) -> Node:
        of, part = self.node(tree.this), tree.expression
        if type(part).__name__ != "Identifier":
            self._refuse(part.meta.get("start", self._position), "a dot must be followed by the name of a field")
        return FieldAccess(of, part.this, of.position, part.meta.get("start", self._position))

    def _identifier(self, tree: Any) -> Node:
        return Name(tree.this, self._position)

    def _literal(self, tree: Any) -> Node:
        return Literal(tree.this if tree.is_string else self._number(tree.this), self._position)

    def _number(self, text: str) -> Decimal:
        try:
            number = Decimal(text)
        except InvalidOperation:
            number = Decimal("Infinity")
        if not -NUMBER_MAX <= number <= NUMBER_MAX:
            self._refuse(self._position, f"{text[:40]!r} is not a number that can be compared")
        return number

    def _boolean(self, tree: Any) -> Node:
        return Literal(bool(tree.this), self._position)

    def _null(self, tree: Any) -> Node:
        return Literal(None, self._position)

    def _neg(self, tree: Any) -> Node:
        inner = self.node(tree.this)
        if isinstance(inner, Literal) and isinstance(inner.value, Decimal):
            return Literal(inner.value.copy_negate(), inner.position)  # the unary minus would round to 28 digits
        return FunctionCall("negative", (inner,), inner.position)

    def _not(self, tree: Any) -> Node:
        return self._call("not", tree.this)

    def _is(self, tree: Any) -> Node:
        if type(tree.expression).__name__ != "Null":
            self._refuse(self.node(tree.this).position, "IS can be used only with NULL; compare with = TRUE or = FALSE")
        return self._negated(tree, self._call("is null", tree.this))

    def _negated(self, tree: Any, call: FunctionCall) -> Node:
        return FunctionCall("not", (call,), call.position) if tree.args.get("negate") else call

    def _in(self, tree: Any) -> Node:
        return self._call("in", tree.this, *tree.expressions)

    def _between(self, tree: Any) -> Node:
        return self._call("between", tree.this, tree.args["low"], tree.args["high"])

    def _like(self, tree: Any, *escape: Any) -> Node:
        return self._negated(tree, self._call(type(tree).__name__.lower(), tree.this, tree.expression, *escape))

    _ilike = _like

    def _escape(self, tree: Any) -> Node:
        inner = tree.this
        if type(inner).__name__ not in ("Like", "ILike"):
            self._refuse(self._position, "ESCAPE is allowed only after LIKE")
        return self._like(inner, tree.expression)

    def _bracket(self, tree: Any) -> Node:
        if len(tree.expressions) != 1:
            self._refuse(self._position, "write a single number or string inside [ ]")
        return self._call("[]", tree.this, tree.expressions[0])

    def _anonymous(self, tree: Any) -> Node:
        position, name = self._position, tree.this
        if not isinstance(name, str):
            self._refuse(position, "a function's name cannot be quoted")
        return FunctionCall(name.lower(), tuple(self.node(expression) for expression in tree.expressions), position)


class _Texts(SyntaxReader):
    """A syntax reader for one expression."""

    PARTS: ClassVar[Mapping[str, frozenset[str]]] = {**_PARTS, "Lambda": frozenset({"this", "expressions"})}

    def __init__(self, tokens: FilterTokens) -> None:
        super().__init__(tokens.refuse)
        self.tokens = tokens

    def _lambda(self, tree: Any) -> Node:
        first, *others = tree.expressions
        position = first.meta.get("start", self._position)
        if others or type(first).__name__ != "Identifier":
            self._refuse(position, "write one name before ->")
        return Lambda(first.this, self.node(tree.this), position)

    def read(self, tokens: list[Token]) -> Node:
        self._position = tokens[0].start
        parser = PlainParser(error_message_context=len(self.tokens.text))
        try:
            (tree,) = parser.parse_into(exp.Condition, tokens, self.tokens.text)
        except ParseError as error:
            start = len(error.errors[0].get("start_context") or "") if error.errors else 0
            return self.tokens.refuse_unread(tokens, start)
        except (RecursionError, ValueError):
            return self.tokens.refuse(self._position, "it cannot be parsed")
        return self.node(tree)
