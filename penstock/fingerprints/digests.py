"""Digest of a sequence of tokens, unambiguous: each token carries its type and its length."""

from __future__ import annotations

from hashlib import blake2b

DIGEST_BYTES = 16


class Tokens:
    """A running digest. Two sequences of tokens have the same digest only if they are equal."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def put(self, *tokens: str | bytes | int | None) -> None:
        for each in tokens:
            if isinstance(each, bytes):
                kind, data = b"b", each
            elif isinstance(each, str):
                kind, data = b"s", each.encode("utf-8", "surrogatepass")
            elif isinstance(each, int):
                kind, data = b"i", str(int(each)).encode()
            else:
                kind, data = b"n", b""
            self._hash.update(b"%s%d:" % (kind, len(data)))
            self._hash.update(data)

    def hex(self) -> str:
        return self._hash.hexdigest()


def digest(*tokens: str | bytes | int | None) -> str:
    """Digest of the tokens as hexadecimal text."""
    made = Tokens()
    made.put(*tokens)
    return made.hex()
