"""Prints all messages for people, from all commands, in one format.

A problem in the app is printed as `FILE:LINE: KIND NAME: SENTENCE` on standard error. Everything else is printed as
`penstock: SENTENCE`: progress on standard output, and errors and messages that must not mix with a result on standard
error. A line that begins with spaces belongs to the previous line. A sentence begins with a lower-case letter, unless
it begins with a name, and does not end with a full stop.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

_located = re.compile(r"[^:\n]+:\d+: \S").match


def say(sentence: str) -> None:
    """Print a command's message."""
    print(f"penstock: {sentence}", flush=True)


def say_aside(sentence: str) -> None:
    """Print a message or an error on standard error, so that it does not mix with a result on standard output."""
    print(f"penstock: {sentence}", file=sys.stderr, flush=True)


def report(problems: Iterable[str]) -> bool:
    """Print problems as errors; each has one or more lines. Returns whether there were any."""
    lines = [line for problem in problems for line in problem.splitlines()]
    for line in lines:
        print(formatted(line), file=sys.stderr, flush=True)
    return bool(lines)


def formatted(line: str) -> str:
    """Prefix a line with `penstock: `, unless it begins with a file and line or belongs to the previous line."""
    return line if line.startswith(" ") or _located(line) else f"penstock: {line}"
