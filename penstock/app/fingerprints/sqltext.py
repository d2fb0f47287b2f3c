"""Normalises SQL text by removing layout and comments."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
    (?P<comment> --[^\r\n]* | /\*(?!\+).*?\*/ )
  | (?P<space> \s+ )
  | (?P<raw> [rR](?:'[^']*'|"[^"]*") )
  | (?P<text> '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`]|``)*` )
  | (?P<word> \w+ )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_QUOTES = ("'", '"')


def normal_sql(text: str) -> str:
    """Return the tokens of a SQL query, one per line. Queries that differ only in layout and comments have the same
    result. Queries with different meanings never do, because only the text between tokens is removed.

    A literal with a doubled quote, as in `'it''s'`, is two tokens. Separate literals, as in `'it' 's'`, stay on one
    line, because Spark joins them without a quote between them.
    """
    tokens: list[str] = []
    before, gap = "", False
    for match in _TOKEN.finditer(text):
        if match.lastgroup in ("comment", "space"):
            gap = True
            continue
        token = match.group()
        if gap and match.lastgroup == "text" and before[:1] == token[0] in _QUOTES:
            tokens[-1] += f" {token}"
        else:
            tokens.append(token)
        before, gap = token, False
    while tokens and tokens[-1] == ";":
        tokens.pop()
    return "\n".join(tokens)
