"""JSON Web Tokens of others: checked with keys that stand in a file here, and never with one that a token names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.access.grants import Grants, known_grants
from penstock.access.policy import SHARED, Jwt
from penstock.errors import DeclarationError, MissingTool, Unauthorized

LEEWAY_S = 30
"""By how much the clocks of the issuer and of this machine may differ."""
TOKEN_CHARS_MAX = 8 * 1024
SECRET_BYTES_MIN = 32
_TYPES = (None, "JWT", "at+jwt")


class Token(NamedTuple):
    """What a token that is good says."""

    subject: str
    grants: Grants
    until: float


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
            if header.get("typ") not in _TYPES:
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
        except jwt.ExpiredSignatureError:
            raise Unauthorized("the token has expired; get a new one") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise Unauthorized(f"the token is not accepted ({type(error).__name__})") from None
        return Token(str(claims["sub"])[:200], known_grants(_words(claims.get(policy.claim))), claims["exp"] + LEEWAY_S)

    def _key(self, header: Mapping[str, Any]) -> tuple[Any, list[str]]:
        """The key that the token says it was signed with, among ours, and the algorithms it is good for."""
        named = header.get("kid")
        if None in self._keys:
            return self._keys[None]
        if named is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if not isinstance(named, str) or named not in self._keys:
            raise Unauthorized("the token was signed with a key that is not known here")
        return self._keys[named]

    def _read(self) -> dict[str | None, tuple[Any, list[str]]]:
        """The keys by their ids; under None the only one, if it has none."""
        policy = self._policy
        try:
            content = policy.keys.read_bytes()
        except OSError as error:
            raise DeclarationError(f"[jwt] keys: {policy.keys} cannot be read: {error.strerror}") from None
        if policy.algorithms[0] in SHARED:
            return {None: (_secret(content.strip(), policy), list(policy.algorithms))}
        if content.lstrip().startswith(b"-----BEGIN"):
            return {None: (_public(content, policy), list(policy.algorithms))}
        return self._key_set(content)

    def _key_set(self, content: bytes) -> dict[str | None, tuple[Any, list[str]]]:
        policy = self._policy
        try:
            found = self._jwt.PyJWKSet.from_json(content.decode())
        except (self._jwt.PyJWTError, ValueError, AttributeError, UnicodeDecodeError) as error:
            raise DeclarationError(f"[jwt] keys: {policy.keys} is no set of keys ({type(error).__name__})") from None
        usable = {
            each.key_id: (each.key, [each.algorithm_name])
            for each in found.keys
            if each.algorithm_name in policy.algorithms
        }
        if not usable:
            raise DeclarationError(f"[jwt] keys: {policy.keys} has no key for {', '.join(policy.algorithms)}")
        return usable


def _words(claim: Any) -> list[str]:
    """Grants as one text with spaces, which is the standard for `scope`, or as a list."""
    if isinstance(claim, str):
        return claim.split()
    return [each for each in claim if isinstance(each, str)] if isinstance(claim, list) else []


def _secret(content: bytes, policy: Jwt) -> bytes:
    if len(content) < SECRET_BYTES_MIN:
        raise DeclarationError(f"[jwt] keys: the secret in {policy.keys} has fewer than {SECRET_BYTES_MIN} bytes")
    return content


def _public(content: bytes, policy: Jwt) -> bytes:
    if b"PRIVATE KEY" in content:
        raise DeclarationError(f"[jwt] keys: {policy.keys} is a private key; the public one is enough, and safer")
    return content


def looks_like(text: str) -> bool:
    """Whether this may be a token: three parts with dots."""
    return text.count(".") == 2
