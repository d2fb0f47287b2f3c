"""What is kept of a key: its buckets, on pages, a level for each unit.

A page has the buckets of a minute of seconds, an hour of minutes, and so on. It is what is given up at a time when it
is old enough, and what is decoded at a time: most of a key's buckets are not looked at when an event of it comes, and
stay packed. Which pages are open depends on the order of events alone, and not on how they are cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from penstock.evolution import DECLARED
from penstock.making import made_class
from penstock.packed import pack, unpack
from penstock.schema import State

OPEN_PAGES = 2
"""Of each level, those opened last: the one of now, and the one before it, for events that are a little late."""
PAGES_MAX = 2_000
"""Of each level. `check` refuses a `keep` of more than three quarters of it; the rest is room for what is ahead of log
time. An event that would need one more is told as missed, `full`."""

Cells = tuple[Any, ...]
Page = dict[int, Cells]


class Level(msgspec.Struct, array_like=True):
    """The buckets of one unit: by the start of their page, and there by their own start. `touched` has those whose rows
    are still to be told, with their pages; `due` is when the first page goes, in the time of the key."""

    open: dict[int, Page] = msgspec.field(default_factory=dict)
    closed: dict[int, bytes] = msgspec.field(default_factory=dict)
    touched: dict[int, int] = msgspec.field(default_factory=dict)
    due: int | None = None


class Memory(State):
    """What is kept of a key. `lag` is the least that an event was behind log time, so the time of the key is log time
    less that; `due` is when the first page goes, in that time; `timer` the log time that the timer is set for. All in
    microseconds."""

    lag: int | None = None
    due: int | None = None
    timer: int | None = None


class Pages:
    """How the pages of a rollup are packed and opened; its cells are of these types."""

    def __init__(self, kinds: Sequence[Any]) -> None:
        cells: Any = tuple[tuple(kinds)]  # type: ignore[misc]
        page: Any = dict[int, cells]
        self._encode = msgspec.msgpack.Encoder(enc_hook=pack).encode
        self._decode: Callable[[bytes], Page] = msgspec.msgpack.Decoder(page, dec_hook=unpack).decode
        self.level: Any = msgspec.defstruct(
            "Level", [("open", dict[int, page], msgspec.field(default_factory=dict))], bases=(Level,), array_like=True
        )

    def memory(self, key: Any, levels: int, mark: str) -> Any:
        """The class of what is kept, for keys of this type. State with another mark is not taken for this one's."""
        level = self.level
        fresh = msgspec.field(default_factory=lambda: [level() for _ in range(levels)])
        hints: dict[str, Any] = {DECLARED: Literal[mark], "key": key | None, "levels": list[level]}  # type: ignore[valid-type]
        return made_class(Memory, "Memory", hints, {DECLARED: mark, "key": None, "levels": fresh})

    def opened(self, level: Any, start: int) -> Page:
        """A page, ready to be changed. Another one may be packed for it."""
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
        """A page, to be looked at only."""
        page: Page | None = level.open.get(start)
        return self._decode(level.closed[start]) if page is None else page

    def taken(self, level: Any, start: int) -> Page:
        """A page, which is not kept any more."""
        page: Page | None = level.open.pop(start, None)
        return self._decode(level.closed.pop(start)) if page is None else page

    def _packed(self, page: Page) -> bytes:
        """The same bytes whether the page was just made or has been at rest before: 0 of a float comes back as 0.0."""
        return self._encode(self._decode(self._encode(page)))
