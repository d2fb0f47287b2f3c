"""The access file: its settings, and one sentence for each error in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trustme

from penstock.core.access import EVERYTHING, Gate, read_policy
from penstock.core.access.policy import ASYMMETRIC, Policy
from penstock.core.errors import DeclarationError

WHOLE = """
[tls]
certificate = "server.pem"
key = "/keys/server.key"
clients = "clients.pem"
require = false

[jwt]
issuer = "https://id.example"
audience = "penstock"
keys = "jwks.json"
algorithms = ["ES256", "EdDSA"]
claim = "roles"
rate = 50

[clients."sensor-1.example"]
grants = ["produce:readings"]
rate = 2.5

[clients."spiffe://example/reader"]
grants = ["consume:*"]

[pages]
origins = ["https://shop.example", "http://localhost:3000", "https://[2001:db8::1]:8443"]
"""
TLS = '[tls]\ncertificate = "c.pem"\nkey = "k.pem"\n'
JWT = '[jwt]\nissuer = "i"\naudience = "a"\nkeys = "k"\n'
CLIENTS = f'{TLS}clients = "ca.pem"\n'


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "access.toml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_whole_file_is_read_and_paths_are_relative_to_it(tmp_path: Path) -> None:
    policy = read_policy(written(tmp_path, WHOLE))
    assert policy.tls is not None
    assert policy.jwt is not None
    assert (policy.tls.certificate, policy.tls.key) == (tmp_path / "server.pem", Path("/keys/server.key"))
    assert (policy.tls.clients, policy.tls.require) == (tmp_path / "clients.pem", False)
    assert (policy.jwt.keys, policy.jwt.algorithms) == (tmp_path / "jwks.json", ("ES256", "EdDSA"))
    assert (policy.jwt.claim, policy.jwt.rate) == ("roles", 50.0)
    assert policy.clients["sensor-1.example"].rate == 2.5
    assert policy.clients["spiffe://example/reader"].grants.may("consume", EVERYTHING)
    assert policy.authenticates
    assert policy.origins == {"https://shop.example", "http://localhost:3000", "https://[2001:db8::1]:8443"}


def test_a_list_of_origins_alone_asks_nobody_for_a_key(tmp_path: Path) -> None:
    assert not read_policy(written(tmp_path, '[pages]\norigins = ["https://shop.example"]\n')).authenticates


@pytest.mark.parametrize(
    "origin",
    [
        "*", "null", "", "shop.example", "https://*.shop.example", "https://shop.example/", "https://Shop.example",
        "https://shop.example/page", "https://shop.example?a", "https://shop.example#a", "https://user@shop.example",
        "https://shop.example:443", "http://shop.example:80", "https://", "ftp://shop.example", "https://shop.example:x",
        "https://[", "https://sh\u00f6p.example", "https://shop.example\n", "file://", "https://a b",
    ],
)  # fmt: skip
def test_what_is_no_origin_of_a_browser_is_refused(tmp_path: Path, origin: str) -> None:
    """An origin that browsers never send would be an unnoticed mistake in the list; `*` would allow everyone."""
    file = written(tmp_path, f"[pages]\norigins = [{json.dumps(origin)}]\n")
    with pytest.raises(DeclarationError, match="is not an origin"):
        read_policy(file)


@pytest.mark.parametrize(
    ("content", "authenticates"),
    [("", False), (TLS, False), (CLIENTS, False), (JWT, True), (CLIENTS + '[clients.a]\ngrants = ["admin"]', True)],
)
def test_what_can_prove_who_someone_is(tmp_path: Path, content: str, authenticates: bool) -> None:
    policy = read_policy(written(tmp_path, content))
    assert policy.authenticates is authenticates


def test_without_a_file_nothing_is_asked() -> None:
    assert read_policy(None) == Policy()
    assert Gate(read_policy(None)).is_open


def test_by_default_no_algorithm_has_a_shared_secret(tmp_path: Path) -> None:
    policy = read_policy(written(tmp_path, JWT))
    assert policy.jwt is not None
    assert set(policy.jwt.algorithms) <= set(ASYMMETRIC)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[tls", "Expected ']'"),
        (b"\xff\xfe", "utf-8"),
        ('certificate = "c"', "unknown field `certificate`"),
        ("[tsl]", "unknown field `tsl`"),
        ("tls = 1", "Expected `object | null`, got `int` - at `$.tls`"),
        ('[tls]\nkey = "k"', "missing required field `certificate` - at `$.tls`"),
        ('[tls]\ncertificate = "c"', "missing required field `key` - at `$.tls`"),
        (TLS + 'password = "x"', "unknown field `password` - at `$.tls`"),
        (TLS + 'require = "yes"', "Expected `bool`, got `str` - at `$.tls.require`"),
        ('[jwt]\nissuer = "i"\nkeys = "k"', "missing required field `audience` - at `$.jwt`"),
        ('[jwt]\nissuer = ""\naudience = "a"\nkeys = "k"', "[jwt] requires an issuer and an audience"),
        ('[jwt]\nissuer = "i"\naudience = ""\nkeys = "k"', "[jwt] requires an issuer and an audience"),
        (JWT + 'algorithms = ["RS256", "HS256"]', "[jwt] algorithms must all be from RS256"),
        (JWT + 'algorithms = ["none"]', "[jwt] algorithms must all be from RS256"),
        (JWT + "algorithms = []", "[jwt] algorithms must all be from RS256"),
        (JWT + 'algorithms = ["rs256"]', "[jwt] algorithms must all be from RS256"),
        (JWT + "algorithms = [7]", "Expected `str`, got `int` - at `$.jwt.algorithms[0]`"),
        (JWT + 'secret = "s"', "unknown field `secret` - at `$.jwt`"),
        (JWT + "rate = -1", "rate is -1; use a number"),
        (JWT + "rate = nan", "rate is nan; use a number"),
        (JWT + "rate = inf", "rate is inf; use a number"),
        (CLIENTS + '[clients.a]\ngrants = ["write:x"]', "'write:x' is not a grant"),
        (CLIENTS + '[clients.a]\ngrants = "admin"', "Expected `array`, got `str`"),
        (CLIENTS + "[clients.a]\nrate = 1", "missing required field `grants`"),
        (CLIENTS + '[clients.a]\ngrants = ["admin"]\nrate = -0.5', "rate is -0.5; use a number"),
        ('[clients.a]\ngrants = ["admin"]', "[clients] requires `clients` in [tls]"),
        (TLS + '[clients.a]\ngrants = ["admin"]', "[clients] requires `clients` in [tls]"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence_with_the_file(tmp_path: Path, content: str | bytes, says: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DeclarationError) as refused:
        read_policy(path)
    assert refused.value.message.startswith(f"{path}: ")
    assert says in refused.value.message
    assert "\n" not in refused.value.message


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"none\.toml cannot be read: No such file or directory"):
        read_policy(tmp_path / "none.toml")
    with pytest.raises(DeclarationError, match="cannot be read: Is a directory"):
        read_policy(tmp_path)


@pytest.fixture
def certified(tmp_path: Path) -> Path:
    certificate = trustme.CA().issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "c.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "k.pem")
    return written(tmp_path, CLIENTS)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("c.pem", None, r"c\.pem and \S+k\.pem cannot be used \(No such file"),
        ("k.pem", None, r"c\.pem and \S+k\.pem cannot be used \(No such file"),
        ("c.pem", "", r"c\.pem and \S+k\.pem cannot be used"),
        ("k.pem", "rubbish", r"c\.pem and \S+k\.pem cannot be used"),
        ("ca.pem", None, r"clients: \S+ca\.pem cannot be used \(No such file"),
        ("ca.pem", "", r"clients: \S+ca\.pem cannot be used"),
        ("ca.pem", "rubbish", r"clients: \S+ca\.pem cannot be used"),
    ],
)
def test_certificates_that_cannot_be_used_are_told(
    tmp_path: Path, certified: Path, name: str, content: str | None, says: str
) -> None:
    (tmp_path / name).unlink(missing_ok=True) if content is None else (tmp_path / name).write_text(content)
    with pytest.raises(DeclarationError, match=rf"\[tls\].*{says}"):
        Gate(read_policy(certified))


def test_the_key_of_another_certificate_is_told(tmp_path: Path, certified: Path) -> None:
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(tmp_path / "k.pem")
    with pytest.raises(DeclarationError, match=r"\[tls\].*MISMATCH"):
        Gate(read_policy(certified))


def test_a_key_with_a_password_is_told_and_nobody_is_asked_for_it(tmp_path: Path, certified: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    path = tmp_path / "k.pem"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    hidden = serialization.BestAvailableEncryption(b"canary-password")
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden))
    with pytest.raises(DeclarationError, match="the key is encrypted; use an unencrypted key"):
        Gate(read_policy(certified))


@pytest.mark.parametrize("name", ["access.toml", "c.pem", "k.pem", "ca.pem"])
def test_a_file_that_others_may_write_to_is_refused_with_the_command_that_fixes_it(
    tmp_path: Path, certified: Path, name: str
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    path = certified if name == "access.toml" else tmp_path / name
    path.chmod(0o666)
    with pytest.raises(DeclarationError, match=f"other users can write to {path}; run: chmod go-w {path}"):
        Gate(read_policy(certified))
    path.chmod(0o600)
    Gate(read_policy(certified))


def test_keys_of_an_issuer_that_others_may_write_to_are_refused(tokens: Policy) -> None:
    assert tokens.jwt is not None
    tokens.jwt.keys.chmod(0o666)
    with pytest.raises(DeclarationError, match=r"\[jwt\] keys: other users can write to"):
        Gate(tokens)


def test_a_private_key_that_others_may_read_is_told(
    tmp_path: Path, certified: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not an error: secrets that are mounted into a container are often readable."""
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "k.pem").chmod(0o600)
    Gate(read_policy(certified))
    assert caplog.text == ""
    (tmp_path / "k.pem").chmod(0o644)
    Gate(read_policy(certified))
    assert f"run: chmod go-r {tmp_path / 'k.pem'}" in caplog.text
