"""Replacement of `claim('name')` in an operator's condition with the value of the reader's claim.

The value is inserted into the syntax tree, never into the text, so it cannot be parsed as SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from penstock.core.filters.kinds import Mistake
from penstock.core.filters.syntax import NUMBER_MAX, FieldAccess, FunctionCall, Lambda, Literal, Node

LIST_MAX = 100


def claimed(node: Node, claims: Mapping[str, Any]) -> Node:
    """Return a condition's tree with each claim replaced by its value. A claim that is missing or not a plain value
    becomes NULL, so no comparison with it is true. A list is used only after IN; a list that is empty or too long is
    treated as NULL."""
    if isinstance(node, FieldAccess):
        return replace(node, of=claimed(node.of, claims))
    if isinstance(node, Lambda):
        return replace(node, body=claimed(node.body, claims))
    if not isinstance(node, FunctionCall):
        return node
    if node.name == "claim":
        return _claim_literal(claims.get(_claim_name(node)), node.position)
    arguments = list[Node]()
    for index, argument in enumerate(node.arguments):
        claim = (
            claims.get(_claim_name(argument))
            if isinstance(argument, FunctionCall) and argument.name == "claim"
            else None
        )
        if node.name == "in" and index > 0 and isinstance(claim, list):
            listed = claim if 0 < len(claim) <= LIST_MAX else [None]
            arguments += [_claim_literal(item, argument.position) for item in listed]
        else:
            arguments.append(claimed(argument, claims))
    return replace(node, arguments=tuple(arguments))


def named(node: Node) -> frozenset[str]:
    """Return the names of the claims in a condition's tree."""
    if isinstance(node, FieldAccess):
        return named(node.of)
    if isinstance(node, Lambda):
        return named(node.body)
    if not isinstance(node, FunctionCall):
        return frozenset()
    return frozenset({_claim_name(node)}) if node.name == "claim" else frozenset().union(*map(named, node.arguments))


def _claim_name(call: FunctionCall) -> str:
    match call.arguments:
        case (Literal(str() as name),):
            return name
    raise Mistake(call.position, "claim takes one argument, the name of a claim in 'single quotes'")


def _claim_literal(value: Any, position: int) -> Literal:
    if isinstance(value, bool) or (isinstance(value, str) and _is_storable_text(value)):
        return Literal(value, position)
    if isinstance(value, int | float):
        number = Decimal(repr(value))
        return Literal(number if number.is_finite() and abs(number) <= NUMBER_MAX else None, position)
    return Literal(None, position)


def _is_storable_text(value: str) -> bool:
    """Return whether a string can be stored in a column. A string with a lone surrogate, which JSON allows, cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
