"""Walk Spark's plans and expressions from Python: Java objects and Scala sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def items_of(sequence: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def walk(node: Any) -> Iterator[Any]:
    """Yield a plan or expression and everything below it."""
    yield node
    for child in items_of(node.children()):
        yield from walk(child)
