"""Patterns in SQL with MATCH_RECOGNIZE, for `app.sql`. `docs/patterns.md` describes the language.

The text is never executed. `statement` removes WITHIN and the skip clauses, which sqlglot does not support, from the
tokens, and parses the rest with sqlglot. `pattern_clause` turns PATTERN into a pattern. Expressions are turned into the
same syntax trees as filters, typed by the filter compiler, and run as closures over rows (`values`, `navigation`). So a
condition has the same meaning in a pattern and in a filter. An expression without a closure is computed by the filter
itself. `output` creates the class of the emitted events, and `compiling` assembles the parts of a handler.

In SQL, there is one match for each first row: the preferred match. Therefore `penstock.cep.preferred_plan` compiles the
pattern with waits in order of preference, and the engine keeps partial matches in that order. A complete match ends the
partial matches after it, and waits for the partial matches before it. If no condition looks at the match so far, only
the best of the partial matches with the same wait is kept.
"""

from penstock.cep.recognize.compiling import Recognized, recognized

__all__ = ["Recognized", "recognized"]
