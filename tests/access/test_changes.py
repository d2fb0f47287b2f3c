"""The effect of changed files on known callers, and on open connections."""

from __future__ import annotations

import asyncio
import json
import math
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.core.access import Gate, KeyFile, Policy
from penstock.core.access.policy import Jwt
from penstock.core.access.tokens import LEEWAY_S, TokenVerifier
from penstock.core.errors import Busy
from penstock.core.files import write_atomic
from tests.access.support import OTHER, SECRET, bearer, known, refusal, reload, signed
from tests.access.test_tokens import AUDIENCE, ISSUER
from tests.clocks import until
from tests.collect.support import in_loop


def test_an_open_gate_that_is_closed_lets_nobody_in(file: KeyFile) -> None:
    gate = Gate(keys=file)
    gate.close()
    assert "a key is required" in refusal(gate)
    reload(gate)
    assert not gate.is_open


@in_loop
async def test_the_first_key_closes_the_gate_and_ends_those_who_came_before(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    gate = Gate(keys=file)
    anonymous = gate.caller([])
    ended = asyncio.create_task(anonymous.ended())
    reload(gate)
    assert gate.is_open
    _, text = file.add("bob", ["consume:a"])
    reload(gate)
    await until(ended.done)
    assert not gate.is_open
    assert "a key is required: send `Authorization: Bearer KEY`" in refusal(gate)
    caller = known(gate, text)
    assert (caller.name, caller.may("consume", "a"), caller.may("produce", "a")) == ("key:bob", True, False)


@pytest.mark.parametrize("content", [b"", b"{", b'{"keys": [], "format": 9}'])
def test_a_first_file_that_cannot_be_read_closes_the_gate(
    file: KeyFile, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(keys=file)
    file.path.write_bytes(content)
    reload(gate)
    assert not gate.is_open
    assert "no key will be accepted until this error is fixed" in caplog.text


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_text('{"keys":' * 50_000),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: path.chmod(0o666),
    ],
)
def test_no_key_is_accepted_while_the_file_cannot_be_used(
    file: KeyFile, spoil: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is unknown which keys were removed. They are valid again as soon as the file can be read."""
    _, text = file.add("bob", ["admin"])
    gate = Gate(keys=file)
    caller, content = known(gate, text), file.path.read_bytes()
    spoil(file.path)
    for _ in range(2):
        reload(gate)
        assert caller.until == 0.0
        assert "this key is unknown" in refusal(gate, bearer(text))
        assert str(file.path) in (gate.keys_error or "")
        with pytest.raises(Busy):
            gate.current_caller("key:bob")
    assert len(caplog.records) == 1, "it is told once"
    assert "no key will be accepted until this error is fixed" in caplog.text
    shutil.rmtree(file.path) if file.path.is_dir() else file.path.unlink()
    write_atomic(file.path, content, durable=False)
    reload(gate)
    assert (known(gate, text).name, gate.keys_error) == ("key:bob", None)


def test_a_time_without_its_offset_is_refused_and_no_removed_key_stays(file: KeyFile) -> None:
    _, gone = file.add("bob", ["admin"])
    file.add("eve", ["admin"], lifetime=timedelta(days=1))
    gate = Gate(keys=file)
    bob = known(gate, gone)
    content = json.loads(file.path.read_text())
    content["keys"] = [key | {"expires": "2099-01-01T00:00:00"} for key in content["keys"] if key["name"] == "eve"]
    file.path.write_text(json.dumps(content))
    reload(gate)
    assert bob.until == 0.0
    assert "timezone" in (gate.keys_error or "")


def test_what_cannot_be_taken_is_tried_again_and_hides_nothing(
    tokens: Policy, file: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = file.add("bob", ["admin"])
    gate = Gate(tokens, file)
    known(gate, text)
    file.revoke("bob")
    assert tokens.jwt is not None
    tokens.jwt.keys.write_text(OTHER)
    with monkeypatch.context() as patched:
        patched.setattr("penstock.core.access.gate.known_grants", lambda words: 1 / 0)
        _, new = file.add("eve", ["admin"])
        reload(gate)
        assert "this key is unknown" in refusal(gate, bearer(text))
    assert gate.caller([bearer(signed(OTHER))])
    reload(gate)
    assert known(gate, new).name == "key:eve"


def test_a_file_that_is_deleted_revokes_all_and_opens_nothing(file: KeyFile) -> None:
    _, text = file.add("bob", ["admin"])
    gate = Gate(keys=file)
    caller = known(gate, text)
    file.path.unlink()
    reload(gate)
    assert caller.until == 0.0
    assert "this key is unknown" in refusal(gate, bearer(text))
    assert not gate.is_open


def test_a_key_is_over_when_it_is_revoked(file: KeyFile) -> None:
    _, text = file.add("bob", ["admin"])
    _, other = file.add("eve", ["consume:a"])
    gate = Gate(keys=file)
    bob, eve = known(gate, text), known(gate, other)
    file.revoke("bob")
    assert gate.remembered(text.encode()) is bob, "nothing is known of it yet"
    reload(gate)
    assert (bob.until, eve.until) == (0.0, math.inf)
    assert gate.remembered(text.encode()) is None
    assert "revoked or expired" in refusal(gate, bearer(text))
    assert known(gate, other) is eve, "who is not concerned goes on"


def test_a_rotated_key_goes_on_for_its_time(file: KeyFile) -> None:
    _, text = file.add("bob", ["admin"])
    gate = Gate(keys=file)
    caller = known(gate, text)
    _, second = file.rotate("bob", timedelta(hours=1))
    reload(gate)
    assert known(gate, text) is caller
    assert 3590 < caller.until - time.time() <= 3600
    assert known(gate, second).until == math.inf
    file.rotate("bob", timedelta(0))
    reload(gate)
    assert caller.until == 0.0
    assert "revoked or expired" in refusal(gate, bearer(text))


def test_grants_are_those_of_the_file_from_the_next_request_on(file: KeyFile) -> None:
    _, text = file.add("bob", ["admin"])
    gate = Gate(keys=file)
    before = known(gate, text)
    content = file.path.read_text().replace('"admin"', '"consume:a", "a word of tomorrow"')
    file.path.write_text(content)
    reload(gate)
    after = known(gate, text)
    assert before.until == 0.0, "connections that were opened with more are ended"
    assert (after.may("consume", "a"), after.may("produce", "a")) == (True, False)


def test_a_key_that_expires_is_forgotten_then(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = file.add("bob", ["admin"], lifetime=timedelta(hours=1))
    gate = Gate(keys=file)
    known(gate, text)
    later = time.time() + 3601
    monkeypatch.setattr("penstock.core.access.gate.time.time", lambda: later)
    assert gate.remembered(text.encode()) is None
    assert "revoked or expired" in refusal(gate, bearer(text))


def test_what_was_used_of_a_rate_is_not_given_back_by_a_reload(file: KeyFile) -> None:
    _, text = file.add("bob", ["admin"], rate=0.001)
    gate = Gate(keys=file, rate=100.0)
    known(gate, text).spend(2)
    for change in (
        lambda: file.add("eve", ["admin"]),
        lambda: file.rotate("bob", timedelta(hours=1)),
        lambda: file.path.write_text(file.path.read_text().replace('["admin"]', '["consume:a"]')),
    ):
        change()
        reload(gate)
        assert known(gate, text).wait_s() > 900
    _, second = file.rotate("bob", timedelta(hours=1))
    reload(gate)
    assert known(gate, second).wait_s() > 900, "both texts of a key share its rate"
    _, eve = file.add("eve2", ["admin"])
    reload(gate)
    assert known(gate, eve).wait_s() == 0, "and nobody else does"


@in_loop
async def test_tokens_are_taken_and_end_with_their_time(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    policy = Policy(jwt=Jwt(ISSUER, AUDIENCE, tmp_path / "secret", ("HS256",)))
    gate = Gate(policy, KeyFile(tmp_path / "keys.json"))
    assert not gate.is_open
    text = signed(exp=int(time.time()) + 2 - LEEWAY_S)
    caller = gate.caller([bearer(text)])
    assert (caller.name, caller.may("consume", "a"), caller.may("consume", "b")) == ("token:bob", True, False)
    await asyncio.wait_for(caller.ended(), 60)
    await until(lambda: gate.remembered(text.encode()) is None)
    assert "expired" in refusal(gate, bearer(text))


def test_new_keys_of_an_issuer_end_the_tokens_of_the_old(tokens: Policy, file: KeyFile) -> None:
    """This includes callers that the gate had to drop from its cache meanwhile, as it does when a key changes."""
    file.add("one", ["admin"])
    gate = Gate(tokens, file)
    old, text = signed(), signed(sub="carol")
    callers = [gate.caller([bearer(old)]), gate.caller([bearer(text)])]
    file.add("two", ["admin"])
    reload(gate)
    assert [caller.until > time.time() for caller in callers] == [True, True]
    assert tokens.jwt is not None
    tokens.jwt.keys.write_text(OTHER)
    reload(gate)
    assert [caller.until for caller in callers] == [0.0, 0.0]
    assert "not accepted" in refusal(gate, bearer(old))
    assert gate.caller([bearer(signed(OTHER))]).name == "token:bob"


def test_a_damaged_file_does_not_hide_what_else_has_changed(tokens: Policy, file: KeyFile) -> None:
    gate = Gate(tokens, file)
    file.path.write_text("{")
    assert tokens.jwt is not None
    tokens.jwt.keys.write_text(OTHER)
    reload(gate)
    assert gate.caller([bearer(signed(OTHER))]).name == "token:bob"


@contextmanager
def no_file_opens() -> Iterator[None]:
    """Let the process have no free file descriptor while in the block, as during a flood of connections (EMFILE)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_revocation_is_seen_though_the_first_read_fails(file: KeyFile, caplog: pytest.LogCaptureFixture) -> None:
    _, text = file.add("bob", ["admin"])
    gate = Gate(keys=file)
    caller = known(gate, text)
    file.revoke("bob")
    with no_file_opens():
        reload(gate)
        reload(gate)
    assert len(caplog.records) == 1, "it is told once"
    reload(gate)
    assert caller.until == 0.0
    assert "this key is unknown" in refusal(gate, bearer(text))


def test_new_keys_of_an_issuer_are_seen_though_the_first_read_fails(tokens: Policy, file: KeyFile) -> None:
    gate = Gate(tokens, file)
    caller = gate.caller([bearer(signed())])
    assert tokens.jwt is not None
    tokens.jwt.keys.write_text(OTHER)
    with no_file_opens():
        reload(gate)
    reload(gate)
    assert caller.until == 0.0
    assert gate.caller([bearer(signed(OTHER))]).name == caller.name


def test_what_changes_while_a_gate_is_made_is_seen(
    tokens: Policy, file: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tokens.jwt is not None
    keys = tokens.jwt.keys

    class Slow(TokenVerifier):
        def __init__(self, policy: Jwt) -> None:
            super().__init__(policy)
            keys.write_text(OTHER)

    with monkeypatch.context() as patched:
        patched.setattr("penstock.core.access.gate.TokenVerifier", Slow)
        gate = Gate(tokens, file)
    reload(gate)
    assert gate.caller([bearer(signed(OTHER))])
