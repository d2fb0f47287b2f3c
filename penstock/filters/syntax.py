"""A text as a tree of five sorts of nodes. The only file that knows the parser's tree: what may be in it is a list, all
else is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, NamedTuple, NoReturn

from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError
from sqlglot.parser import Parser

from penstock.filters.limits import LEVELS_MAX, NAME_LENGTH_MAX, NAMES_MAX, NODES_MAX
from penstock.filters.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Name:
    """A column."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Field:
    """A field of what holds fields: `place.lat`."""

    of: Node
    name: str
    position: int
    name_position: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that is written: text, a number, TRUE, FALSE or NULL."""

    value: str | Decimal | bool | None
    position: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator: `lower`, `and`, `=`, `[]`."""

    name: str
    arguments: tuple[Node, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Lambda:
    """A condition on an element of a list, and the name that the element has in it: `t -> t.urlkey = 'python'`."""

    name: str
    body: Node
    position: int


Node = Name | Field | Literal | Call | Lambda


class Item(NamedTuple):
    """One of a list of columns: what it is, and the name it is given, if any."""

    node: Node
    name: str | None
    position: int


class PlainParser(Parser):
    """Knows no function by itself, so that each is a name and arguments, and looked up in our own table."""

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
"""The nodes of the parser that are allowed, and what each may have. One that has anything more is refused."""
NUMBER_MAX = Decimal("1e300")
_HELP = "use columns, values, comparisons, IN, LIKE, BETWEEN, IS NULL, AND, OR, NOT, arithmetic and the known functions"


def condition(text: str) -> Node:
    tokens = Tokens("where", text)
    return _Texts(tokens).read(tokens.all)


def columns(text: str) -> list[Item]:
    tokens = Tokens("select", text)
    reader, items = _Texts(tokens), list(tokens.items())
    if len(items) > NAMES_MAX:
        tokens.refuse(items[NAMES_MAX][0].start, f"there are more than {NAMES_MAX} columns")
    return [_named(reader, item) for item in items]


def _named(reader: _Texts, item: list[Token]) -> Item:
    last = item[-1]
    is_name = last.token_type in (TokenType.VAR, TokenType.IDENTIFIER)
    if len(item) > 2 and is_name and item[-2].token_type == TokenType.VAR and item[-2].text.upper() == "AS":
        if not 0 < len(last.text) <= NAME_LENGTH_MAX:
            reader.tokens.refuse(last.start, f"a name has 1 to {NAME_LENGTH_MAX} characters")
        return Item(reader.read(item[:-2]), last.text, last.start)
    return Item(reader.read(item), None, item[0].start)


class Reader:
    """Makes nodes of a parser's tree, and counts them. `refuse` raises the error about a character."""

    PARTS: ClassVar[Mapping[str, frozenset[str]]] = _PARTS

    def __init__(self, refuse: Callable[[int, str], NoReturn], place: int = 0) -> None:
        self._refuse = refuse
        self._count = self._level = 0
        self._place = place

    def node(self, tree: Any) -> Node:
        self._require_allowed(tree)
        self._place = tree.meta.get("start", self._place)
        self._count += 1
        if self._count > NODES_MAX:
            self._refuse(self._place, f"there are more than {NODES_MAX} names, values and operations in it")
        self._level += 1
        if self._level > LEVELS_MAX:
            self._refuse(self._place, f"it is more than {LEVELS_MAX} operations deep")
        found: Node = getattr(self, f"_{type(tree).__name__.lower()}", self._binary)(tree)
        self._level -= 1
        return found

    def _require_allowed(self, tree: Any) -> None:
        """Not all of the parser's nodes know their place: what is refused begins with the first part that does."""
        name = type(tree).__name__
        if tree is not None and name in self.PARTS:
            surplus = {part for part, value in tree.args.items() if value} - self.PARTS[name]
            if not surplus:
                return
        places = [] if tree is None else [each.meta["start"] for each in tree.walk() if "start" in each.meta]
        self._refuse(min(places, default=self._place), f"something is not allowed here; {_HELP}")

    def _binary(self, tree: Any) -> Node:
        return self._call(_BINARY[type(tree).__name__], tree.this, tree.expression)

    def _call(self, name: str, *arguments: Any) -> Call:
        found = tuple(map(self.node, arguments))
        return Call(name, found, min(each.position for each in found))

    def _paren(self, tree: Any) -> Node:
        self._count -= 1
        return self.node(tree.this)

    def _column(self, tree: Any) -> Node:
        for each in tree.parts:
            if type(each).__name__ != "Identifier":
                self.node(each)
        first, *others = tree.parts
        node: Node = Name(first.this, first.meta.get("start", self._place))
        for each in others:
            node = Field(node, each.this, node.position, each.meta.get("start", self._place))
        return node

    def _dot(self, tree: Any) -> Node:
        of, part = self.node(tree.this), tree.expression
        if type(part).__name__ != "Identifier":
            self._refuse(part.meta.get("start", self._place), "a dot is followed by the name of a field")
        return Field(of, part.this, of.position, part.meta.get("start", self._place))

    def _identifier(self, tree: Any) -> Node:
        return Name(tree.this, self._place)

    def _literal(self, tree: Any) -> Node:
        return Literal(tree.this if tree.is_string else self._number(tree.this), self._place)

    def _number(self, text: str) -> Decimal:
        try:
            found = Decimal(text)
        except InvalidOperation:
            found = Decimal("Infinity")
        if not -NUMBER_MAX <= found <= NUMBER_MAX:
            self._refuse(self._place, f"{text[:40]!r} is no number that can be compared")
        return found

    def _boolean(self, tree: Any) -> Node:
        return Literal(bool(tree.this), self._place)

    def _null(self, tree: Any) -> Node:
        return Literal(None, self._place)

    def _neg(self, tree: Any) -> Node:
        inner = self.node(tree.this)
        if isinstance(inner, Literal) and isinstance(inner.value, Decimal):
            return Literal(inner.value.copy_negate(), inner.position)  # a minus would round to 28 digits
        return Call("negative", (inner,), inner.position)

    def _not(self, tree: Any) -> Node:
        return self._call("not", tree.this)

    def _is(self, tree: Any) -> Node:
        if type(tree.expression).__name__ != "Null":
            self._refuse(self.node(tree.this).position, "IS is for NULL; compare with = TRUE or = FALSE")
        return self._negated(tree, self._call("is null", tree.this))

    def _negated(self, tree: Any, call: Call) -> Node:
        return Call("not", (call,), call.position) if tree.args.get("negate") else call

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
            self._refuse(self._place, "ESCAPE stands after LIKE")
        return self._like(inner, tree.expression)

    def _bracket(self, tree: Any) -> Node:
        if len(tree.expressions) != 1:
            self._refuse(self._place, "one number or one text stands in brackets")
        return self._call("[]", tree.this, tree.expressions[0])

    def _anonymous(self, tree: Any) -> Node:
        place, name = self._place, tree.this
        if not isinstance(name, str):
            self._refuse(place, "a function has a plain name")
        return Call(name.lower(), tuple(self.node(each) for each in tree.expressions), place)


class _Texts(Reader):
    """Reads what stands in one text."""

    PARTS: ClassVar[Mapping[str, frozenset[str]]] = {**_PARTS, "Lambda": frozenset({"this", "expressions"})}

    def __init__(self, tokens: Tokens) -> None:
        super().__init__(tokens.refuse)
        self.tokens = tokens

    def _lambda(self, tree: Any) -> Node:
        first, *others = tree.expressions
        place = first.meta.get("start", self._place)
        if others or type(first).__name__ != "Identifier":
            self._refuse(place, "one name stands before ->")
        return Lambda(first.this, self.node(tree.this), place)

    def read(self, tokens: list[Token]) -> Node:
        self._place = tokens[0].start
        parser = PlainParser(error_message_context=len(self.tokens.text))
        try:
            (tree,) = parser.parse_into(exp.Condition, tokens, self.tokens.text)
        except ParseError as error:
            start = len(error.errors[0].get("start_context") or "") if error.errors else 0
            return self.tokens.refuse_unread(tokens, start)
        except (RecursionError, ValueError):
            return self.tokens.refuse(self._place, "it cannot be read")
        return self.node(tree)
