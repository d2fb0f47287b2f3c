"""The textual form of patterns: SQL's MATCH_RECOGNIZE, for `app.sql`. `docs/patterns.md` is the language.

Nothing of a text is ever run: `statement` takes it apart with a real parser, `shape` makes a pattern of what stands in
PATTERN, `values` and `navigation` make closures of expressions, and `reading` puts a handler's parts together.
"""

from penstock.cep.recognize.reading import Recognized, recognized

__all__ = ["Recognized", "recognized"]
