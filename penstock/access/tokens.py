"""JSON Web Tokens of others: checked with keys that stand in a file here, and never with one that a token names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.access.grants import Grants, known_grants
from penstock.access.policy import SHARED, Jwt
from penstock.errors import DeclarationError, MissingTool, StorageError, Unauthorized
from penstock.files import read_own

LEEWAY_S = 30
"""By how much the clocks of the issuer and of this machine may differ."""
TOKEN_CHARS_MAX = 8 * 1024
SUBJECT_CHARS_MAX = 200
SECRET_BYTES_MIN = {"HS256": 32, "HS384": 48, "HS512": 64}
"""As RFC 7518 has it: as long as the hash."""
_TYPES = ("jwt", "at+jwt", "application/jwt", "application/at+jwt")
_OF_ITSELF = ("exp", "iat", "nbf", "jti", "auth_time")
_PRIVATE = "[jwt] keys: {} has a private key; the public one is enough, and safer"
Usable = tuple[Any, list[str]]
"""A key, and the algorithms that it may be used with."""
Given = tuple[str | None, Any, Sequence[str]]
"""The id of a key, the key, and the algorithms that it is meant for."""


class Token(NamedTuple):
    """What a token that is good says."""

    subject: str
    grants: Grants
    until: float
    claims: Mapping[str, Any]


class Tokens:
    """Checks tokens by one policy. Reads the file of keys when it is made, so not in the event loop."""

    def __init__(self, policy: Jwt) -> None:
        try:
            import jwt
        except ImportError:
            raise MissingTool("tokens need PyJWT: pip install 'penstock[jwt]'") from None
        self._jwt = jwt
        self._policy = policy
        self._keys = self._read()

    def check(self, text: str) -> Token:
        """Raise `Unauthorized`, with the reason, unless the token is sound, for us, and of now."""
        jwt, policy = self._jwt, self._policy
        if len(text) > TOKEN_CHARS_MAX:
            raise Unauthorized("the token is too long")
        try:
            header = jwt.get_unverified_header(text)
            if str(header.get("typ", "JWT")).lower() not in _TYPES:
                raise Unauthorized("the token is of another type than JWT")
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
            raise Unauthorized(f"the subject of a token has 1 to {SUBJECT_CHARS_MAX} characters that can be printed")
        return Token(subject, known_grants(_words(claims.get(policy.claim))), until, _lasting(claims))

    def _key(self, header: Mapping[str, Any]) -> Usable:
        """The key that the token says it was signed with, among ours, and the algorithms it is good for."""
        named = header.get("kid")
        if len(self._keys) == 1 and (named is None or None in self._keys):
            return next(iter(self._keys.values()))
        if not isinstance(named, str) or named not in self._keys:
            raise Unauthorized("the token was signed with a key that is not known here")
        return self._keys[named]

    def _read(self) -> dict[str | None, Usable]:
        """The keys by their ids; under None the only one, if it has none."""
        policy = self._policy
        try:
            content = read_own(policy.keys)
        except StorageError as error:
            raise DeclarationError(f"[jwt] keys: {error}") from None
        except OSError as error:
            raise DeclarationError(f"[jwt] keys: {policy.keys} cannot be read: {error.strerror}") from None
        if policy.algorithms[0] in SHARED:
            return {None: (_secret(content.strip(), policy), list(policy.algorithms))}
        if b"-----BEGIN" in content:
            return self._named([(None, _public(content, policy), policy.algorithms)])
        return self._named(self._key_set(content))

    def _key_set(self, content: bytes) -> Iterator[Given]:
        """The keys of a set that are there to check signatures. Those of a kind that is not known are passed over."""
        policy = self._policy
        try:
            listed = [dict(each) for each in json.loads(content)["keys"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DeclarationError(f"[jwt] keys: {policy.keys} is no set of keys ({type(error).__name__})") from None
        for each in listed:
            if "d" in each:
                raise DeclarationError(_PRIVATE.format(policy.keys))
            with suppress(self._jwt.PyJWTError):
                key = self._jwt.PyJWK(each)
                if each.get("use", "sig") == "sig":
                    yield each.get("kid"), key.key, [key.algorithm_name] if each.get("alg") else policy.algorithms

    def _named(self, keys: Iterable[Given]) -> dict[str | None, Usable]:
        """Each key with the algorithms that it fits. One that is too short fits none."""
        policy, usable = self._policy, dict[str | None, Usable]()
        for name, key, algorithms in keys:
            fitting = [each for each in algorithms if each in policy.algorithms and self._fits(each, key)]
            if not fitting:
                continue
            if name in usable or (None in (name, *usable) and usable):
                raise DeclarationError(
                    f"[jwt] keys: {policy.keys} has keys that no `kid`, or the same one, tells apart"
                )
            usable[name] = key, fitting
        if not usable:
            raise DeclarationError(f"[jwt] keys: {policy.keys} has no key for {', '.join(policy.algorithms)}")
        return usable

    def _fits(self, algorithm: str, key: Any) -> bool:
        try:
            made = self._jwt.get_algorithm_by_name(algorithm)
            return not made.check_key_length(made.prepare_key(key))
        except (self._jwt.PyJWTError, TypeError, ValueError):
            return False


def _lasting(claims: Mapping[str, Any]) -> dict[str, Any]:
    """What a token says of its subject, and not of itself: the next one says the same."""
    return {name: value for name, value in claims.items() if name not in _OF_ITSELF}


def _words(claim: Any) -> list[str]:
    """Grants as one text with spaces, which is the standard for `scope`, or as a list."""
    if isinstance(claim, str):
        return claim.split()
    return [each for each in claim if isinstance(each, str)] if isinstance(claim, list) else []


def _secret(content: bytes, policy: Jwt) -> bytes:
    least = max(SECRET_BYTES_MIN[each] for each in policy.algorithms)
    if len(content) < least:
        raise DeclarationError(f"[jwt] keys: the secret in {policy.keys} has fewer than {least} bytes")
    return content


def _public(content: bytes, policy: Jwt) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if b"PRIVATE KEY" in content:
        raise DeclarationError(_PRIVATE.format(policy.keys))
    try:
        return load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise DeclarationError(f"[jwt] keys: {policy.keys} is no public key in PEM") from None


def looks_like(text: str) -> bool:
    """Whether this may be a token: three parts with dots."""
    return text.count(".") == 2
