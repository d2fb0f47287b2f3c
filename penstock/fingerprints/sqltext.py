"""SQL text without layout and comments."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
    (?P<comment> --[^\n]* | /\*(?!\+).*?\*/ )
  | (?P<space> \s+ )
  | (?P<raw> [rR](?:'[^']*'|"[^"]*") )
  | (?P<text> '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`]|``)*` )
  | (?P<word> \w+ )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def normal_sql(text: str) -> str:
    """The tokens of a SQL text, a line each. Texts that differ only in layout and comments are equal; two that mean
    something else never are, since all that is left out is between tokens."""
    tokens = [each.group() for each in _TOKEN.finditer(text) if each.lastgroup not in ("comment", "space")]
    while tokens and tokens[-1] == ";":
        tokens.pop()
    return "\n".join(tokens)
