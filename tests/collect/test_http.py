"""The endpoint: its answers, its limits, and misbehaving clients."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.collect import http
from penstock.core.errors import DiskFull, StorageError
from penstock.core.settings import MIB, Settings
from tests.alone import alone
from tests.clocks import until
from tests.collect.support import STALL, answered, body, fix, in_loop, opened, post
from tests.collect.test_decode import BODIES
from tests.memory_log import MemoryLog

PROBLEM = "application/problem+json"


@in_loop
async def test_a_good_event_is_durable_before_it_is_answered() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        answer = await answered(rig.endpoint, "fixes", body(fix(1)), content_type="application/json")
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.json | {"cursor": "", "ack": ""} == {
            "accepted": 1,
            "duplicates": 0,
            "rejected": 0,
            "cursor": "",
            "errors": [],
            "ack": "",
        }
        assert [row["_key"] for row in log.events("fixes")] == ["v"]


@in_loop
async def test_no_answer_leaves_while_the_disk_is_at_work() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        log.gate.clear()
        request = asyncio.create_task(answered(rig.endpoint, "fixes", body(fix(1))))
        await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 1)
        assert not request.done()
        log.gate.set()
        assert (await request).status == 200


@in_loop
async def test_partial_success_names_the_bad_ones_and_keeps_them_as_dead_letters() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        bad = fix(2) | {"vehicle": 1}
        answer = await answered(rig.endpoint, "fixes", body(fix(1), bad, fix(3)))
        assert answer.status == 200
        assert (answer.json["accepted"], answer.json["rejected"]) == (2, 1)
        assert answer.json["errors"] == [{"index": 1, "reason": "Expected `str`, got `int`", "path": "$.vehicle"}]
        (letter,) = log.events("fixes.rejected")
        assert (letter["reason"], letter["path"]) == ("Expected `str`, got `int`", "$.vehicle")
        assert letter["raw"] == body(bad)


@in_loop
async def test_a_request_with_no_good_event_is_422_with_each_path() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        answer = await answered(rig.endpoint, "fixes", body({"fix_id": 1}, fix(1, venue={"lat": "x"})))
        assert answer.status == 422
        assert answer.headers["content-type"] == PROBLEM
        assert answer.json["code"] == "invalid_events"
        assert [error["path"] for error in answer.json["errors"]] == ["$.fix_id", "$.venue.lat"]
        assert len(log.events("fixes.rejected")) == 2
        assert not log.events("fixes")


@in_loop
async def test_an_answer_lists_a_bounded_number_of_errors_and_the_dead_letters_have_all() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        answer = await answered(rig.endpoint, "fixes", body(*[{}] * 150))
        assert answer.json["rejected"] == 150
        assert len(answer.json["errors"]) == 100
        assert len(log.events("fixes.rejected")) == 150


@in_loop
async def test_what_is_no_json_is_400_and_one_dead_letter() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        answer = await answered(rig.endpoint, "fixes", b'{"fix_id":')
        assert (answer.status, answer.json["code"]) == (400, "malformed_body")
        assert [row["raw"] for row in log.events("fixes.rejected")] == [b'{"fix_id":']


@pytest.mark.parametrize("stream", ["nothing", "fixes.rejected", "", "../fixes", "fixes/x", "x" * 5000])
@in_loop
async def test_a_stream_that_takes_no_events_is_404(stream: str) -> None:
    async with opened(MemoryLog()) as rig:
        answer = await answered(rig.endpoint, stream, body(fix(1)))
        assert (answer.status, answer.json["code"]) == (404, "not_found")
        assert len(answer.raw) < 500


@in_loop
async def test_ndjson_is_told_by_its_content_type() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        content = body(fix(1)) + b"\n" + body(fix(2)) + b"\n"
        answer = await answered(rig.endpoint, "fixes", content, content_type="application/x-ndjson")
        assert answer.json["accepted"] == 2
        answer = await answered(rig.endpoint, "fixes", content, content_type="application/json")
        assert answer.status == 400


@in_loop
async def test_ack_none_answers_202_before_the_disk_and_the_event_still_arrives() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        log.gate.clear()
        answer = await answered(rig.endpoint, "fixes", body(fix(1), {"bad": 1}), query=b"ack=none")
        assert answer.status == 202
        assert (answer.json["accepted"], answer.json["rejected"], answer.json["cursor"]) == (1, 1, None)
        log.gate.set()
        await rig.ingress.drain()
        assert len(log.events("fixes")) == 1
        assert len(log.events("fixes.rejected")) == 1


@in_loop
async def test_an_unknown_ack_is_400() -> None:
    async with opened(MemoryLog()) as rig:
        answer = await answered(rig.endpoint, "fixes", body(fix(1)), query=b"ack=maybe")
        assert (answer.status, answer.json["code"]) == (400, "bad_parameter")


@in_loop
async def test_a_body_too_large_is_refused_by_its_declared_length_before_it_is_read() -> None:
    async with opened(MemoryLog(), Settings(body_bytes_max=100)) as rig:
        answer = await answered(rig.endpoint, "fixes", [b"x", None], content_length="101")
        assert (answer.status, answer.json["code"]) == (413, "too_large")
        assert answer.headers["connection"] == "close"


@in_loop
async def test_a_body_that_grows_too_large_is_refused_as_soon_as_it_does() -> None:
    log = MemoryLog()
    async with opened(log, Settings(body_bytes_max=100)) as rig:
        answer = await answered(rig.endpoint, "fixes", [b"x" * 60, b"x" * 60, b"x" * 60, None])
        assert answer.status == 413
        assert not log.admits


@in_loop
async def test_a_client_that_goes_away_in_the_middle_leaves_nothing() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        assert await post(rig.endpoint, "fixes", [body(fix(1))[:10], None]) is None
        assert await post(rig.endpoint, "fixes", [None]) is None
        assert not log.admits


@in_loop
async def test_a_body_that_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LINGER_S", 0.01)
    log = MemoryLog()
    async with opened(log, Settings(body_s=0.05)) as rig:
        answer = await answered(rig.endpoint, "fixes", [b"{", STALL])
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert "within 0.05 s" in answer.json["detail"]
        assert not log.admits


@in_loop
async def test_a_request_cancelled_from_outside_is_not_taken_for_a_stalled_one() -> None:
    async with opened(MemoryLog()) as rig:
        request = asyncio.create_task(answered(rig.endpoint, "fixes", [b"{", STALL]))
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request


@in_loop
async def test_bodies_being_read_are_bounded_in_sum() -> None:
    async with opened(MemoryLog(), Settings(pending_bytes_max=100)) as rig:
        answer = await answered(rig.endpoint, "fixes", [b"x" * 60, b"x" * 60, b"x"])
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert (await answered(rig.endpoint, "fixes", [body(fix(1))[:5], body(fix(1))[5:]])).status == 200


@in_loop
async def test_gzip_is_read_also_in_several_members() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        content = gzip.compress(b"[" + body(fix(1))) + gzip.compress(b"," + body(fix(2)) + b"]")
        answer = await answered(rig.endpoint, "fixes", content, content_encoding="gzip")
        assert (answer.status, answer.json["accepted"]) == (200, 2)


BROKEN_GZIP = {
    "not gzip": b"{}",
    "cut": gzip.compress(b"{}")[:-3],
    "trailing": gzip.compress(b"{}") + b"garbage",
    "bad checksum": gzip.compress(b"{}")[:-8] + b"\0" * 8,
    "endless members": gzip.compress(b"") * 100,
}


@pytest.mark.parametrize("name", BROKEN_GZIP)
@in_loop
async def test_broken_gzip_is_400(name: str) -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        answer = await answered(rig.endpoint, "fixes", BROKEN_GZIP[name], content_encoding="gzip")
        assert (answer.status, answer.json["code"]) == (400, "malformed_body")
        assert not log.admits


@alone
@in_loop
async def test_a_gzip_bomb_is_413_and_costs_no_more_memory_than_a_body_may_have() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(512)) + packer.flush()
    async with opened(MemoryLog(), Settings(body_bytes_max=2 * MIB)) as rig:
        tracemalloc.start()
        answer = await answered(rig.endpoint, "fixes", bomb, content_encoding="gzip")
        _, peak = tracemalloc.get_traced_memory()
        assert answer.status == 413, answer.status
        assert peak < 8 * MIB, peak


@in_loop
async def test_another_content_encoding_is_415() -> None:
    async with opened(MemoryLog()) as rig:
        answer = await answered(rig.endpoint, "fixes", body(fix(1)), content_encoding="br")
        assert (answer.status, answer.json["code"]) == (415, "unsupported_media")


@in_loop
async def test_overload_is_429_with_retry_after() -> None:
    log = MemoryLog()
    async with opened(log, Settings(pending_events_max=1)) as rig:
        log.gate.clear()
        first = asyncio.create_task(answered(rig.endpoint, "fixes", body(fix(1))))
        await until(lambda: rig.ingress.stream_ingress("fixes").group_commit.pending_events == 1)
        answer = await answered(rig.endpoint, "fixes", body(fix(2)))
        assert (answer.status, answer.json["code"]) == (429, "overloaded")
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        log.gate.set()
        assert (await first).status == 200
        assert (await answered(rig.endpoint, "fixes", body(fix(2)))).status == 200


@in_loop
async def test_a_full_disk_is_507_and_a_retry_is_taken_once_there_is_room() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        log.faults = [DiskFull("no space left", retry_after_s=5)]
        answer = await answered(rig.endpoint, "fixes", body(fix(1)))
        assert (answer.status, answer.json["code"]) == (507, "disk_full")
        assert answer.headers["retry-after"] == "5"
        assert (await answered(rig.endpoint, "fixes", body(fix(1)))).json["accepted"] == 1


@in_loop
async def test_no_event_is_taken_when_its_neighbours_dead_letter_cannot_be_kept() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        log.faults = [DiskFull("no space left", retry_after_s=5)]
        answer = await answered(rig.endpoint, "fixes", body(fix(1), {}))
        assert answer.status == 507
        assert not log.events("fixes")


@in_loop
async def test_a_storage_error_is_500_without_its_details() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        log.faults = [StorageError("it broke", file="/secret/place")]
        answer = await answered(rig.endpoint, "fixes", body(fix(1)))
        assert answer.status == 500
        assert b"/secret/place" not in answer.raw


@in_loop
async def test_a_door_that_is_closing_answers_503() -> None:
    async with opened(MemoryLog()) as rig:
        await rig.ingress.close()
        answer = await answered(rig.endpoint, "fixes", body(fix(1)))
        assert (answer.status, answer.json["code"]) == (503, "stopping")
        assert "retry-after" in answer.headers


@settings(deadline=None, max_examples=60)
@given(BODIES, st.sampled_from(["application/json", "application/x-ndjson", "text/plain"]), st.booleans())
def test_any_bytes_get_an_answer_whose_figures_add_up(content: bytes, content_type: str, zipped: bool) -> None:
    async def send() -> None:
        log = MemoryLog()
        async with opened(log) as rig:
            packed = gzip.compress(content) if zipped else content
            encoding = {"content_encoding": "gzip"} if zipped else {}
            answer = await answered(rig.endpoint, "fixes", packed, content_type=content_type, **encoding)
            assert answer.status in (200, 400, 422)
            rejected = answer.json.get("rejected", 1)
            assert len(log.events("fixes.rejected")) == rejected
            assert len(log.events("fixes")) == answer.json.get("accepted", 0)
            tally = rig.ingress.audits()["fixes"].total()
            assert tally.received == tally.accepted + tally.duplicates + tally.rejected

    asyncio.run(send())


@in_loop
async def test_large_bodies_waiting_to_be_decoded_are_bounded() -> None:
    async with opened(MemoryLog(), Settings(pending_bytes_max=300_000)) as rig:
        large = b"[" + b",".join(body(fix(number)) for number in range(3000)) + b"]"
        assert 150_000 < len(large) < 300_000
        answers = await asyncio.gather(*(answered(rig.endpoint, "fixes", large) for _ in range(3)))
        assert sorted(answer.status for answer in answers) == [200, 429, 429]
        assert (await answered(rig.endpoint, "fixes", large)).json["duplicates"] == 3000
