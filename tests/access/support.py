"""Helpers shared by the tests of the gate: key files, tokens, and the headers that carry them."""

from __future__ import annotations

from typing import Any

import jwt
import pytest

from penstock.core.access import Caller, Certified, Gate
from penstock.core.errors import Unauthorized
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
    """Return the caller of a key, and check that it is the same whether the gate has cached it or not."""
    first = gate.caller([bearer(text)])
    assert gate.remembered(text.encode()) is first
    assert gate.caller([bearer(text)]) is first
    return first
