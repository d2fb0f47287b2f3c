"""Who waits for a view or handler to have taken an event."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import files
from penstock.access import ANYONE, Caller
from penstock.access.caller import Sight
from penstock.access.grants import grants
from penstock.columns import to_batch
from penstock.contracts import StreamSpec
from penstock.cursor import Ack, AckSigner, Span
from penstock.declared import Handler
from penstock.errors import Damaged, Forbidden, NotFound, Overloaded
from penstock.queue import EmbeddedLog
from penstock.runtime import acks
from penstock.runtime import progress as progress_module
from penstock.runtime.acks import Acks
from penstock.runtime.directory import DataDirectory
from penstock.runtime.progress import Places, Progress
from penstock.schema import event_schema
from penstock.settings import Settings
from penstock.store import Done, History
from penstock.store import history as store
from tests.collect.support import in_loop, until
from tests.e2e import decide

SIGNER = AckSigner(b"the key of this test")


def signed(stream: str, generation: int, spans: tuple[Span, ...]) -> str:
    return SIGNER.sign(Ack(stream, generation, spans))


class Ledger:
    """A file with a history, and nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = files.connect(path)
        with files.transaction(self._connection, path):
            self._connection.execute(store.TABLE)

    def commit(self, batch_id: int, *ends: int) -> None:
        end = json.dumps([{f"s/{partition}": offset for partition, offset in enumerate(ends)}])
        with files.transaction(self._connection, self.path):
            store.add(self._connection, batch_id, Done(1000 * batch_id, end, {"out": {0: 10 * batch_id}}))

    def spoil(self, batch_id: int) -> None:
        with files.transaction(self._connection, self.path):
            self._connection.execute("UPDATE batches SET data = x'00' WHERE batch_id = ?", (batch_id,))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def event(partition: int, offset: int) -> Places:
    return Places("s", [Span(partition, offset, 1)])


