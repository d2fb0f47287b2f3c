"""JSON Web Tokens from other issuers, verified with keys from a local file, never with a key supplied by a token."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.core.access.grants import Grants, known_grants
from penstock.core.access.policy import SHARED, Jwt
from penstock.core.errors import DeclarationError, MissingTool, StorageError, Unauthorized
from penstock.core.files import read_own

LEEWAY_S = 30
"""Allowed difference between the issuer's clock and this machine's clock."""
TOKEN_CHARS_MAX = 8 * 1024
SUBJECT_CHARS_MAX = 200
SECRET_BYTES_MIN = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Minimum secret lengths required by RFC 7518, which are the lengths of the hashes."""
_TYPES = ("jwt", "at+jwt", "application/jwt", "application/at+jwt")
_OF_ITSELF = ("exp", "iat", "nbf", "jti", "auth_time")
_PRIVATE = "[jwt] keys: {} contains a private key; the public key is enough, and safer"
Usable = tuple[Any, list[str]]
"""A key, and the algorithms that it can be used with."""
Given = tuple[str | None, Any, Sequence[str]]
"""A key's id, the key, and the algorithms specified for it."""


class Token(NamedTuple):
    """The contents of a valid token."""

    subject: str
    grants: Grants
    until: float
    claims: Mapping[str, Any]


class TokenVerifier:
    """Verifies tokens according to a policy. The constructor reads the key file, which blocks, so do not call it in the
    event loop."""

    def __init__(self, policy: Jwt) -> None:
        try:
            import jwt
        except ImportError:
            raise MissingTool("tokens need PyJWT: pip install 'penstock[jwt]'") from None
        self._jwt = jwt
        self._policy = policy
        self._keys = self._read()

    def check(self, text: str) -> Token:
        """Verify a token and return its contents. Raises `Unauthorized`, with the reason, if the token is invalid,
        expired, or not issued for this gateway."""
        jwt, policy = self._jwt, self._policy
        if len(text) > TOKEN_CHARS_MAX:
            raise Unauthorized("the token is too long")
        try:
            header = jwt.get_unverified_header(text)
            if str(header.get("typ", "JWT")).lower() not in _TYPES:
                raise Unauthorized("the token's type is not JWT")
            key, algorithms = self._key(header)
            claims = jwt.decode(
                text,
                key,
                algorithms=algorithms,
                audience=policy.audience,
                issuer=policy.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            until = float(int(claims["exp"]) + LEEWAY_S)
        except jwt.ExpiredSignatureError:
            raise Unauthorized("the token has expired; get a new one") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Unauthorized(f"the token is not accepted ({type(error).__name__})") from None
        subject = claims["sub"]
        if not (0 < len(subject) <= SUBJECT_CHARS_MAX and subject.isprintable()):
            raise Unauthorized(f"a token's subject must be 1 to {SUBJECT_CHARS_MAX} printable characters long")
        return Token(subject, known_grants(_claim_words(claims.get(policy.claim))), until, _subject_claims(claims))

    def _key(self, header: Mapping[str, Any]) -> Usable:
        """Return the key that the token names, and the algorithms that it can be used with."""
        named = header.get("kid")
        if len(self._keys) == 1 and (named is None or None in self._keys):
            return next(iter(self._keys.values()))
        if not isinstance(named, str) or named not in self._keys:
            raise Unauthorized("the token was signed with an unknown key")
        return self._keys[named]

    def _read(self) -> dict[str | None, Usable]:
        """Read the keys for tokens, indexed by id. A single key without an id is stored under None."""
        policy = self._policy
        try:
            content = read_own(policy.keys)
        except StorageError as error:
            raise DeclarationError(f"[jwt] keys: {error}") from None
        except OSError as error:
            raise DeclarationError(f"[jwt] keys: {policy.keys} cannot be read: {error.strerror}") from None
        if policy.algorithms[0] in SHARED:
            return {None: (_hmac_secret(content.strip(), policy), list(policy.algorithms))}
        if b"-----BEGIN" in content:
            return self._named([(None, _public_key(content, policy), policy.algorithms)])
        return self._named(self._key_set(content))

    def _key_set(self, content: bytes) -> Iterator[Given]:
        """Yield the keys in a JSON Web Key Set that verify signatures. Keys of unknown types are skipped."""
        policy = self._policy
        try:
            listed = [dict(jwk) for jwk in json.loads(content)["keys"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DeclarationError(
                f"[jwt] keys: {policy.keys} is not a JSON Web Key Set ({type(error).__name__})"
            ) from None
        for jwk in listed:
            if "d" in jwk:
                raise DeclarationError(_PRIVATE.format(policy.keys))
            with suppress(self._jwt.PyJWTError):
                key = self._jwt.PyJWK(jwk)
                if jwk.get("use", "sig") == "sig":
                    yield jwk.get("kid"), key.key, [key.algorithm_name] if jwk.get("alg") else policy.algorithms

    def _named(self, keys: Iterable[Given]) -> dict[str | None, Usable]:
        """Return the usable keys for tokens by id, each with the algorithms that it supports. Keys that support no
        algorithm, for example because they are too short, are left out."""
        policy, usable = self._policy, dict[str | None, Usable]()
        for name, key, algorithms in keys:
            fitting = [
                algorithm for algorithm in algorithms if algorithm in policy.algorithms and self._fits(algorithm, key)
            ]
            if not fitting:
                continue
            if name in usable or (None in (name, *usable) and usable):
                raise DeclarationError(f"[jwt] keys: {policy.keys} contains several keys, so each needs its own `kid`")
            usable[name] = key, fitting
        if not usable:
            raise DeclarationError(f"[jwt] keys: {policy.keys} has no key for {', '.join(policy.algorithms)}")
        return usable

    def _fits(self, algorithm: str, key: Any) -> bool:
        try:
            implementation = self._jwt.get_algorithm_by_name(algorithm)
            return not implementation.check_key_length(implementation.prepare_key(key))
        except (self._jwt.PyJWTError, TypeError, ValueError):
            return False


def _subject_claims(claims: Mapping[str, Any]) -> dict[str, Any]:
    """Return a token's claims about the subject, without the claims about the token itself, which differ from token to
    token."""
    return {name: value for name, value in claims.items() if name not in _OF_ITSELF}


def _claim_words(claim: Any) -> list[str]:
    """Return the words in a token's claim: a space-separated string, as is standard for `scope`, or a list."""
    if isinstance(claim, str):
        return claim.split()
    return [word for word in claim if isinstance(word, str)] if isinstance(claim, list) else []


def _hmac_secret(content: bytes, policy: Jwt) -> bytes:
    least = max(SECRET_BYTES_MIN[algorithm] for algorithm in policy.algorithms)
    if len(content) < least:
        raise DeclarationError(f"[jwt] keys: the secret in {policy.keys} is shorter than {least} bytes")
    return content


def _public_key(content: bytes, policy: Jwt) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if b"PRIVATE KEY" in content:
        raise DeclarationError(_PRIVATE.format(policy.keys))
    try:
        return load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise DeclarationError(f"[jwt] keys: {policy.keys} is not a public key in PEM format") from None


def looks_like(text: str) -> bool:
    """Return whether a string could be a token: three parts separated by dots."""
    return text.count(".") == 2
