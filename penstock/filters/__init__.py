"""Filters: `where` and `select` in SQL text, compiled to Arrow. `docs/filters.md` is the language.

    slow = compiled(schema, "speed < 5 AND NOT parked", "vehicle, speed * 3.6 AS kmh")
    slow.project(batch.filter(slow.mask(batch)))

Nothing of a text is ever run. `tokens` lets only a small alphabet through to the parser, `syntax` makes of the parser's
tree one of our own with four sorts of nodes, `compiler` types it against the schema and turns each node into calls of
Arrow's functions. So a text of a stranger can do nothing but compute with columns.
"""

from penstock.filters.filter import Filter, compiled, said

__all__ = ["Filter", "compiled", "said"]
