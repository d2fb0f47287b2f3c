"""Waiting until a view or handler has processed an event."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.app.declared import Handler
from penstock.core import files
from penstock.core.access import ANYONE, Caller
from penstock.core.access.caller import Sight
from penstock.core.access.grants import grants
from penstock.core.columns import to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.cursor import Ack, AckSigner, Span
from penstock.core.errors import Forbidden, NotFound, Overloaded
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from penstock.runtime import acks
from penstock.runtime.acks import Acks
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.progress import LogPositions, ProgressTracker
from penstock.store import Done, History
from penstock.store import history as store
from tests.clocks import until
from tests.collect.support import in_loop
from tests.contracts.log import offsets
from tests.e2e import decide
from tests.store.support import Ledger

SIGNER = AckSigner(b"the key of this test")


def signed(stream: str, generation: int, spans: tuple[Span, ...]) -> str:
    return SIGNER.sign(Ack(stream, generation, spans))


def event(partition: int, offset: int) -> LogPositions:
    return LogPositions("s", [Span(partition, offset, 1)])


@in_loop
async def test_all_who_wait_are_told_whoever_looks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader that looks first may be one that does not wait at all. Here nobody is woken by the commit."""
    ledger = Ledger(tmp_path / "ledger.db")
    progress = ProgressTracker(History(ledger.path))
    monkeypatch.setattr(progress.history, "wait", asyncio.Event().wait)
    waiting = [asyncio.create_task(progress.wait(event(0, offset))) for offset in (0, 4, 5)]
    await asyncio.sleep(0)
    ledger.commit(0, 5)
    assert progress.has_read(event(0, 3))
    await until(lambda: waiting[0].done() and waiting[1].done())
    assert not waiting[2].done()
    ledger.commit(1, 6)
    assert progress.has_read(event(0, 5))
    await waiting[2]
    progress.history.close()


