"""Filters: the SQL expressions `where` and `select`, compiled to Arrow. `docs/filters.md` describes the language.

    slow = compiled(schema, "speed < 5 AND NOT parked", "vehicle, speed * 3.6 AS kmh")
    slow.project(batch.filter(slow.mask(batch)))

No SQL is ever executed. `tokens` passes on only a few kinds of tokens: every word except twelve keywords becomes a
plain name, so the parser (sqlglot) never sees SELECT or CASE. `syntax` converts the parser's tree, which can contain
only listed node types, to a tree with five kinds of nodes; no other module uses the parser's tree. `compiler`
determines the type of each node from the schema (`kinds`, `alike`) and converts the node to calls to Arrow functions.
No data can make these calls fail: a value that cannot be computed is NULL. `filter` shares one compiled filter between
all users of the same expressions, and evaluates batches in slices of bounded size. `limits` defines the limits.
"""

from penstock.core.filters.filter import Filter, compiled, reads_only, said

__all__ = ["Filter", "compiled", "reads_only", "said"]
