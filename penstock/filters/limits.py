"""How large a filter may be, and what it may make of a row. Each is checked where it is named."""

from __future__ import annotations

LENGTH_MAX = 2_048
"""Characters of a `where` or a `select`."""
NODES_MAX = 200
"""Names, values, operators and functions in one text."""
CALLS_MAX = 32
"""Functions and patterns in one text. Most take about a nanosecond for each byte of a text."""
PATTERNS_MAX = 8
"""Patterns of LIKE that are more than a comparison with the beginning, the end or any part of a text. Together they
take some 50 ms for a megabyte in the worst case."""
DEPTH_MAX = 16
"""Parentheses, brackets and signs within each other. The parser takes some twenty frames of the stack for each."""
LEVELS_MAX = 100
"""Operations that wait for each other's results. A chain such as `a OR b OR c` is as deep as it is long."""
NAMES_MAX = 64
"""Columns of a `select`."""
NAME_LENGTH_MAX = 128
"""Characters of a column's new name."""
IN_MAX = 100
"""Values in one IN."""
LIKE_LENGTH_MAX = 256
"""Characters of a pattern of LIKE."""
LIKE_WILDCARDS_MAX = 16
"""`%` and `_` in a pattern of LIKE."""
LIKE_FLOATING_MAX = 8
"""`_` that stand behind a `%`. Each doubles what must be remembered of a text in the worst case: with 8 of them a
megabyte takes some 10 ms, with 16 half a second."""
TEXT_BYTES_MAX = 4_096
"""Bytes of a text that `||`, `concat` or `replace` makes; one that would be longer is NULL."""
ROW_BYTES_MAX = 16_384
"""Bytes of text that the functions of one `select` make of a row in all; if it is more, they are NULL in that row."""
SLICE_ROWS = 4_096
"""Rows that are looked at in one go, so that no step makes more than this many of the texts above."""
CACHE_FILTERS = 1_024
"""Filters that are remembered. One that is forgotten goes on working for those who have it."""
