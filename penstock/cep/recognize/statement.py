"""Splits MATCH_RECOGNIZE text into its clauses. Clauses that sqlglot does not support, WITHIN and all forms of AFTER
MATCH SKIP, are removed from the tokens before parsing. Clauses that Penstock does not support are rejected, with their
position in the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

from sqlglot import Token, Tokenizer, TokenType
from sqlglot.errors import SqlglotError

from penstock.core.filters.kinds import Mistake
from penstock.core.filters.syntax import FieldAccess, FunctionCall, Literal, Name, Node, PlainParser, SyntaxReader
from penstock.core.filters.tokens import with_intervals

TEXT_MAX = 10_000
EXCERPT = 24
_ALLOWED = {"expressions", "from_", "match", "where", "kind"}
_ROWS = {"ONE ROW PER MATCH": False, "ALL ROWS PER MATCH": True, "ALL ROWS PER MATCH OMIT EMPTY MATCHES": True,
         "ALL ROWS PER MATCH SHOW EMPTY MATCHES": True}  # fmt: skip
_REFUSED = {
    "group": "GROUP BY", "having": "HAVING", "order": "ORDER BY", "limit": "LIMIT", "offset": "OFFSET",
    "joins": "JOIN", "distinct": "DISTINCT", "with_": "WITH", "windows": "WINDOW", "qualify": "QUALIFY",
    "laterals": "LATERAL VIEW",
}  # fmt: skip


class NamedExpression(NamedTuple):
    """An expression with its name: a measure or a selected column. With `is_final`, it is evaluated at the match's last
    row."""

    node: Node
    name: str | None
    position: int
    is_final: bool = False


class Words(NamedTuple):
    """The words of a clause that this module parses itself, and their position."""

    words: tuple[str, ...]
    position: int


@dataclass(frozen=True)
class Statement:
    """The clauses in a query. `select` is None for `*`; `pattern` begins at `pattern_at` in the text."""

    table: str
    alias: str | None
    partition: tuple[NamedExpression, ...]
    order: tuple[tuple[NamedExpression, bool], ...]
    measures: tuple[NamedExpression, ...]
    all_rows: bool
    skip: Words | None
    pattern: str
    pattern_at: int
    within: Node | None
    define: tuple[NamedExpression, ...]
    select: tuple[NamedExpression, ...] | None
    where: Node | None


def shown(text: str, mistake: Mistake) -> str:
    """Return the message for a mistake in MATCH_RECOGNIZE text, with the line, the column and an excerpt of the
    text."""
    place = min(mistake.position, len(text))
    line, column = text.count("\n", 0, place) + 1, place - (text.rfind("\n", 0, place) + 1) + 1
    there = text[place : place + EXCERPT].split("\n")[0]
    return f"{mistake.sentence} " + (f"(line {line}, column {column}: {there!r})" if there else "(at the end)")


def refuse(position: int, sentence: str) -> NoReturn:
    raise Mistake(position, sentence)


class _Words(Tokenizer):
    """Tokenizer that allows names in backticks, as everywhere in `app.sql`, or in double quotes."""

    IDENTIFIERS: ClassVar[list[Any]] = ['"', "`"]
    KEYWORDS: ClassVar[dict[str, TokenType]] = {**Tokenizer.KEYWORDS, "MATCH_RECOGNIZE": TokenType.MATCH_RECOGNIZE}


class _Reader(SyntaxReader):
    """A reader that also accepts `*`, for COUNT."""

    PARTS: ClassVar[Any] = {**SyntaxReader.PARTS, "Star": frozenset()}

    def _star(self, tree: Any) -> Node:
        """Read the `*` of COUNT(*)."""
        return Name("*", self._position)

    def _column(self, tree: Any) -> Node:
        if type(tree.this).__name__ != "Star":
            return super()._column(tree)
        first = tree.args.get("table")
        if first is None:
            return Name("*", self._position)
        place = first.meta.get("start", self._position)
        return FieldAccess(Name(first.this, place), "*", place, place)


def statement(text: str) -> Statement:
    """Split a MATCH_RECOGNIZE query into clauses. Raises `Mistake` if the query is invalid."""
    if len(text) > TEXT_MAX:
        refuse(TEXT_MAX, f"it is longer than {TEXT_MAX:,} characters")
    return _Statement(text).read()


class _Statement:
    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.tokens = list(with_intervals([_interval_as_name(token) for token in _Words().tokenize(text)]))
        except SqlglotError:
            refuse(max(text.rfind("'"), text.rfind('"'), 0), "it cannot be parsed: is there an unclosed quote?")

    def read(self) -> Statement:
        pattern, pattern_at, end = self._pattern_text()
        within = self._remove_within(end)
        skip = self._remove_after_match_skip()
        tree = self._parse_tokens()
        match = tree.args["match"]
        source = tree.args["from_"].this
        if type(source).__name__ != "Table" or source.args.get("db") is not None:
            refuse(self._at(source), "FROM takes the name of one stream")
        alias = match.args.get("alias")
        return Statement(
            source.name,
            alias.name if alias is not None else None,
            tuple(self._named_expression(expression) for expression in match.args.get("partition_by") or ()),
            tuple(
                (self._named_expression(expression.this), bool(expression.args.get("desc")))
                for expression in _order_by_items(match)
            ),
            tuple(self._measure_item(measure) for measure in match.args.get("measures") or ()),
            self._all_rows(match),
            skip,
            pattern,
            pattern_at,
            within,
            tuple(self._named_expression(definition) for definition in match.args.get("define") or ()),
            self._select_items(tree),
            None if tree.args.get("where") is None else self._expression(tree.args["where"].this),
        )

    def _pattern_text(self) -> tuple[str, int, int]:
        """Return the text inside PATTERN ( ), its position, and the number of the token after the clause."""
        for number, token in enumerate(self.tokens[:-1]):
            if _is_clause_word(token, "PATTERN") and self.tokens[number + 1].token_type == TokenType.L_PAREN:
                depth = 0
                for place in range(number + 1, len(self.tokens)):
                    kind = self.tokens[place].token_type
                    depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
                    if not depth:
                        begin = self.tokens[number + 1].end + 1
                        if place == number + 2:
                            refuse(begin, "PATTERN ( ) is empty: list the variables of the rows in order")
                        return self.text[begin : self.tokens[place].start], begin, place + 1
                refuse(token.start, "the parenthesis after PATTERN is not closed")
        return refuse(self._keyword_start(), "it has no PATTERN ( ): list the variables of the rows in order")

    def _keyword_start(self) -> int:
        return next((token.start for token in self.tokens if token.token_type == TokenType.MATCH_RECOGNIZE), 0)

    def _remove_within(self, start: int) -> Node | None:
        """Remove WITHIN and its interval from the tokens, and return the interval. The clause comes after PATTERN."""
        for token in self.tokens[start:]:
            if _is_clause_word(token, "SUBSET"):
                refuse(token.start, "SUBSET is not supported: use the variables directly in the expressions")
        if start >= len(self.tokens) or not _is_clause_word(self.tokens[start], "WITHIN"):
            return None
        taken = self.tokens[start + 1 : start + 5]
        kinds = [token.token_type for token in taken]
        if kinds != [TokenType.VAR, TokenType.L_PAREN, TokenType.STRING, TokenType.R_PAREN]:
            refuse(self.tokens[start].start, "WITHIN takes an interval, as in WITHIN INTERVAL '10' MINUTE")
        del self.tokens[start : start + 5]
        return FunctionCall("interval", (Literal(taken[2].text, taken[2].start),), taken[0].start)

    def _remove_after_match_skip(self) -> Words | None:
        """Remove AFTER MATCH SKIP ... from the tokens, and return its words. The clause comes before PATTERN."""
        texts = [token.text.upper() for token in self.tokens]
        for number in range(len(texts) - 2):
            if texts[number : number + 3] == ["AFTER", "MATCH", "SKIP"]:
                position = self.tokens[number].start
                end = self._find_word("PATTERN", number)
                if end is None:
                    refuse(position, "AFTER MATCH SKIP must come before PATTERN")
                words = tuple(token.text for token in self.tokens[number + 3 : end])
                del self.tokens[number:end]
                return Words(words, position)
        return None

    def _find_word(self, word: str, start: int) -> int | None:
        return next(
            (place for place in range(start, len(self.tokens)) if _is_clause_word(self.tokens[place], word)), None
        )

    def _parse_tokens(self) -> Any:
        try:
            trees: Any = PlainParser(error_message_context=len(self.text)).parse(list(self.tokens), self.text)
            (tree,) = trees
        except SqlglotError as error:
            known = getattr(error, "errors", None) or [{}]
            refuse(len(known[0].get("start_context") or ""), "it cannot be parsed here")
        except (RecursionError, ValueError):
            refuse(0, "it cannot be parsed")
        if type(tree).__name__ != "Select" or tree.args.get("match") is None or tree.args.get("from_") is None:
            refuse(self._keyword_start(), "MATCH_RECOGNIZE must follow a single stream in FROM: SELECT ... FROM "
                   "stream MATCH_RECOGNIZE (...)")  # fmt: skip
        for part, value in tree.args.items():
            if value and part not in _ALLOWED:
                clause = _REFUSED.get(part, part.upper())
                refuse(self._at(value), f"{clause} is not allowed with MATCH_RECOGNIZE: read its result, which is a "
                       "stream, with a separate view")  # fmt: skip
        return tree

    def _all_rows(self, match: Any) -> bool:
        rows = match.args["rows"].name if match.args.get("rows") is not None else "ONE ROW PER MATCH"
        if rows not in _ROWS:
            refuse(self._keyword_start(), f"{rows} is not supported: use ONE ROW PER MATCH or ALL ROWS PER MATCH")
        return _ROWS[rows]

    def _select_items(self, tree: Any) -> tuple[NamedExpression, ...] | None:
        items = tree.expressions
        if any(type(expression).__name__ == "Star" for expression in items):
            if len(items) > 1:
                refuse(self._at(items[0]), "* cannot be combined with other columns: list the columns instead")
            return None
        return tuple(self._named_expression(expression) for expression in items)

    def _measure_item(self, tree: Any) -> NamedExpression:
        item = self._named_expression(tree.this)
        if item.name is None:
            refuse(item.position, "a measure needs a name: write ... AS name")
        return item._replace(is_final=tree.args.get("window_frame") == "FINAL")

    def _named_expression(self, tree: Any) -> NamedExpression:
        if type(tree).__name__ in ("Alias", "PropertyEQ"):
            node = self._expression(tree.this)
            return NamedExpression(node, tree.alias, node.position)
        node = self._expression(tree)
        return NamedExpression(node, node.name if isinstance(node, Name | FieldAccess) else None, node.position)

    def _expression(self, tree: Any) -> Node:
        return _Reader(refuse, self._at(tree)).node(tree)

    def _at(self, tree: Any) -> int:
        """Return the position of a tree in the text. Some of the parser's nodes do not know their position."""
        trees = tree if isinstance(tree, list) else [tree]
        walks = [root.walk() for root in trees if hasattr(root, "walk")]
        return min((node.meta["start"] for walk in walks for node in walk if "start" in node.meta), default=0)


def _order_by_items(match: Any) -> Sequence[Any]:
    order = match.args.get("order")
    return [] if order is None else list(order.expressions)


def _is_clause_word(token: Token, word: str) -> bool:
    return token.token_type == TokenType.VAR and token.text.upper() == word


def _interval_as_name(token: Token) -> Token:
    """Return INTERVAL as a name token, so that it is parsed as a function call."""
    if token.token_type != TokenType.INTERVAL:
        return token
    return Token(TokenType.VAR, token.text, token.line, token.col, token.start, token.end)
