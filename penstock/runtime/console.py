"""Every line that the commands print for people, in one format.

A problem of the app is `FILE:LINE: KIND NAME: SENTENCE`, on standard error. Everything else is `penstock: SENTENCE`:
news on standard output, errors and what must not mix with a result on standard error. A line that begins with blanks
belongs to the one before it. A sentence begins with a small letter, unless with a name, and has no full stop at its
end.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

_located = re.compile(r"[^:\n]+:\d+: \S").match


def say(sentence: str) -> None:
    """Print news."""
    print(f"penstock: {sentence}", flush=True)


def say_aside(sentence: str) -> None:
    """Print news, or an error, that is not to be in standard output."""
    print(f"penstock: {sentence}", file=sys.stderr, flush=True)


def report(problems: Iterable[str]) -> bool:
    """Print problems, each of one line or several, as errors; returns whether there were any."""
    lines = [line for each in problems for line in each.splitlines()]
    for line in lines:
        print(formatted(line), file=sys.stderr, flush=True)
    return bool(lines)


def formatted(line: str) -> str:
    """Return a line with `penstock: ` before it, unless it has its place in a file or belongs to the one before it."""
    return line if line.startswith(" ") or _located(line) else f"penstock: {line}"
