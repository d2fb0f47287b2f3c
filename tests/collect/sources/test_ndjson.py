"""The source of lines, against a real server that behaves badly."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.collect.sources.http import ndjson as ndjson_module
from penstock.collect.sources.http.ndjson import Lines, ndjson
from penstock.core.errors import DeclarationError, SourceFailed
from tests.clocks import move_loop, until
from tests.collect.sources.origin import (
    QUICK,
    Reply,
    Unreliable,
    event,
    outcome,
    pulling,
    sending,
    serving,
    stored,
    survives_kills,
)
from tests.collect.support import body, fix, in_loop, opened
from tests.memory_log import MemoryLog
from tests.network import Asked


@in_loop
async def test_each_line_is_stored_once_and_in_order_whatever_the_server_does() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    log, total = MemoryLog(), 1500
    server = Unreliable(random.Random(seed), total, lambda: 0)
    async with opened(log) as rig, serving(server) as url:
        async with pulling(rig, ndjson(f"{url}/ndjson", position="n", silence_s=0.2, **QUICK)) as status:
            await until(lambda: len(stored(log)) >= total)
        assert stored(log) == [event(number) for number in range(total)]
        assert (status.received, status.reconnects > 0) == (total, True)


@in_loop
async def test_readers_that_are_killed_leave_each_line_once(tmp_path: Path) -> None:
    await survives_kills("ndjson", tmp_path / "streams", 500, silence_s=0.3, position="n")


@pytest.mark.soak
@in_loop
async def test_readers_that_are_killed_for_long_leave_each_line_once(tmp_path: Path) -> None:
    await survives_kills("ndjson", tmp_path / "streams", 10_000, parts=10, silence_s=0.3, position="n")


@in_loop
async def test_a_line_that_is_cut_off_is_no_event_and_the_last_of_a_whole_answer_is_one_without_its_end() -> None:
    for ended, lines in ((True, [b"a", b"b", b"c"]), (False, [b"a", b"b"])):
        log = MemoryLog()
        async with opened(log) as rig, serving(sending(b"a\r\n\n  \nb\nc", ended=ended)) as url:
            async with pulling(rig, ndjson(url, **QUICK)) as status:
                await until(lambda: status.reconnects >= 1 and status.state == "connected")
                assert status.received == len(lines)
        assert stored(log) == lines


@in_loop
async def test_a_last_line_is_no_event_if_the_server_did_not_say_where_its_answer_ends() -> None:
    async def handler(asked: Asked, reply: Reply) -> None:
        await reply.head(chunked=False, Connection="close")
        await reply.send(b"a\nb")
        reply.writer.close()

    log = MemoryLog()
    async with opened(log) as rig, serving(handler) as url, pulling(rig, ndjson(url, **QUICK)) as status:
        await until(lambda: status.reconnects >= 2)
    assert set(stored(log)) == {b"a"}


@in_loop
async def test_the_last_position_is_sent_back_after_a_reconnect_and_after_a_restart() -> None:
    seen: list[Asked] = []
    answers = [b'{"at": {"n": 1}}\n{"at": {"n": 20}}\n', b'{"at": {"n": 20}}\n{"at": {"n": 12345678901234567890}}\n']
    log = MemoryLog()
    async with opened(log) as rig, serving(sending(*answers, seen=seen)) as url:
        for count in (3, 4):
            async with pulling(rig, ndjson(f"{url}/?since=0&key=k", position="at.n", **QUICK)):
                await until(lambda: len(seen) == count)  # noqa: B023
    assert [request.query["since"] for request in seen] == ["0", "20", "12345678901234567890", "12345678901234567890"]
    assert {request.query["key"] for request in seen} == {"k"}
    assert len(stored(log)) == 3


@in_loop
async def test_positions_can_be_texts_in_order_or_known_to_the_server_alone() -> None:
    answers = b'{"p": "b"}\n{"p": "a"}\n{"p": "b"}\n{"p": "c"}\n{}\nno JSON\n'
    for order, kept in (("text", ["b", "c"]), (None, ["b", "a", "b", "c"])):
        log = MemoryLog()
        async with opened(log) as rig, serving(sending(answers)) as url:
            async with pulling(rig, ndjson(url, position="p", order=order, **QUICK)) as status:  # type: ignore[arg-type]
                await until(lambda: status.reconnects >= 1 and status.state == "connected")
        assert stored(log) == [*(b'{"p": "%s"}' % position.encode() for position in kept), b"{}", b"no JSON"]


@pytest.mark.parametrize(
    "lines",
    [b'{"n": "one"}\n{"n": "two"}\n', b'{"n": {}}\n', b'{"n": true}\n', b'{"n": 1}\n{"n": 1, "other": 1}\n'],
    ids=["no number", "no value", "no position", "not unique"],
)
@in_loop
async def test_positions_that_could_lose_events_end_the_source(lines: bytes) -> None:
    error = await outcome(sending(lines), "ndjson", position="n")
    assert isinstance(error, SourceFailed)
    assert "`n`" in error.message or "order=" in error.message


@in_loop
async def test_a_line_over_the_bound_ends_the_source_and_says_what_to_raise() -> None:
    error = await outcome(sending(b"x" * 3000 + b"\n"), "ndjson", event_bytes_max=1000)
    assert isinstance(error, SourceFailed)
    assert "event_bytes_max" in error.message


@in_loop
async def test_a_bomb_in_gzip_ends_the_source_before_it_takes_memory() -> None:
    bomb = gzip.compress(gzip.compress(b"x" * 50_000_000) + b"y" * 100_000_000)
    error = await outcome(sending(bomb, Content_Encoding="gzip"), "ndjson", event_bytes_max=1_000_000)
    assert isinstance(error, SourceFailed)


@in_loop
async def test_a_server_that_says_nothing_is_left() -> None:
    async def silent(asked: Asked, reply: Reply) -> None:
        await reply.head()
        await reply.stall()

    async with opened(MemoryLog()) as rig, serving(silent) as url:
        async with pulling(rig, ndjson(url, silence_s=0.05, **QUICK)) as status:
            await until(lambda: status.reconnects >= 2 and status.state == "waiting")
            assert status.error == "the server sent nothing for 0.05 s"


class CountedLines(Lines):
    """Counts the pieces of all answers."""

    pieces = 0

    def feed(self, piece: bytes) -> list[bytes]:
        CountedLines.pieces += 1
        return super().feed(piece)


@in_loop
async def test_blank_lines_are_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountedLines, "pieces", 0)
    monkeypatch.setattr(ndjson_module, "Lines", CountedLines)
    async with opened(MemoryLog()) as rig, serving(sending()) as url:
        async with pulling(rig, ndjson(url, silence_s=1000, **QUICK)) as status:
            for moves in range(1, 6):
                await until(lambda most=3 * moves: CountedLines.pieces >= most)  # type: ignore[misc]
                move_loop(600)
            assert (status.state, status.reconnects) == ("connected", 0)


@in_loop
async def test_bad_lines_are_dead_letters_and_the_feed_goes_on() -> None:
    log = MemoryLog()
    lines = b"\n".join([body(fix(1)), b"\xff", b"{", body({"fix_id": 2}), body(fix(3)), b""])
    async with opened(log) as rig, serving(sending(lines)) as url, pulling(rig, ndjson(url, **QUICK), "fixes"):
        await until(lambda: len(log.events("fixes")) == 2 and len(log.events("fixes.rejected")) == 3)


def test_lines_are_found_however_the_bytes_are_cut() -> None:
    text = b"one\n\ntwo\r\nthree"
    for at in range(len(text)):
        lines = Lines(100)
        assert [*lines.feed(text[:at]), *lines.feed(text[at:])] == [b"one", b"", b"two\r"]
        assert lines.rest == b"three"


@pytest.mark.parametrize("options", [{"order": "size"}, {"resume": ""}, {"connect_s": -1}])
def test_options_that_cannot_work_are_refused_when_they_are_declared(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        ndjson("http://x", **options)