@in_loop
async def test_who_waits_is_told_though_nobody_else_asks(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    progress = ProgressTracker(History(ledger.path))
    waiting = asyncio.create_task(progress.wait(event(1, 7)))
    earlier = asyncio.create_task(progress.wait(event(1, 6)))
    await until(lambda: progress._waiting == 2)
    ledger.commit(0, 5, 7)
    await earlier  # who waits is woken in turn, so the first was told too
    assert not waiting.done()
    ledger.commit(1, 5, 8)
    await until(waiting.done)
    progress.history.close()


def test_places_know_their_events() -> None:
    places = LogPositions("s", [Span(0, 5, 3), Span(1, 0, 1), Span(0, 20, 1)])
    positions = [
        (partition, offset) for partition in (0, 1, 2) for offset in range(25) if (partition, offset) in places
    ]
    assert positions == [(0, 5), (0, 6), (0, 7), (0, 20), (1, 0)]
    assert sorted(places.ends()) == [(0, 5), (0, 20), (1, 0), (1, 0)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """With one event of the stream `payments`."""
    log = EmbeddedLog(tmp_path / "streams", disk_reserve_bytes=0)
    log.declare(StreamSpec("payments", event_schema(decide.Payment), 1))
    event = decide.Payment(payment="1", card="c", amount=1)
    log.admit("payments", {0: to_batch(decide.Payment, [event], ids=["1"], keys=["c"], now=datetime.now(UTC))})
    yield log
    log.close()


def only(log: EmbeddedLog) -> Span:
    """Return the span of the one event in the stream `payments`."""
    [offset] = offsets(log, "payments", 0)
    return Span(0, offset, 1)


def answers(log: EmbeddedLog, tmp_path: Path, replies_max: int = 10) -> Acks:
    return Acks(
        decide.app, EmbeddedStorage(DataDirectory(tmp_path)), log, {}, Settings(replies_max=replies_max), SIGNER
    )


@in_loop
async def test_an_acknowledgement_of_events_that_are_not_there_is_not_found(tmp_path: Path, log: EmbeddedLog) -> None:
    """It is signed, but the stream may have been recreated since."""
    service, generation = answers(log, tmp_path), log.generation("payments")
    first, end = only(log).first, log.ends("payments")[0]
    assert (await service.describe(signed("payments", generation, (only(log),)), ANYONE))["events"] == 1
    for made_up in (
        Ack("payments", generation, (Span(0, first, end - first + 1),)),
        Ack("payments", generation, (Span(0, end, 1),)),
        Ack("payments", generation, (Span(7, first, 1),)),
        Ack("payments", generation + 1, (only(log),)),
        Ack("decisions", 1, (only(log),)),
        Ack("none", 1, (only(log),)),
    ):
        with pytest.raises(NotFound):
            await service.describe(SIGNER.sign(made_up), ANYONE)
    service.close()


@in_loop
async def test_a_request_that_may_not_wait_is_refused_before_it_is_taken(tmp_path: Path, log: EmbeddedLog) -> None:
    """It is never refused afterwards: 429 means that nothing was stored."""
    service = answers(log, tmp_path, replies_max=0)
    with pytest.raises(Overloaded):
        service.require_target("payments", "decisions")
    ack = signed("payments", log.generation("payments"), (only(log),))
    assert await service.reply(ack, "decisions", 60.0, lambda name: True) is None
    service.close()


@in_loop
async def test_an_acknowledgement_has_no_more_events_than_a_request(tmp_path: Path, log: EmbeddedLog) -> None:
    """An acknowledgement over the whole log would make the gateway read all of it."""
    service = answers(log, tmp_path)
    most = Settings().request_events_max
    log.ends = lambda stream: {0: 10 * most}  # type: ignore[method-assign]
    forged = signed("payments", log.generation("payments"), (Span(0, 0, most), Span(0, 0, 1)))
    with pytest.raises(NotFound):
        await service.describe(forged, ANYONE)
    with pytest.raises(NotFound):
        await service.reply(forged, "decisions", 1.0, lambda name: True)
    service.close()


@in_loop
async def test_those_who_ask_about_acknowledgements_leave_the_shared_threads_alone(
    tmp_path: Path, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = answers(log, tmp_path)
    ack = signed("payments", log.generation("payments"), (only(log),))
    gate = threading.Event()

    def blocked(*_: object) -> None:
        gate.wait(60)

    monkeypatch.setattr(service, "_logged", blocked)
    asking = [asyncio.create_task(service.describe(ack, ANYONE)) for _ in range(40)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(lambda: 1) == 1
        await until(lambda: any(task.done() for task in asking))
        refused = [task.exception() for task in asking if task.done()]
        assert {type(error) for error in refused} == {Overloaded}, "no more than replies_max wait"
    finally:
        gate.set()
        await asyncio.gather(*asking, return_exceptions=True)
        service.close()


class AlternatingAcks(Acks):
    """Reports for each handler that it emitted an event, and for the next that it emitted nothing."""

    async def _node(self, node: acks.Node, places: LogPositions) -> tuple[dict[str, Any], dict[str, acks.Caused]]:
        output = {"decisions": ["a decision"], "decisions.failed": ["a failure"]}
        return {"handler": node.name, "of": places.stream, "output": output}, {}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("produce:payments", set()),
        ("consume:payments", set()),
        ("produce:payments consume:decisions", {"decisions"}),
        ("produce:payments consume:decisions.failed", {"decisions.failed"}),
        ("admin", {"decisions", "decisions.failed"}),
    ],
)
@in_loop
async def test_what_events_caused_is_shown_to_those_who_may_read_it(
    tmp_path: Path, log: EmbeddedLog, words: str, shown: set[str]
) -> None:
    service = AlternatingAcks(decide.app, EmbeddedStorage(DataDirectory(tmp_path)), log, {}, Settings(), SIGNER)
    text = signed("payments", log.generation("payments"), (only(log),))
    description = await service.describe(text, Caller("key:bob", grants(words.split())))
    assert {name for entry in description["processed"] for name in entry["output"]} == shown
    service.close()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("produce:payments", []),
        ("consume:payments", []),
        ("produce:payments consume:offered", [("view", "offered")]),
        ("produce:payments consume:decisions.failed", [("handler", "decisions")]),
        ("produce:payments consume:decisions consume:sizes", [("handler", "decisions"), ("view", "sizes")]),
        ("produce:payments consume:*", [("handler", "decisions"), ("view", "offered"), ("view", "sizes")]),
    ],
)
@in_loop
async def test_views_and_handlers_are_named_to_those_who_may_read_them(
    tmp_path: Path, log: EmbeddedLog, words: str, named: list[tuple[str, str]]
) -> None:
    service, text = answers(log, tmp_path), signed("payments", log.generation("payments"), (only(log),))
    description = await service.describe(text, Caller("key:bob", grants(words.split())))
    shown = [(kind, entry[kind]) for entry in description["processed"] for kind in ("handler", "view") if kind in entry]
    assert sorted(shown) == named
    assert {entry["of"] for entry in description["processed"]} <= {"payments"}
    service.close()


