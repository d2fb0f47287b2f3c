"""Limits on the size of a filter, and on the size of the strings that it can produce for a row."""

from __future__ import annotations

LENGTH_MAX = 2_048
"""Maximum number of characters in a `where` or `select`."""
NODES_MAX = 200
"""Maximum number of names, values, operators and functions in one expression."""
CALLS_MAX = 32
"""Maximum number of functions and patterns in one expression. Most take about a nanosecond per byte of text."""
PATTERNS_MAX = 8
"""Maximum number of LIKE patterns in one expression that need more than a prefix, suffix or substring test. Together
they take about 50 ms per megabyte in the worst case."""
DEPTH_MAX = 16
"""Maximum nesting of parentheses, brackets and signs. The parser needs about twenty stack frames for each level."""
LEVELS_MAX = 100
"""Maximum nesting of operations. A chain such as `a OR b OR c` is as deep as it is long."""
NAMES_MAX = 64
"""Maximum number of columns in a `select`."""
NAME_LENGTH_MAX = 128
"""Maximum number of characters in a column's new name."""
IN_MAX = 100
"""Maximum number of values in an IN list."""
LIKE_LENGTH_MAX = 256
"""Maximum number of characters in a LIKE pattern."""
LIKE_WILDCARDS_MAX = 16
"""Maximum number of `%` and `_` in a LIKE pattern."""
LIKE_FLOATING_MAX = 8
"""Maximum number of `_` after a `%`. In the worst case, each one doubles the matcher's memory: with 8 of them, a
megabyte takes about 10 ms; with 16, half a second."""
TEXT_BYTES_MAX = 4_096
"""Maximum number of bytes in a string produced by `||`, `concat` or `replace`. A longer result is NULL."""
ROW_BYTES_MAX = 16_384
"""Maximum total size in bytes of the strings that the functions in one `select` produce for a row. In a row that
exceeds this limit, these strings are NULL."""
SLICE_ROWS = 4_096
"""Maximum number of rows evaluated at a time, so that no step produces more than this many strings."""
SLICE_BYTES = 24 * 1024 * 1024
"""About the maximum size in bytes of the strings that an expression holds for the rows evaluated at a time. An
expression that can make a row larger is evaluated for fewer rows at a time."""
CACHE_FILTERS = 1_024
"""Maximum number of cached filters. A filter that is evicted while in use continues to work."""
