"""What the tests of the gate share: files of keys, tokens, and the headers that carry them."""

from __future__ import annotations

from typing import Any

import jwt
import pytest

from penstock.access import Caller, Certified, Gate
from penstock.errors import Unauthorized
from tests.access.test_tokens import claims

SECRET = "the secret of an issuer that signs tokens by HMAC"
OTHER = "another secret of the issuer, after the first leaked"
Header = tuple[bytes, bytes]


def bearer(text: str) -> Header:
    return b"authorization", f"Bearer {text}".encode()


def protocols(*names: str) -> Header:
    return b"sec-websocket-protocol", ", ".join(names).encode()


def signed(secret: str = SECRET, **other: Any) -> str:
    return jwt.encode(claims(**other), secret, "HS256")


def reload(gate: Gate) -> None:
    gate.take(gate.look())


def refusal(gate: Gate, *headers: Header, certified: tuple[str, ...] = ()) -> str:
    with pytest.raises(Unauthorized) as refused:
        gate.caller(headers, Certified(certified))
    return refused.value.message


def known(gate: Gate, text: str) -> Caller:
    """The caller of a key, the same whether the gate remembers it or not."""
    first = gate.caller([bearer(text)])
    assert gate.remembered(text.encode()) is first
    assert gate.caller([bearer(text)]) is first
    return first
