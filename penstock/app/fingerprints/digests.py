"""Unambiguous digests of token sequences: each token carries its type and its length."""

from __future__ import annotations

from hashlib import blake2b

DIGEST_BYTES = 16


class TokenDigest:
    """A running digest. Two sequences of tokens have the same digest only if they are equal."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def put(self, *tokens: str | bytes | int | None) -> None:
        for token in tokens:
            if isinstance(token, bytes):
                kind, data = b"b", token
            elif isinstance(token, str):
                kind, data = b"s", token.encode("utf-8", "surrogatepass")
            elif isinstance(token, int):
                kind, data = b"i", str(int(token)).encode()
            else:
                kind, data = b"n", b""
            self._hash.update(b"%s%d:" % (kind, len(data)))
            self._hash.update(data)

    def hex(self) -> str:
        return self._hash.hexdigest()


def digest(*tokens: str | bytes | int | None) -> str:
    """Return the fingerprint of a sequence of tokens as hexadecimal text."""
    token_digest = TokenDigest()
    token_digest.put(*tokens)
    return token_digest.hex()
