"""From the credentials of a request to its caller."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from penstock.core.access import EVERYTHING, Certified, Gate, KeyFile, Policy, subprotocol
from penstock.core.access import gate as gates
from penstock.core.access.certificates import names
from penstock.core.access.grants import grants
from penstock.core.access.policy import CertificateClient, TlsPolicy
from tests.access.support import OTHER, bearer, known, protocols, refusal, signed


def test_an_open_gate_asks_nobody(file: KeyFile) -> None:
    gate = Gate(keys=file)
    assert gate.is_open
    for headers in ([], [bearer("rubbish")], [(b"authorization", b"Basic xx")], [bearer("a"), bearer("b")]):
        caller = gate.caller(headers)
        assert caller is gate.anyone
        assert (caller.name, caller.until, caller.wait_s()) == ("", math.inf, 0)
        assert caller.may("produce", "x")
        assert caller.may("consume", EVERYTHING)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer   ",
        b"Basic Ym9iOmJvYg==",
        b"KEY",
        b"Token KEY",
        b"Bearer\tKEY",
        b"BearerKEY",
    ],
)
def test_a_header_that_is_no_bearer_is_refused_and_not_repeated(file: KeyFile, header: bytes) -> None:
    _, text = file.add("bob", ["admin"])
    gate = Gate(keys=file)
    message = refusal(gate, (b"authorization", header.replace(b"KEY", text.encode())))
    assert message == "send `Authorization: Bearer KEY`"


@pytest.mark.parametrize(
    "spelled", [b"Bearer KEY", b"bearer KEY", b"BEARER KEY", b"Bearer  KEY", b" Bearer KEY ", b"Bearer KEY\t"]
)
def test_a_bearer_is_known_however_it_is_spelled(file: KeyFile, spelled: bytes) -> None:
    _, text = file.add("bob", ["admin"])
    header = (b"authorization", spelled.replace(b"KEY", text.encode()))
    assert Gate(keys=file).caller([header]).name == "key:bob"


def test_two_credentials_are_refused_whichever_they_are(file: KeyFile) -> None:
    _, text = file.add("bob", ["admin"])
    gate = Gate(keys=file)
    known(gate, text)
    word = f"penstock.key.{text}"
    for pair in (
        [bearer(text), bearer(text)],
        [bearer(text), bearer("x")],
        [bearer("x"), bearer(text)],
        [bearer(text), protocols(word)],
        [protocols(word, word)],
        [protocols(word), protocols(word)],
    ):
        assert refusal(gate, *pair) == "send one key, not two"


def test_a_page_sends_its_key_as_a_protocol(file: KeyFile) -> None:
    _, text = file.add("bob", ["admin"])
    gate = Gate(keys=file)
    assert gate.caller([protocols("penstock.v1", f"penstock.key.{text}")]).name == "key:bob"
    assert gate.caller([protocols(f"penstock.key.{text}")]).name == "key:bob"
    assert "a key is required" in refusal(gate, protocols("penstock.v1"))
    assert "not a Penstock key" in refusal(gate, protocols("penstock.v1", "penstock.key."))
    assert subprotocol({"subprotocols": ["penstock.v1", f"penstock.key.{text}"]}) == "penstock.v1"
    assert subprotocol({"subprotocols": [f"penstock.key.{text}"]}) is None
    assert subprotocol({}) is None


def test_tokens_of_one_subject_share_its_rate(tokens: Policy) -> None:
    gate = Gate(tokens)
    first, second = (gate.caller([bearer(signed(jti=token_id))]) for token_id in ("1", "2"))
    first.spend(1000)
    assert second.wait_s() > 100
    assert gate.caller([bearer(signed(sub="eve"))]).wait_s() == 0


def test_only_so_many_are_remembered(tokens: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "REMEMBERED_MAX", 10)
    gate = Gate(tokens)
    first = gate.caller([bearer(signed())])
    first.spend(1000)
    for number in range(50):
        gate.caller([bearer(signed(jti=str(number)))])
        assert len(gate._remembered) <= 10
    for text in ("rubbish", signed(OTHER)):
        refusal(gate, bearer(text))
        assert gate.remembered(text.encode()) is None
    assert gate.caller([bearer(signed())]).wait_s() > 100


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("sensor.example",), "certificate:sensor.example"),
        (("other.example", "sensor.example"), "certificate:sensor.example"),
        (("sensor.example", "reader.example"), "certificate:sensor.example"),
        (("other.example",), None),
        (("SENSOR.example",), None),
        (("x.sensor.example",), None),
        ((), None),
    ],
)
def test_a_certificate_gives_what_its_name_is_granted(tmp_path: Path, names: tuple[str, ...], expected: str) -> None:
    clients = {
        "sensor.example": CertificateClient(grants(["produce:a"]), 7.0),
        "reader.example": CertificateClient(grants(["consume:a"])),
    }
    gate = Gate(Policy(clients=clients))
    if expected is None:
        says = "is not enough here; send a key as well" if names else "a key is required"
        assert says in refusal(gate, certified=names)
        return
    caller = gate.caller([], Certified(names))
    assert (caller.name, caller.may("produce", "a"), caller.may("consume", "a")) == (expected, True, False)
    caller.spend(1000)
    assert gate.caller([], Certified(names)).wait_s() > 100, "its rate goes on with the next connection"


def test_a_certificate_is_good_for_work_without_a_request_only_as_long_as_it_lasts() -> None:
    """Work that it has registered belongs to its caller and ends with it; the name alone grants nothing."""
    gate = Gate(Policy(clients={"sensor.example": CertificateClient(grants(["consume:a"]))}))
    assert gate.caller([], Certified(("sensor.example",), 4e9)).until == 4e9
    assert gate.current_caller("certificate:sensor.example") is None


def test_a_key_counts_before_a_certificate(file: KeyFile) -> None:
    _, text = file.add("bob", ["consume:b"])
    gate = Gate(Policy(clients={"sensor.example": CertificateClient(grants(["admin"]))}), file)
    assert gate.caller([bearer(text)], Certified(("sensor.example",))).name == "key:bob"
    assert "not a Penstock key" in refusal(gate, bearer("rubbish"), certified=("sensor.example",))


def test_certificates_alone_ask_nobody_for_a_name(tmp_path: Path) -> None:
    """Encryption does not prove an identity; but names are required if something is granted to a name."""
    assert not Policy(tls=TlsPolicy(tmp_path / "c", tmp_path / "k")).authenticates


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("DNS", "truck.example"),
        ("URI", "spiffe://example/reader"),
        ("URI", "urn:device:7"),
        ("email", "ops@plant.example"),
        ("IP Address", "10.0.0.1"),
        ("IP Address", "2001:DB8:0:0:0:0:0:1"),
    ],
)
def test_a_name_in_a_certificate_counts_as_its_own_kind_only(kind: str, value: str) -> None:
    """An email address `truck.example` is not the host of that name, although they look the same."""
    for other in ("DNS", "URI", "email", "IP Address", "othername", "Registered ID"):
        identities = names({"subject": ((("commonName", value),),), "subjectAltName": ((other, value),)})
        assert identities == ((value,) if other == kind else ())
    assert names({"subject": ((("commonName", value),),)}) == (value,)
