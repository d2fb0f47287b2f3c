"""Pages of a stream while it changes, and while many are requested."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.core.cursor import stream_cursor
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.serve.channels import stream as stream_module
from penstock.serve.channels.stream import StreamChannel
from tests.clocks import move_loop, until
from tests.serve.fakes import QUICK, FakeLog, Reading, run


def channel(log: FakeLog, settings: Settings = QUICK) -> StreamChannel:
    return StreamChannel("x", log, settings, lambda: event_schema(Reading))


def events(page: Any) -> list[int]:
    return [event["n"] for event in json.loads(page.body)["events"]]


def _patiently(wait: Callable[..., bool]) -> None:
    assert wait(timeout=60)


def test_the_latest_events_are_found_behind_ticks() -> None:
    """Ticks come when no events do, and are not events."""
    log = FakeLog()
    log.write(0, 1, at_s=1)
    log.write(0, 2, at_s=5)
    log.write(1, 3, 4, 5, at_s=2)
    for at_s in range(6, 40):
        log.tick(0, at_s=at_s)

    async def main() -> None:
        assert events(await channel(log).last(1)) == [2]
        assert events(await channel(log).last(3)) == [4, 5, 2]
        assert events(await channel(log).last(100)) == [1, 3, 4, 5, 2]

    run(main())


@pytest.mark.parametrize("where", [None, "n < 5"])
@pytest.mark.parametrize("limit", [1, 100])
def test_a_page_that_begins_with_ticks_has_the_events_behind_them(where: str | None, limit: int) -> None:
    """A page may begin so where the events before the ticks are no longer kept."""
    log = FakeLog(1)
    for at_s in range(500):
        log.tick(0, at_s=at_s)
    log.write(0, 1, 2, at_s=500)

    async def main() -> None:
        page = await channel(log).through(where, None).page("earliest", limit)
        assert events(page) == [1, 2][:limit]
        rest = await channel(log).through(where, None).page(page.cursor, limit)
        assert events(rest) == [1, 2][limit:]

    run(main())


def test_a_search_behind_ticks_ends_and_can_be_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "SCAN_RUNS_MAX", 2)
    log = FakeLog(1)
    for at_s in range(50):
        log.tick(0, at_s=at_s)
    log.write(0, 1, at_s=50)

    async def main() -> None:
        source = channel(log, Settings(page_events=10))
        page, asked = await source.page("earliest", 1), 1
        while not events(page):
            assert json.loads(page.body)["more"]
            page, asked = await source.page(page.cursor, 1), asked + 1
        assert events(page) == [1]
        assert asked > 1

    run(main())


def test_a_search_for_the_latest_events_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "SCAN_EVENTS_MAX", 10)
    log = FakeLog(1)
    log.write(0, 1)
    for at_s in range(500):
        log.tick(0, at_s=at_s)

    async def main() -> None:
        assert events(await channel(log).last(1)) == []

    run(main())


@pytest.mark.parametrize("last", [False, True])
def test_a_page_under_way_while_the_stream_is_made_anew_mixes_nothing(last: bool) -> None:
    """Events of the new generation must not come under a cursor of the old one."""
    log = FakeLog(1)
    log.write(0, 1, 2)
    begin = stream_cursor(1, {0: log.offsets("s", 0)[0]})
    is_remade = False

    def remake() -> None:
        nonlocal is_remade
        if not is_remade:
            is_remade = True
            log.remake()
            log.write(0, *range(100, 110))

    log.after_read = remake

    async def main() -> None:
        source = channel(log)
        page = await (source.last(5) if last else source.page(begin, 5))
        body = json.loads(page.body)
        end, offsets = log.ends("s")[0], log.offsets("s", 0)
        after = {end} if last else range(offsets[4] + 1, offsets[5] + 1)
        assert body["cursor"] in [stream_cursor(2, {0: offset}) for offset in after]
        assert events(page) == [*range(105, 110)] if last else [*range(100, 105)]
        assert last or body["reset"]

    run(main())


@pytest.mark.usefixtures("dense")
def test_what_a_page_has_found_is_given_though_the_rest_goes() -> None:
    """Otherwise a page that reads much would find nothing, however often it is requested. A gap would
    take reads, which this counts."""
    log = FakeLog(1)
    log.write(0, *range(10))
    count = 0

    def trim() -> None:
        nonlocal count
        count += 1
        if count >= 2:
            log.trim(0, 9)

    log.after_read = trim

    async def main() -> None:
        seen = channel(log, Settings(page_events=1)).through("n >= 3", None)
        page = await seen.page(stream_cursor(1, {0: 0}), 2)
        assert events(page) == [3]
        assert json.loads(page.body)["more"]
        assert json.loads((await seen.page(page.cursor, 5)).body)["reset"]

    run(main())


def test_a_page_that_waits_answers_in_time_though_it_has_not_looked_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that there is more, and the next one continues."""
    monkeypatch.setattr(stream_module, "SCAN_EVENTS_MAX", 1)
    log = FakeLog(1)
    log.write(0, *range(200))
    log.trim(0, log.offsets("s", 0)[0])  # a gap before the first row would take reads, which this counts
    reads = threading.Semaphore(0)
    log.after_read = partial(_patiently, reads.acquire)

    async def main() -> None:
        seen = channel(log, Settings(page_events=1)).through("n > 1000", None)
        asking = asyncio.create_task(seen.page("earliest", 1, wait_s=10))
        await until(lambda: log.reads >= 1)
        move_loop(11)  # the time of the page is over, while the read goes on
        reads.release()
        page = json.loads((await asking).body)
        assert page["events"] == []
        assert page["more"]
        assert log.reads == 1

    run(main())


def test_pages_that_take_long_do_not_hold_up_those_who_follow() -> None:
    slow, quick, go = FakeLog(1), FakeLog(1), threading.Event()
    slow.write(0, 1)
    slow.after_read = partial(_patiently, go.wait)

    async def main() -> None:
        pages = [asyncio.create_task(channel(slow).page("earliest", 10)) for _ in range(40)]
        await until(lambda: slow.reads > 0)
        source = channel(quick)
        deliveries = source.follow("latest")
        assert (await anext(deliveries)).kind == "progress"
        quick.write(0, 7)
        source.wake()
        while (await anext(deliveries)).kind != "change":
            pass
        assert not any(page.done() for page in pages)
        go.set()
        await asyncio.gather(*pages)
        await deliveries.aclose()  # type: ignore[attr-defined]

    run(main())
