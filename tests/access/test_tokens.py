"""Tokens of other issuers: the accepted ones, and all reasons for refusing one."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from penstock.core.access.grants import ALL, Grants
from penstock.core.access.policy import Jwt
from penstock.core.access.tokens import LEEWAY_S, SUBJECT_CHARS_MAX, TOKEN_CHARS_MAX, TokenVerifier
from penstock.core.errors import DeclarationError, Unauthorized

ISSUER, AUDIENCE = "https://id.example", "penstock"
PAST, FUTURE = 1_000_000_000, 4_000_000_000
SECRET = "correct horse battery staple, and more of it " * 2


@cache
def private(kind: str) -> Any:
    """Return a key of each kind, created once because an RSA key takes long."""
    if kind.startswith("RSA"):
        return rsa.generate_private_key(65537, int(kind.removeprefix("RSA") or 2048))
    return ed25519.Ed25519PrivateKey.generate() if kind == "Ed" else ec.generate_private_key(ec.SECP256R1())


def public_pem(kind: str) -> bytes:
    pem: bytes = private(kind).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


def jwk(kind: str, **more: str) -> dict[str, Any]:
    maker: Any = jwt.get_algorithm_by_name({"R": "RS256", "E": "EdDSA"}.get(kind[0] if kind != "EC" else "", "ES256"))
    return dict(json.loads(maker.to_jwk(private(kind).public_key()))) | more


def claims(**other: Any) -> dict[str, Any]:
    payload = {"iss": ISSUER, "aud": AUDIENCE, "sub": "bob", "exp": int(time.time()) + 60, "scope": "consume:a"} | other
    return {name: value for name, value in payload.items() if value is not None}


def sign(kind: str = "RSA", algorithm: str = "RS256", headers: dict[str, Any] | None = None, **other: Any) -> str:
    return jwt.encode(claims(**other), private(kind), algorithm, headers=headers)


def part(value: Any) -> str:
    return (
        base64.urlsafe_b64encode(value if isinstance(value, bytes) else json.dumps(value).encode()).decode().rstrip("=")
    )


@pytest.fixture
def verifier(tmp_path: Path) -> Callable[..., TokenVerifier]:
    def make(content: bytes | str | list[Any], *algorithms: str, **more: Any) -> TokenVerifier:
        path = tmp_path / "keys"
        raw = json.dumps({"keys": content}) if isinstance(content, list) else content
        path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
        return TokenVerifier(Jwt(ISSUER, AUDIENCE, path, algorithms or Jwt.algorithms, **more))

    return make


MakeVerifier = Callable[..., TokenVerifier]


def refusal(tokens: TokenVerifier, text: str) -> str:
    with pytest.raises(Unauthorized) as refused:
        tokens.check(text)
    assert text[-20:] not in refused.value.message or not text
    assert len(refused.value.message) < 200
    return refused.value.message


@pytest.mark.parametrize(
    ("kind", "algorithm"), [("RSA", "RS256"), ("RSA", "PS256"), ("RSA", "RS512"), ("EC", "ES256"), ("Ed", "EdDSA")]
)
def test_a_sound_token_is_taken_by_pem_and_by_set(verifier: MakeVerifier, kind: str, algorithm: str) -> None:
    until = int(time.time()) + 100
    token = sign(kind, algorithm, exp=until)
    for content in (public_pem(kind), b"a line before\n" + public_pem(kind), [jwk(kind)], [jwk(kind, kid="k")]):
        verified_token = verifier(content, algorithm).check(token)
        assert verified_token[:3] == ("bob", Grants((), ("a",)), until + LEEWAY_S)
        assert verified_token.claims["sub"] == "bob"


@pytest.mark.parametrize(
    ("claim", "value", "expected"),
    [
        ("scope", "consume:a openid profile produce:b", Grants(("b",), ("a",))),
        ("scope", ["consume:a", "openid", 7, None, {}], Grants((), ("a",))),
        ("scope", "openid email Admin consume: consume:a/b", Grants()),
        ("scope", {"admin": True}, Grants()),
        ("scope", None, Grants()),
        ("scope", "", Grants()),
        ("roles", ["admin"], ALL),
        ("roles", "admin", ALL),
    ],
)
def test_grants_are_the_words_that_are_known(verifier: MakeVerifier, claim: str, value: Any, expected: Grants) -> None:
    token = sign(**({"scope": None} | {claim: value}))
    assert verifier(public_pem("RSA"), claim=claim).check(token).grants == expected


@pytest.mark.parametrize(
    "other",
    [
        {"aud": "another"}, {"aud": ["another"]}, {"aud": None}, {"aud": ""}, {"aud": 7}, {"iss": "https://evil.example"},
        {"iss": None}, {"iss": ISSUER + "/"}, {"iss": [ISSUER]}, {"exp": None}, {"exp": "soon"}, {"exp": []},
        {"exp": PAST}, {"exp": -1}, {"sub": None}, {"sub": 7}, {"sub": ["bob"]}, {"sub": ""},
        {"sub": "a\nb"}, {"sub": "\ud800"},
        {"sub": "x" * (SUBJECT_CHARS_MAX + 1)}, {"nbf": FUTURE},
        {"iat": FUTURE}, {"nbf": "later"},
    ],
    ids=str,
)  # fmt: skip
def test_a_token_for_others_or_for_another_time_is_refused(verifier: MakeVerifier, other: dict[str, Any]) -> None:
    payload = {name: value for name, value in (claims() | other).items() if value is not None}
    token = jwt.api_jws.encode(json.dumps(payload).encode(), private("RSA"), "RS256")
    refusal(verifier(public_pem("RSA")), token)


def test_clocks_may_differ_a_little(verifier: MakeVerifier) -> None:
    tokens, now = verifier(public_pem("RSA")), int(time.time())
    assert tokens.check(sign(exp=now - 5, nbf=now + 5)).until == now - 5 + LEEWAY_S
    assert refusal(tokens, sign(exp=now - LEEWAY_S - 1)) == "the token has expired; get a new one"


def test_a_time_may_be_written_as_text_and_is_read_as_a_number(verifier: MakeVerifier) -> None:
    """PyJWT accepts it, so the code that uses the claim has to accept it too."""
    until = int(time.time()) + 60
    assert verifier(public_pem("RSA")).check(sign(exp=str(until))).until == until + LEEWAY_S


def test_a_token_without_a_signature_is_refused(verifier: MakeVerifier) -> None:
    for name in ("none", "None", "NONE", "", None):
        head = part({"alg": name, "typ": "JWT"})
        for content in (public_pem("RSA"), [jwk("RSA", kid="k")]):
            refusal(verifier(content), f"{head}.{part(claims())}.")
            refusal(verifier(content), f"{head}.{part(claims())}.{part(b'x' * 256)}")
    refusal(verifier(SECRET, "HS256"), f"{part({'alg': 'none'})}.{part(claims())}.")
    good = sign()
    refusal(verifier(public_pem("RSA")), good.rpartition(".")[0] + ".")


@pytest.mark.parametrize("content", ["pem", "set"])
def test_a_public_key_is_never_a_secret(verifier: MakeVerifier, content: str) -> None:
    """The oldest attack: sign with HMAC, with the public key as secret."""
    tokens = verifier(public_pem("RSA") if content == "pem" else [jwk("RSA")])
    signed = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(claims())}"
    for secret in (public_pem("RSA"), public_pem("RSA").strip(), json.dumps(jwk("RSA")).encode(), b""):
        refusal(tokens, f"{signed}.{part(hmac.digest(secret, signed.encode(), hashlib.sha256))}")


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "RS512", "HS256"])
def test_a_key_is_used_with_the_algorithm_that_it_is_for(verifier: MakeVerifier, algorithm: str) -> None:
    tokens = verifier([jwk("RSA", alg="RS384", kid="k")], "RS256", "RS384", "PS256", "RS512")
    key = SECRET if algorithm == "HS256" else private("RSA")
    refusal(tokens, jwt.encode(claims(), key, algorithm, headers={"kid": "k"}))
    assert tokens.check(sign("RSA", "RS384", {"kid": "k"})).subject == "bob"


def test_a_set_has_keys_of_several_kinds(verifier: MakeVerifier) -> None:
    ignored = [jwk("EC", kid="enc", use="enc"), {"kty": "oct", "k": part(SECRET.encode()), "kid": "s"}, {"kty": "new"}]
    tokens = verifier([*ignored, jwk("RSA", kid="r", use="sig"), jwk("EC", kid="e"), jwk("Ed", kid="d")])
    for kind, algorithm, name in (("RSA", "RS256", "r"), ("EC", "ES256", "e"), ("Ed", "EdDSA", "d")):
        assert tokens.check(sign(kind, algorithm, {"kid": name})).subject == "bob"
        others = [other for other in ("r", "e", "d", "enc", "s", "x", None) if other != name]
        for other in others:
            refusal(tokens, sign(kind, algorithm, {} if other is None else {"kid": other}))
    refusal(tokens, jwt.encode(claims(), SECRET, "HS256", headers={"kid": "s"}))


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/dev/null", "k\x00", "http://evil.example/k", "k' OR '1'='1", ""]
)
def test_the_name_of_a_key_is_a_name_and_nothing_else(verifier: MakeVerifier, name: str) -> None:
    assert "signed with an unknown key" in refusal(verifier([jwk("RSA", kid="k")]), sign(headers={"kid": name}))
    assert verifier(public_pem("RSA")).check(sign(headers={"kid": name})).subject == "bob", "there is one key only"


def test_a_key_that_a_token_brings_along_is_ignored(verifier: MakeVerifier) -> None:
    mine = jwk("EC", kid="k")
    brought = {
        "jwk": mine,
        "jku": "http://127.0.0.1:1/keys",
        "x5u": "http://127.0.0.1:1/c",
        "x5c": ["AAAA"],
        "kid": "k",
    }
    tokens = verifier([jwk("RSA", kid="k")])
    refusal(tokens, sign("EC", "ES256", brought))
    assert tokens.check(sign(headers=brought)).subject == "bob"


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "application/at+jwt", "dpop+jwt", "JWE", 7])
def test_a_token_says_that_it_is_one(verifier: MakeVerifier, typ: Any) -> None:
    tokens, head = verifier(public_pem("RSA")), {"alg": "RS256", "typ": typ}
    signed = f"{part(head)}.{part(claims())}"
    token = f"{signed}.{part(jwt.get_algorithm_by_name('RS256').sign(signed.encode(), private('RSA')))}"
    if typ in ("dpop+jwt", "JWE", 7):
        refusal(tokens, token)
    else:
        assert tokens.check(token).subject == "bob"


@pytest.mark.parametrize(
    "text",
    [
        "..", "a.b.c", ".".join(["AAAA"] * 3), "\u00e4.b.c", "a b.c.d", f"{part([1])}.{part({})}.", f"{part('x')}.x.x",
        f"{part({'alg': 'RS256', 'kid': ['k']})}.{part({})}.x", f"{part({'alg': 7})}.{part({})}.x",
        f"{part({'alg': 'RS256', 'crit': ['exp']})}.{part({})}.AA", f"{part(b'[' * 3000)}.x.x",
        f"{part({'alg': 'RS256', 'b64': False, 'crit': ['b64']})}..AA",
        f"{part({'alg': 'RS256'})}.{part(b'[' * 3000)}.AA",
    ],
)  # fmt: skip
def test_garbage_is_refused_and_breaks_nothing(verifier: MakeVerifier, text: str) -> None:
    for content in (public_pem("RSA"), [jwk("RSA", kid="k"), jwk("EC", kid="e")]):
        refusal(verifier(content), text)


def test_a_token_with_a_demand_that_is_not_understood_is_refused(verifier: MakeVerifier) -> None:
    refusal(verifier(public_pem("RSA")), sign(headers={"crit": ["exp"], "exp": 1}))


def test_a_huge_token_is_refused_before_it_is_looked_at(verifier: MakeVerifier) -> None:
    tokens = verifier(public_pem("RSA"))
    assert refusal(tokens, sign(more="x" * TOKEN_CHARS_MAX)) == "the token is too long"
    assert refusal(tokens, "." * 10_000_000) == "the token is too long"
    assert tokens.check(sign(more="x" * (TOKEN_CHARS_MAX // 2))).subject == "bob"


def test_a_shared_secret_is_as_long_as_its_hash(verifier: MakeVerifier) -> None:
    for algorithm, least in (("HS256", 32), ("HS384", 48), ("HS512", 64)):
        with pytest.raises(DeclarationError, match=rf"the secret in \S*keys is shorter than {least} bytes"):
            verifier(b" " + b"x" * (least - 1) + b"\n", algorithm)
        secret = SECRET[:least].strip().ljust(least, "x")
        assert verifier(secret + "\n", algorithm).check(jwt.encode(claims(), secret, algorithm)).subject == "bob"
    refusal(verifier(SECRET, "HS256"), jwt.encode(claims(), SECRET[:-2], "HS256"))
    refusal(verifier(SECRET, "HS256"), sign())


def _private_pem() -> bytes:
    pem: bytes = private("RSA").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (_private_pem, "contains a private key; the public key is enough"),
        (lambda: public_pem("RSA") + _private_pem(), "contains a private key; the public key is enough"),
        (
            lambda: [jwk("RSA", kid="a"), jwk("RSA", kid="b", d="AQAB")],
            "contains a private key; the public key is enough",
        ),
        (lambda: b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "is not a public key in PEM format"),
        (
            lambda: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "is not a public key in PEM format",
        ),
        (lambda: public_pem("RSA1024"), "has no key for RS256, ES256, EdDSA"),
        (lambda: [jwk("RSA", use="enc")], "has no key for RS256, ES256, EdDSA"),
        (lambda: [jwk("RSA", alg="PS256")], "has no key for RS256, ES256, EdDSA"),
        (lambda: [{"kty": "oct", "k": "AAAA"}], "has no key for RS256, ES256, EdDSA"),
        (list, "has no key for RS256, ES256, EdDSA"),
        (lambda: [jwk("RSA"), jwk("EC")], "contains several keys, so each needs its own `kid`"),
        (lambda: [jwk("RSA", kid="a"), jwk("EC")], "contains several keys, so each needs its own `kid`"),
        (lambda: [jwk("RSA", kid="a"), jwk("EC", kid="a")], "contains several keys, so each needs its own `kid`"),
        (lambda: b"", "is not a JSON Web Key Set"),
        (lambda: b"[]", "is not a JSON Web Key Set"),
        (lambda: b"7", "is not a JSON Web Key Set"),
        (lambda: b"{}", "is not a JSON Web Key Set"),
        (lambda: b'{"keys": 7}', "is not a JSON Web Key Set"),
        (lambda: b'{"keys": [7]}', "is not a JSON Web Key Set"),
        (lambda: b'{"keys": [null]}', "is not a JSON Web Key Set"),
        (lambda: b"[" * 100_000, "is not a JSON Web Key Set"),
        (lambda: b"\xff\xfe\x00", "is not a JSON Web Key Set"),
        (lambda: b"just a secret of more than thirty-two bytes", "is not a JSON Web Key Set"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_told_in_one_sentence(
    verifier: MakeVerifier, content: Any, says: str
) -> None:
    with pytest.raises(DeclarationError, match=says) as refused:
        verifier(content())
    assert refused.value.message.startswith("[jwt] keys: ")
    assert "thirty-two" not in refused.value.message


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"\[jwt\] keys: \S+/none cannot be read: No such file"):
        TokenVerifier(Jwt(ISSUER, AUDIENCE, tmp_path / "none"))
