"""Fingerprints of Python functions: what they do, not how they are written down.

A function is followed through everything that it refers to and that an edit of the app could change: its instructions,
constants, defaults and closure values, and the functions, classes, modules and values of local files that it reaches
through globals and imports. Local files are those outside the standard library, the installed packages and Penstock
itself; of those, the name is enough. Line numbers, names of functions and local variables, docstrings and annotations
do not count.

Two digests are made. `code` is of the instructions, and exact for one version of Python. `source` is of the syntax
tree, for comparison when the version of Python has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.fingerprints.code import code_tokens, source_tokens
from penstock.fingerprints.values import Walk


@dataclass(frozen=True)
class Fingerprint:
    """Digests of one function. `source` is None if there is no text of something that it uses. `opaque` names what it
    uses and cannot be compared, such as an open file: only the type of it counts. `earlier` is `source` as fingerprints
    of the first form had it, which saw less."""

    code: str
    source: str | None
    opaque: tuple[str, ...] = ()
    earlier: str | None = None


def fingerprint(function: Callable[..., Any]) -> Fingerprint:
    """Fingerprint of one function."""
    return fingerprint_of(function)


def fingerprint_of(*values: Any) -> Fingerprint:
    """Fingerprint of functions and other values together, in their order."""
    by_code, by_source = Walk(code_tokens), Walk(source_tokens, by_name=True)
    for each in values:
        by_code.value(each, "")
        by_source.value(each, "")
    source = _hex(by_source)
    earlier = _earlier(values) if by_source.added else source
    return Fingerprint(by_code.tokens.hex(), source, tuple(dict.fromkeys(by_code.opaque)), earlier)


def _earlier(values: tuple[Any, ...]) -> str | None:
    walk = Walk(source_tokens, by_name=True, form=1)
    for each in values:
        walk.value(each, "")
    return _hex(walk)


def _hex(by_source: Walk) -> str | None:
    return None if by_source.lacking else by_source.tokens.hex()
