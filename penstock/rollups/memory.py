"""The state of a key: its buckets, grouped into pages, with a level for each unit.

A page contains the seconds of a minute, the minutes of an hour, and so on. Pages expire and are decoded as a whole.
When an event arrives for a key, most of the key's buckets are not read and stay packed. The set of open pages depends
only on the order of events, not on batch boundaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from penstock.core.operators import made_class
from penstock.core.schema import State
from penstock.core.shapes import DECLARED
from penstock.core.state_value import pack, unpack

OPEN_PAGES = 2
"""Number of open pages at each level. The most recently opened pages stay open: usually the current page, and the
previous page for slightly late events."""
PAGES_MAX = 2_000
"""Maximum number of pages at each level. `check` rejects a `keep` that needs more than three quarters of these pages;
the rest is reserved for events ahead of log time. An event that would need another page is reported as missed, with the
reason `full`."""

Cells = tuple[Any, ...]
Page = dict[int, Cells]


class Level(msgspec.Struct, array_like=True):
    """A rollup's buckets of one unit, by the start of their page and then by their own start. `touched` contains the
    buckets whose rows must still be emitted, with their pages. `due` is when the first page expires, in the key's
    time."""

    open: dict[int, Page] = msgspec.field(default_factory=dict)
    closed: dict[int, bytes] = msgspec.field(default_factory=dict)
    touched: dict[int, int] = msgspec.field(default_factory=dict)
    due: int | None = None


class RollupMemory(State):
    """The rollup's state for a key. `lag` is the smallest lag of an event behind log time, so the key's time is log
    time minus `lag`. `due` is when the first page expires, in the key's time. `timer` is the log time that the timer is
    set for. All values are in microseconds."""

    lag: int | None = None
    due: int | None = None
    timer: int | None = None


class Pages:
    """Packs and opens the pages of a rollup. `kinds` contains the types of its accumulators."""

    def __init__(self, kinds: Sequence[Any]) -> None:
        cells: Any = tuple[tuple(kinds)]  # type: ignore[misc]
        page: Any = dict[int, cells]
        self._encode = msgspec.msgpack.Encoder(enc_hook=pack).encode
        self._decode: Callable[[bytes], Page] = msgspec.msgpack.Decoder(page, dec_hook=unpack).decode
        self.level: Any = msgspec.defstruct(
            "Level", [("open", dict[int, page], msgspec.field(default_factory=dict))], bases=(Level,), array_like=True
        )

    def memory(self, key: Any, levels: int, mark: str) -> Any:
        """Create the state class for keys of this type. State with a different mark is not used."""
        level = self.level
        fresh = msgspec.field(default_factory=lambda: [level() for _ in range(levels)])
        hints: dict[str, Any] = {DECLARED: Literal[mark], "key": key | None, "levels": list[level]}  # type: ignore[valid-type]
        return made_class(RollupMemory, "Memory", hints, {DECLARED: mark, "key": None, "levels": fresh})

    def opened(self, level: Any, start: int) -> Page:
        """Open a page of the rollup, and return it for changes. If too many pages are open, this packs the oldest
        one."""
        page: Page | None = level.open.get(start)
        if page is None:
            packed = level.closed.pop(start, None)
            page = {} if packed is None else self._decode(packed)
            level.open[start] = page
            if len(level.open) > OPEN_PAGES:
                oldest = next(iter(level.open))
                level.closed[oldest] = self._packed(level.open.pop(oldest))
        return page

    def seen(self, level: Any, start: int) -> Page:
        """Return a rollup's page for reading only."""
        page: Page | None = level.open.get(start)
        return self._decode(level.closed[start]) if page is None else page

    def taken(self, level: Any, start: int) -> Page:
        """Remove a rollup's page and return it."""
        page: Page | None = level.open.pop(start, None)
        return self._decode(level.closed.pop(start)) if page is None else page

    def _packed(self, page: Page) -> bytes:
        """Pack a page of the rollup. The bytes do not depend on whether the page was packed before: for example, an
        integer 0 in a float column is always packed as 0.0."""
        return self._encode(self._decode(self._encode(page)))
