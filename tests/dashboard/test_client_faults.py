"""A page in a real browser under faults: it ends with exactly the right events and rows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.dashboard.faulty import faulty

pytestmark = pytest.mark.browser
TRANSPORTS = {
    "websocket": ["websocket"],
    "sse": ["sse"],
    "poll": ["poll"],
    "any": ["websocket", "sse", "poll"],
}
ALONE = ("websocket", "sse", "poll")
ROUNDS = ["kill", "kill", "load", "load", "catch up", "catch up", "catch up", "nothing"]


@pytest.mark.parametrize(
    "transport", [*(pytest.param(transport, marks=pytest.mark.soak) for transport in ALONE), "any"]
)
def test_a_page_ends_with_exactly_what_happened_whatever_breaks(transport: str, page: Page, tmp_path: Path) -> None:
    """Connections are cut at any byte, the gateway is killed with -9, the page is reloaded: nothing is missed,
    nothing comes twice, and a reloaded page shows its stored data before it has a connection."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    options = {"transports": TRANSPORTS[transport], "backoff": {"base_ms": 20, "cap_ms": 500}}
    with faulty(tmp_path, random.Random(seed), PENSTOCK_PAGE_EVENTS="3") as world:  # the view has more rows than that
        world.append(5)
        world.change(draw, 3)
        world.open(page, **options)
        world.settled(page)
        world.proxy.calm = False
        for what in draw.sample(ROUNDS, len(ROUNDS)):
            world.append(draw.randrange(1, 40))
            world.change(draw, draw.randrange(1, 20))
            if what == "kill":
                world.restart()
            if what == "load":
                world.open(page, **options)
            if what == "catch up":
                assert world.settled(page)["notes"] == world.notes
        while not world.proxy.cuts:  # go on until something has broken
            world.append(20)
            world.settled(page)
        assert world.settled(page)["errors"] == []
        world.proxy.calm = True
        page.evaluate("penstock.close()")  # stores its data
        world.open(page, **options)
        seen = world.settled(page)
        assert seen["notes"] == seen["kept"] == world.notes
        assert seen["rows"] == [[name, world.rows[name]] for name in sorted(world.rows)]
        assert (seen["resets"], seen["errors"]) == (0, [])
        assert set(seen["transports"]) <= set(TRANSPORTS[transport])