def test_the_batch_of_an_event_is_found_and_the_one_before_it(ledger: Ledger) -> None:
    for batch_id in range(20):
        ledger.commit(batch_id, 5 * batch_id + 5, 2)
    history = History(ledger.path)
    for offset in range(100):
        found = history.find("s", 0, offset)
        assert found is not None
        assert found.done.at_us == 1000 * (offset // 5)
        assert (found.before is None) == (offset < 5)
    assert history.find("s", 0, 100) is None
    assert history.find("s", 1, 1) == history.find("s", 0, 0)
    assert history.find("t", 0, 0) is None
    history.close()


def test_of_batches_that_are_forgotten_nothing_is_told(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could have been any of them."""
    monkeypatch.setattr(store, "KEPT", 10)
    for batch_id in range(50):
        ledger.commit(batch_id, 5 * batch_id + 5)
    history = History(ledger.path)
    assert [history.find("s", 0, offset) is None for offset in (0, 204, 205, 249)] == [True, True, False, False]
    history.close()


def test_a_damaged_batch_is_noticed(ledger: Ledger) -> None:
    ledger.commit(0, 5)
    ledger.spoil(0)
    with pytest.raises(Damaged, match="batch 0"):
        History(ledger.path).latest()


def test_a_file_that_is_not_there_or_has_no_history_tells_nothing(tmp_path: Path) -> None:
    history = History(tmp_path / "none.db")
    assert (history.moved(), history.latest(), history.find("s", 0, 0)) == (False, None, None)
    files.connect(tmp_path / "old.db").close()
    assert History(tmp_path / "old.db").latest() is None


@in_loop
async def test_all_who_wait_are_told_whoever_looks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one who looks first may be one who does not wait at all."""
    monkeypatch.setattr(progress_module, "POLL_MIN_S", 60.0)
    monkeypatch.setattr(progress_module, "POLL_MAX_S", 60.0)
    ledger = Ledger(tmp_path / "ledger.db")
    progress = Progress(History(ledger.path))
    waiting = [asyncio.create_task(progress.wait(event(0, offset))) for offset in (0, 4, 5)]
    await asyncio.sleep(0)
    ledger.commit(0, 5)
    assert progress.reached(event(0, 3))
    await until(lambda: waiting[0].done() and waiting[1].done())
    assert not waiting[2].done()
    ledger.commit(1, 6)
    assert progress.reached(event(0, 5))
    await waiting[2]
    progress.history.close()


@in_loop
async def test_who_waits_is_told_though_nobody_else_asks(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    progress = Progress(History(ledger.path))
    waiting = asyncio.create_task(progress.wait(event(1, 7)))
    await asyncio.sleep(0.01)
    ledger.commit(0, 5, 7)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    ledger.commit(1, 5, 8)
    await until(waiting.done)
    progress.history.close()


def test_places_know_their_events() -> None:
    places = Places("s", [Span(0, 5, 3), Span(1, 0, 1), Span(0, 20, 1)])
    found = [(partition, offset) for partition in (0, 1, 2) for offset in range(25) if (partition, offset) in places]
    assert found == [(0, 5), (0, 6), (0, 7), (0, 20), (1, 0)]
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


def answers(log: EmbeddedLog, tmp_path: Path, replies_max: int = 10) -> Acks:
    return Acks(decide.app, DataDirectory(tmp_path), log, {}, Settings(replies_max=replies_max), SIGNER)


@in_loop
async def test_an_acknowledgement_of_events_that_are_not_there_is_not_found(tmp_path: Path, log: EmbeddedLog) -> None:
    """Though it is signed: the stream may have been recreated since."""
    found, generation = answers(log, tmp_path), log.generation("payments")
    assert (await found.describe(signed("payments", generation, (Span(0, 0, 1),)), ANYONE))["events"] == 1
    for made_up in (
        Ack("payments", generation, (Span(0, 0, 2),)),
        Ack("payments", generation, (Span(0, 1, 1),)),
        Ack("payments", generation, (Span(7, 0, 1),)),
        Ack("payments", generation + 1, (Span(0, 0, 1),)),
        Ack("decisions", 1, (Span(0, 0, 1),)),
        Ack("none", 1, (Span(0, 0, 1),)),
    ):
        with pytest.raises(NotFound):
            await found.describe(SIGNER.sign(made_up), ANYONE)
    found.close()


@in_loop
async def test_a_request_that_may_not_wait_is_refused_before_it_is_taken(tmp_path: Path, log: EmbeddedLog) -> None:
    """And never after: 429 means that nothing was taken."""
    found = answers(log, tmp_path, replies_max=0)
    with pytest.raises(Overloaded):
        found.require_target("payments", "decisions")
    ack = signed("payments", log.generation("payments"), (Span(0, 0, 1),))
    assert await found.reply(ack, "decisions", 60.0, lambda name: True) is None
    found.close()


@in_loop
async def test_an_acknowledgement_has_no_more_events_than_a_request(tmp_path: Path, log: EmbeddedLog) -> None:
    """One that spans the whole log would have all of it read."""
    found = answers(log, tmp_path)
    most = Settings().request_events_max
    log.ends = lambda stream: {0: 10 * most}  # type: ignore[method-assign]
    forged = signed("payments", log.generation("payments"), (Span(0, 0, most), Span(0, 0, 1)))
    with pytest.raises(NotFound):
        await found.describe(forged, ANYONE)
    with pytest.raises(NotFound):
        await found.reply(forged, "decisions", 1.0, lambda name: True)


@in_loop
async def test_those_who_ask_about_acknowledgements_leave_the_shared_threads_alone(
    tmp_path: Path, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answers(log, tmp_path)
    ack = signed("payments", log.generation("payments"), (Span(0, 0, 1),))
    gate = threading.Event()

    def blocked(*_: object) -> None:
        gate.wait(60)

    monkeypatch.setattr(found, "_logged", blocked)
    asking = [asyncio.create_task(found.describe(ack, ANYONE)) for _ in range(40)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(lambda: 1) == 1
        await until(lambda: any(each.done() for each in asking))
        refused = [each.exception() for each in asking if each.done()]
        assert {type(each) for each in refused} == {Overloaded}, "no more than replies_max wait"
    finally:
        gate.set()
        await asyncio.gather(*asking, return_exceptions=True)


class Told(Acks):
    """Says of each handler that it made an event, and of the next that it made nothing."""

    async def _node(self, node: acks.Node, places: Places) -> tuple[dict[str, Any], dict[str, acks.Caused]]:
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
    found = Told(decide.app, DataDirectory(tmp_path), log, {}, Settings(), SIGNER)
    text = signed("payments", log.generation("payments"), (Span(0, 0, 1),))
    told = await found.describe(text, Caller("key:bob", grants(words.split())))
    assert {name for each in told["processed"] for name in each["output"]} == shown
    found.close()


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
    found, text = answers(log, tmp_path), signed("payments", log.generation("payments"), (Span(0, 0, 1),))
    told = await found.describe(text, Caller("key:bob", grants(words.split())))
    shown = [(kind, each[kind]) for each in told["processed"] for kind in ("handler", "view") if kind in each]
    assert sorted(shown) == named
    assert {each["of"] for each in told["processed"]} <= {"payments"}
    found.close()


class MadeOne(Acks):
    """Says of the first handler that it made an event."""

    async def _node(self, node: acks.Node, places: Places) -> tuple[dict[str, Any], dict[str, acks.Caused]]:
        entry = {"handler": node.name, "of": places.stream, "done": True}
        return entry, {"decisions": acks.Caused([], [Span(0, 0, 1)])} if node.name == "decisions" else {}


@pytest.mark.parametrize(("also", "of"), [((), None), (("consume:decisions",), "decisions"), (("admin",), "decisions")])
@in_loop
async def test_a_stream_on_the_way_is_named_to_those_who_may_read_it(
    tmp_path: Path, log: EmbeddedLog, also: tuple[str, ...], of: str | None
) -> None:
    found = MadeOne(decide.app, DataDirectory(tmp_path), log, {}, Settings(), SIGNER)
    text = signed("payments", log.generation("payments"), (Span(0, 0, 1),))
    told = await found.describe(text, Caller("key:bob", grants(["produce:payments", "consume:alarms", *also])))
    assert {"handler": "alarms", "of": of, "done": True} in told["processed"]
    found.close()


@in_loop
async def test_who_may_not_read_a_stream_cannot_try_out_where_it_ends(tmp_path: Path, log: EmbeddedLog) -> None:
    found, generation = answers(log, tmp_path), log.generation("payments")
    stranger = Caller("key:eve", grants(["produce:decisions"]))
    for first in (0, 1):
        with pytest.raises(Forbidden):
            await found.describe(signed("payments", generation, (Span(0, first, 1),)), stranger)
    found.close()


@in_loop
async def test_who_sees_some_events_of_a_stream_is_not_told_of_the_others(tmp_path: Path, log: EmbeddedLog) -> None:
    """Who gets hold of the acknowledgement of another could ask when that one's events came."""
    found, generation = answers(log, tmp_path), log.generation("payments")
    text = signed("payments", generation, (Span(0, 0, 1),))
    rule = Sight({"payments": "payer = claim('sub')"}, {"sub": "eve"})
    with pytest.raises(Forbidden):
        await found.describe(text, Caller("key:eve", grants(["consume:payments"]), sight=rule))
    sender = Caller("key:eve", grants(["consume:payments", "produce:payments"]), sight=rule)
    assert (await found.describe(text, sender))["events"] == 1
    found.close()


class Failed(Acks):
    """Whose handlers have failed on everything."""

    def _caused(self, handler: Handler, *_: object) -> dict[str, acks.Caused]:
        failure = acks.Caused([b'{"reason": "no"}'], [Span(0, 0, 1)])
        return {handler.outputs[0].name: acks.Caused(), f"{handler.name}.failed": failure}


@pytest.mark.parametrize(("readable", "shown"), [("decisions.failed", 1), ("alarms", 0)])
@in_loop
async def test_a_reply_shows_failures_to_those_who_may_read_them(
    tmp_path: Path, log: EmbeddedLog, readable: str, shown: int
) -> None:
    """That there is one is told to all who wait."""
    directory = DataDirectory(tmp_path)
    directory.handler_ledger("decisions").parent.mkdir(parents=True)
    connection = files.connect(directory.handler_ledger("decisions"))
    with files.transaction(connection, tmp_path):
        connection.execute(store.TABLE)
        store.add(connection, 0, Done(1000, json.dumps([{"payments/0": 1}]), {}))
    found = Failed(decide.app, directory, log, {}, Settings(), SIGNER)
    text = signed("payments", log.generation("payments"), (Span(0, 0, 1),))
    reply = await found.reply(text, "alarms", 10.0, lambda name: name == readable)
    assert reply is not None
    assert (reply["events"], len(reply["failed"])) == ([], shown)
    connection.close()
    found.close()
