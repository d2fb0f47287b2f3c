"""Fingerprints of Python functions, which depend on behaviour and not on formatting.

A fingerprint covers everything that a function refers to and that an edit to the app could change. This includes its
instructions, constants, defaults and closure values. It also includes the functions, classes, modules and values in
local files that the function reaches through globals and imports. Local files are files outside the standard library,
the installed packages and Penstock itself; anything from other files is covered only by name. Line numbers and names of
local variables are ignored, and so are names of functions, docstrings and annotations, unless the code reads them
(`observing.py`).

There are two digests. `code` covers the instructions, and is exact for one version of Python. `source` covers the
syntax tree, and is compared when the version of Python has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.app.fingerprints.code import code_tokens, source_tokens
from penstock.app.fingerprints.values import FORM, Code, Walk

EARLIER = range(1, FORM)
"""The earlier forms of fingerprints that data directories may still contain."""


@dataclass(frozen=True)
class Fingerprint:
    """Digests of one function. `source` is None if the source of something that it uses is not available. `opaque`
    names the values that can be compared only by type, such as an open file. `earlier` contains `source` as computed
    for earlier forms of fingerprints, which covered less. `observes` contains what the functions read of functions and
    classes, such as `__name__`."""

    code: str
    source: str | None
    opaque: tuple[str, ...] = ()
    earlier: Mapping[int, str | None] = field(default_factory=dict)
    observes: frozenset[str] = frozenset()


def fingerprint(function: Callable[..., Any]) -> Fingerprint:
    """Return the fingerprint of one function."""
    return fingerprint_of(function)


def fingerprint_of(*values: Any) -> Fingerprint:
    """Return the fingerprint of functions and other values together, in order."""
    by_code, by_source = _walk(values, code_tokens), _walk(values, source_tokens, by_name=True)
    source = _source_digest(by_source)
    earlier = {
        form: _earlier_source_digest(values, form) if max(by_source.added, default=0) > form else source
        for form in EARLIER
    }
    opaque = tuple(dict.fromkeys(by_code.opaque))
    return Fingerprint(by_code.tokens.hex(), source, opaque, earlier, frozenset(by_code.observes))


def _walk(values: tuple[Any, ...], code: Code, *, by_name: bool = False) -> Walk:
    """Visit values. If their code reads names or other texts of functions and classes, they are visited again, to add
    these texts."""
    walk = Walk(code, by_name=by_name)
    _visit(walk, values)
    if not walk.observes:
        return walk
    observing = Walk(code, by_name=by_name, observed=frozenset(walk.observes))
    _visit(observing, values)
    return observing


def _visit(walk: Walk, values: tuple[Any, ...]) -> None:
    for value in values:
        walk.value(value, "")


def _earlier_source_digest(values: tuple[Any, ...], form: int) -> str | None:
    """Return the digest of the source in an earlier form of fingerprints."""
    walk = Walk(source_tokens, by_name=True, form=form)
    _visit(walk, values)
    return _source_digest(walk)


def _source_digest(by_source: Walk) -> str | None:
    return None if by_source.lacking else by_source.tokens.hex()
