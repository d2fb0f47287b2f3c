"""The key of a data directory that signs acknowledgements, and acknowledgements that it did not sign."""

from __future__ import annotations

import logging
import stat
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

import msgspec
import pytest

from penstock.core.cursor import MAC_BYTES, Ack, AckSigner, Span
from penstock.core.errors import DiskFull, NewerFormat, StorageError
from penstock.runtime.embedded import ack_key
from penstock.runtime.embedded.ack_key import KEY_BYTES, read_or_create_key
from tests.runtime.guarded import Running, running


def test_a_key_is_made_once_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "ack_key.json"
    key = read_or_create_key(path)
    assert len(key) == KEY_BYTES
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_create_key(path) == key
    assert read_or_create_key(tmp_path / "other.json") != key
    assert [path.name for path in tmp_path.iterdir()].count("ack_key.json") == 1


def test_a_key_is_durable_before_it_signs_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bool] = []

    def write(path: Path, data: bytes, *, durable: bool) -> None:
        written.append(durable)
        path.write_bytes(data)

    monkeypatch.setattr(ack_key, "write_atomic", write)
    read_or_create_key(tmp_path / "ack_key.json")
    read_or_create_key(tmp_path / "ack_key.json")
    assert written == [True]


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ack_key, "write_atomic", full)
    with pytest.raises(DiskFull):
        read_or_create_key(tmp_path / "ack_key.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"format": 1}', b'{"format": 1, "key": "c2hvcnQ="}'])
def test_a_damaged_key_is_replaced_and_that_is_logged(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ack_key.json"
    path.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        key = read_or_create_key(path)
    assert f"{path} is damaged" in caplog.text
    assert read_or_create_key(path) == key


def test_a_key_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ack_key.json"
    path.write_bytes(b'{"format": 2, "keys": []}')
    with pytest.raises(NewerFormat):
        read_or_create_key(path)
    assert path.read_bytes() == b'{"format": 2, "keys": []}'


def asked(gateway: Running, ack: str) -> tuple[int, str, str]:
    answer = gateway.get(f"/v1/acks/{ack}").json()
    return answer.get("status", 200), answer.get("code", ""), answer.get("detail", "")


def test_only_what_the_gateway_has_signed_is_answered_also_after_a_restart(tmp_path: Path) -> None:
    """A forged one, of an existing event, gets the same answer as a malformed one."""
    with running(tmp_path / "data") as gateway:
        ack = gateway.post("a").json()["ack"]
        assert asked(gateway, ack)[0] == 200
        data = urlsafe_b64decode(ack + "=" * (-len(ack) % 4))[:-MAC_BYTES]
        payload = msgspec.msgpack.decode(data, type=Ack)
        assert payload.stream == "a"
        wider = Ack(payload.stream, payload.generation, (Span(payload.spans[0].partition, 0, 1),))
        unsigned = urlsafe_b64encode(data).decode().rstrip("=")
        for forged in (unsigned, AckSigner().sign(wider), AckSigner(b"").sign(payload), ack[:-1], "rubbish"):
            detail = f"{forged[:80]!r} is not an acknowledgement; use the `ack` from a response"
            assert asked(gateway, forged) == (404, "not_found", detail)
    with running(tmp_path / "data") as gateway:
        assert asked(gateway, ack)[0] == 200
    with running(tmp_path / "other") as gateway:
        gateway.post("a")
        assert asked(gateway, ack)[0] == 404


def test_a_key_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ack_key.json"
    read_or_create_key(path)
    path.chmod(0o666)
    with pytest.raises(StorageError, match=f"run: chmod go-w {path}"):
        read_or_create_key(path)
