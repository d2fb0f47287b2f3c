"""The nodes allowed in a query's tree: a list of node types, and the parts that each type can have.

The SQL for the engine is written from such a tree. Each node is written according to its type, and names are quoted.
Client text occurs in only four places: names, literals, units and function names. `TEXTS` contains the rule for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from penstock.serve.query.functions import BY_NAME, KNOWN_TO_THE_PARSER, words

PLAIN = words(
    # conditions and computations
    "And Or Not Xor EQ NEQ LT LTE GT GTE NullSafeEQ NullSafeNEQ Is In Between Like ILike SimilarTo Escape RegexpILike "
    "Add Sub Mul Div IntDiv Neg Paren Tuple DPipe BitwiseAnd BitwiseOr BitwiseNot BitwiseLeftShift BitwiseRightShift "
    "BitwiseXor Any All Exists "
    # values and names
    "Column Identifier Literal Boolean Null Star Alias Aliases TableAlias Var Interval IntervalSpan AtTimeZone Dot "
    "Bracket Slice PropertyEQ Lambda DataTypeParam ColumnDef "
    # clauses
    "From Where Group Having Qualify Order Ordered Limit Offset Distinct With CTE Cube Rollup "
    "GroupingSets Filter WithinGroup IgnoreNulls RespectNulls Values"
)
"""Types that can have any part that the parser gives them, except client text."""

_SET = frozenset({"this", "expression", "distinct", "by_name", "with_", "order", "limit", "offset"})
PARTS: Mapping[str, frozenset[str]] = {
    "Select": words(
        "with_ expressions distinct from_ joins laterals where group having qualify windows order limit offset"
    ),
    **dict.fromkeys(("Union", "Except", "Intersect"), _SET),
    "Subquery": frozenset({"this", "alias", "with_", "joins", "laterals", "order", "limit", "offset"}),
    "Table": frozenset({"this", "db", "catalog", "alias", "joins", "laterals"}),
    "Join": frozenset({"this", "on", "using", "side", "kind", "method"}),
    "Lateral": frozenset({"this", "alias"}),
    "Window": frozenset({"this", "partition_by", "order", "spec", "alias", "over", "first"}),
    "WindowSpec": frozenset({"kind", "start", "start_side", "end", "end_side", "exclude"}),
    "DataType": frozenset({"this", "expressions", "nested"}),
}
"""Types for which only some parts are allowed."""

TYPES = words(
    "BIGINT BIGDECIMAL BINARY BLOB BOOLEAN CHAR DATE DECIMAL DOUBLE FLOAT INT INT128 INTERVAL LIST ARRAY MAP NCHAR "
    "NVARCHAR SMALLINT STRUCT TEXT TIME TIMESTAMP TIMESTAMPTZ TIMESTAMPLTZ TIMESTAMPNTZ TIMESTAMP_S TIMESTAMP_MS "
    "TIMESTAMP_NS TINYINT UBIGINT UINT USMALLINT UTINYINT UUID VARBINARY VARCHAR"
)
"""The types that a value can be cast to."""


def _query_node_rule(words: str) -> Callable[[str], bool]:
    allowed = frozenset(words.split(","))
    return lambda text: text.upper() in allowed


_number = re.compile(r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII).fullmatch
_word = re.compile(r"[A-Za-z_]{1,32}", re.ASCII).fullmatch
TEXTS: Mapping[tuple[str, str], Callable[[str], object]] = {
    ("Identifier", "this"): lambda text: "\0" not in text,
    ("Literal", "this"): lambda text: "\0" not in text,
    ("Var", "this"): _word,
    ("Anonymous", "this"): lambda text: text.lower() in BY_NAME,
    ("Join", "side"): _query_node_rule("LEFT,RIGHT,FULL"),
    ("Join", "kind"): _query_node_rule("INNER,OUTER,CROSS,SEMI,ANTI"),
    ("Join", "method"): _query_node_rule("ASOF,NATURAL,POSITIONAL"),
    ("Window", "over"): _query_node_rule("OVER"),
    ("WindowSpec", "kind"): _query_node_rule("ROWS,RANGE,GROUPS"),
    ("WindowSpec", "start"): _query_node_rule("UNBOUNDED,CURRENT ROW"),
    ("WindowSpec", "end"): _query_node_rule("UNBOUNDED,CURRENT ROW"),
    ("WindowSpec", "start_side"): _query_node_rule("PRECEDING,FOLLOWING"),
    ("WindowSpec", "end_side"): _query_node_rule("PRECEDING,FOLLOWING"),
    ("WindowSpec", "exclude"): _query_node_rule("CURRENT ROW,GROUP,TIES,NO OTHERS"),
    ("Trim", "position"): _query_node_rule("LEADING,TRAILING,BOTH"),
}
"""The parts of nodes that can contain client text, and the check for each. Names and literals are quoted when
written."""

ALLOWED = PLAIN | frozenset(PARTS) | KNOWN_TO_THE_PARSER | {"Anonymous"}


def is_number(text: str) -> bool:
    return _number(text) is not None