class FirstHandlerAcks(Acks):
    """Reports for the first handler that it emitted an event."""

    async def _node(self, node: acks.Node, places: LogPositions) -> tuple[dict[str, Any], dict[str, acks.Caused]]:
        entry = {"handler": node.name, "of": places.stream, "done": True}
        return entry, {"decisions": acks.Caused([], [Span(0, 0, 1)])} if node.name == "decisions" else {}


@pytest.mark.parametrize(("also", "of"), [((), None), (("consume:decisions",), "decisions"), (("admin",), "decisions")])
@in_loop
async def test_a_stream_on_the_way_is_named_to_those_who_may_read_it(
    tmp_path: Path, log: EmbeddedLog, also: tuple[str, ...], of: str | None
) -> None:
    service = FirstHandlerAcks(decide.app, EmbeddedStorage(DataDirectory(tmp_path)), log, {}, Settings(), SIGNER)
    text = signed("payments", log.generation("payments"), (only(log),))
    description = await service.describe(text, Caller("key:bob", grants(["produce:payments", "consume:alarms", *also])))
    assert {"handler": "alarms", "of": of, "done": True} in description["processed"]
    service.close()


@in_loop
async def test_who_may_not_read_a_stream_cannot_try_out_where_it_ends(tmp_path: Path, log: EmbeddedLog) -> None:
    service, generation = answers(log, tmp_path), log.generation("payments")
    stranger = Caller("key:eve", grants(["produce:decisions"]))
    for first in (only(log).first, log.ends("payments")[0]):
        with pytest.raises(Forbidden):
            await service.describe(signed("payments", generation, (Span(0, first, 1),)), stranger)
    service.close()


@in_loop
async def test_who_sees_some_events_of_a_stream_is_not_told_of_the_others(tmp_path: Path, log: EmbeddedLog) -> None:
    """A caller with another caller's acknowledgement could otherwise find out when that one's events came."""
    service, generation = answers(log, tmp_path), log.generation("payments")
    text = signed("payments", generation, (only(log),))
    rule = Sight({"payments": "payer = claim('sub')"}, {"sub": "eve"})
    with pytest.raises(Forbidden):
        await service.describe(text, Caller("key:eve", grants(["consume:payments"]), sight=rule))
    sender = Caller("key:eve", grants(["consume:payments", "produce:payments"]), sight=rule)
    assert (await service.describe(text, sender))["events"] == 1
    service.close()


class FailedAcks(Acks):
    """Reports that its handlers have failed on everything."""

    def _caused(self, handler: Handler, *_: object) -> dict[str, acks.Caused]:
        failure = acks.Caused([b'{"reason": "no"}'], [Span(0, 0, 1)])
        return {handler.outputs[0].name: acks.Caused(), f"{handler.name}.failed": failure}


@pytest.mark.parametrize(("readable", "shown"), [("decisions.failed", 1), ("alarms", 0)])
@in_loop
async def test_a_reply_shows_failures_to_those_who_may_read_them(
    tmp_path: Path, log: EmbeddedLog, readable: str, shown: int
) -> None:
    """All waiting callers learn that there is one."""
    directory = DataDirectory(tmp_path)
    directory.handler_ledger("decisions").parent.mkdir(parents=True)
    connection = files.connect(directory.handler_ledger("decisions"))
    with files.transaction(connection, tmp_path):
        connection.execute(store.TABLE)
        store.add(connection, 0, Done(1000, json.dumps([{"payments/0": log.ends("payments")[0]}]), {}))
    service = FailedAcks(decide.app, EmbeddedStorage(directory), log, {}, Settings(), SIGNER)
    text = signed("payments", log.generation("payments"), (only(log),))
    reply = await service.reply(text, "alarms", 10.0, lambda name: name == readable)
    assert reply is not None
    assert (reply["events"], len(reply["failed"])) == ([], shown)
    connection.close()
    service.close()
