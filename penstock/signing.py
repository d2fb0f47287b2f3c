"""Signatures of webhooks, by the Standard Webhooks specification: made here, and checked by whoever receives one.

    webhook-id          the same on every try of a message, and of no other: who has done it once leaves it out
    webhook-timestamp   when this try was made, in seconds since 1970
    webhook-signature   `v1,` and a HMAC-SHA256 of `ID.TIMESTAMP.BODY` in base64; several of them while secrets change

A secret is `whsec_` and 24 to 64 random bytes in base64.
"""

from __future__ import annotations

import binascii
import hmac
import re
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence

from penstock.errors import BadSignature

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
PREFIX = "whsec_"
TOLERANCE_S = 300
SECRET_BYTES, SECRET_BYTES_MIN, SECRET_BYTES_MAX = 32, 24, 64
SIGNATURES_MAX = 16
"""More than that in one header are not looked at: each costs a hash of the body."""
_digits = re.compile(r"[0-9]{1,15}", re.ASCII).fullmatch


def new_secret() -> str:
    return PREFIX + b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def secret_bytes(text: str) -> bytes:
    """The key that a secret stands for. `ValueError`, without the text, if it is no secret."""
    try:
        key = b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not text.startswith(PREFIX) or not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise ValueError(
            f"a secret is {PREFIX} and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes in base64; this is none"
        )
    return key


def sign(given: Sequence[str], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a message, with one signature for each secret."""
    signed = [_signature(secret_bytes(secret), id, str(timestamp), body) for secret in given]
    return {ID: id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signed)}


def verify(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_s: float = TOLERANCE_S,
    now: float | None = None,
) -> str:
    """The id of a message that was signed with one of the secrets not long ago. `BadSignature` if it was not.

    `body` are the bytes that came, before anything has parsed them. Remember the id for as long as tries may come, and
    leave out what comes again: that makes it once.
    """
    given = (secret,) if isinstance(secret, str) else secret
    found = {name.lower(): value for name, value in headers.items()}
    try:
        id, timestamp, signatures = found[ID], found[TIMESTAMP], found[SIGNATURE]
    except KeyError as missing:
        raise BadSignature(f"the header {missing.args[0]} is missing") from None
    if not id or not _digits(timestamp):
        raise BadSignature(f"{ID} or {TIMESTAMP} is malformed")
    if abs((time.time() if now is None else now) - int(timestamp)) > tolerance_s:
        raise BadSignature(f"this was signed more than {tolerance_s:g} seconds ago, or the clocks differ by as much")
    if not _signed(given, id, timestamp, body, signatures):
        raise BadSignature("no signature fits this message and secret")
    return id


def _signed(given: Sequence[str], id: str, timestamp: str, body: bytes, signatures: str) -> bool:
    offered = [each.encode(errors="replace") for each in signatures.split()[:SIGNATURES_MAX]]
    fits = False
    for secret in given:
        wanted = _signature(secret_bytes(secret), id, timestamp, body).encode()
        for each in offered:
            fits |= hmac.compare_digest(wanted, each)
    return fits


def _signature(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    digest = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, "sha256")
    return "v1," + b64encode(digest).decode()
