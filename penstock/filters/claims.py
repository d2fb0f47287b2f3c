"""`claim('name')` in a condition of the operator: a value that is known of the reader stands there instead.

It is put into the tree, never into the text: whatever the value is, it is only compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from penstock.filters.kinds import Mistake
from penstock.filters.syntax import NUMBER_MAX, Call, Field, Lambda, Literal, Node

LIST_MAX = 100


def claimed(node: Node, claims: Mapping[str, Any]) -> Node:
    """The tree with values in place of claims. One that is not there, or is no plain value, is NULL, and no comparison
    with it holds. A list may stand behind IN only; one that is too long counts as none."""
    if isinstance(node, Field):
        return replace(node, of=claimed(node.of, claims))
    if isinstance(node, Lambda):
        return replace(node, body=claimed(node.body, claims))
    if not isinstance(node, Call):
        return node
    if node.name == "claim":
        return _literal(claims.get(_name(node)), node.position)
    arguments = list[Node]()
    for index, each in enumerate(node.arguments):
        found = claims.get(_name(each)) if isinstance(each, Call) and each.name == "claim" else None
        if node.name == "in" and index > 0 and isinstance(found, list):
            listed = found if 0 < len(found) <= LIST_MAX else [None]
            arguments += [_literal(item, each.position) for item in listed]
        else:
            arguments.append(claimed(each, claims))
    return replace(node, arguments=tuple(arguments))


def named(node: Node) -> frozenset[str]:
    """The claims that a tree asks for."""
    if isinstance(node, Field):
        return named(node.of)
    if isinstance(node, Lambda):
        return named(node.body)
    if not isinstance(node, Call):
        return frozenset()
    return frozenset({_name(node)}) if node.name == "claim" else frozenset().union(*map(named, node.arguments))


def _name(call: Call) -> str:
    match call.arguments:
        case (Literal(str() as name),):
            return name
    raise Mistake(call.position, "claim has one argument, the name of a claim in 'single quotes'")


def _literal(value: Any, position: int) -> Literal:
    if isinstance(value, bool) or (isinstance(value, str) and _is_text(value)):
        return Literal(value, position)
    if isinstance(value, int | float):
        number = Decimal(repr(value))
        return Literal(number if number.is_finite() and abs(number) <= NUMBER_MAX else None, position)
    return Literal(None, position)


def _is_text(value: str) -> bool:
    """Half of a surrogate pair, which JSON can say, is in no column."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
