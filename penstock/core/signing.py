"""Webhook signatures that follow the Standard Webhooks specification: senders call `sign`, and receivers call `verify`.

    webhook-id          unique to a message and the same for every try; receivers use it to skip duplicates
    webhook-timestamp   the time of this try, in seconds since 1970
    webhook-signature   `v1,` and an HMAC-SHA256 of `ID.TIMESTAMP.BODY` in base64; several while secrets are rotated

A secret consists of `whsec_` followed by 24 to 64 random bytes in base64.
"""

from __future__ import annotations

import binascii
import hmac
import re
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence

from penstock.core.errors import BadSignature

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
PREFIX = "whsec_"
TOLERANCE_S = 300
SECRET_BYTES, SECRET_BYTES_MIN, SECRET_BYTES_MAX = 32, 24, 64
SIGNATURES_MAX = 16
"""Maximum number of signatures to check in a header. Each check hashes the body."""
_digits = re.compile(r"[0-9]{1,15}", re.ASCII).fullmatch


def new_secret() -> str:
    return PREFIX + b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def secret_bytes(text: str) -> bytes:
    """Return the key of a signing secret. Raises `ValueError`, with a message that does not reveal the secret, if it is
    malformed."""
    try:
        key = b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not text.startswith(PREFIX) or not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise ValueError(
            f"a secret must be {PREFIX} followed by {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes in base64"
        )
    return key


def sign(given: Sequence[str], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers for a webhook's message, with one signature for each secret."""
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
    """Verify a webhook's message and return its id. Raises `BadSignature` unless the message was signed with one of the
    secrets and its timestamp differs from the current time by at most `tolerance_s` seconds.

    `body` is the raw request body, before any parsing. To process each message only once, remember message ids for as
    long as retries can arrive, and skip messages with ids that you have already seen.
    """
    given = (secret,) if isinstance(secret, str) else secret
    values = {name.lower(): value for name, value in headers.items()}
    try:
        id, timestamp, signatures = values[ID], values[TIMESTAMP], values[SIGNATURE]
    except KeyError as missing:
        raise BadSignature(f"the header {missing.args[0]} is missing") from None
    if not id or not _digits(timestamp):
        raise BadSignature(f"{ID} or {TIMESTAMP} is malformed")
    if abs((time.time() if now is None else now) - int(timestamp)) > tolerance_s:
        raise BadSignature(f"the message is older than {tolerance_s:g} seconds, or the clocks differ by that much")
    if not _signed(given, id, timestamp, body, signatures):
        raise BadSignature("no signature matches this message and secret")
    return id


def _signed(given: Sequence[str], id: str, timestamp: str, body: bytes, signatures: str) -> bool:
    offered = [signature.encode(errors="replace") for signature in signatures.split()[:SIGNATURES_MAX]]
    fits = False
    for secret in given:
        wanted = _signature(secret_bytes(secret), id, timestamp, body).encode()
        for signature in offered:
            fits |= hmac.compare_digest(wanted, signature)
    return fits


def _signature(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    digest = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, "sha256")
    return "v1," + b64encode(digest).decode()
