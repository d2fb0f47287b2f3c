"""The challenge for an address: the gateway sends its receiver a random string in a signed message, and the receiver
must return the string.

This prevents anyone from pointing a webhook at somebody else's server, and shows a receiver at once whether it has the
right secret.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from penstock.core.signing import sign
from penstock.serve.webhooks.address import WebhookAddress
from penstock.serve.webhooks.transport import WebhookTransport, WebhookUnreachable


class _ChallengeResponse(msgspec.Struct):
    challenge: str


async def challenge(transport: WebhookTransport, target: WebhookAddress, hook: str, given: Sequence[str]) -> str | None:
    """Challenge a webhook's address. Returns an error message, or None if the response is correct."""
    text = secrets.token_urlsafe(24)
    body = msgspec.json.encode(
        {"type": "webhook.challenge", "timestamp": datetime.now(UTC), "data": {"challenge": text}}
    )
    headers = sign(given, f"msg_{hook}_challenge_{secrets.token_hex(6)}", int(time.time()), body)
    try:
        answer = await transport.post(target, headers, body)
    except WebhookUnreachable as error:
        return str(error)
    if not 200 <= answer.status < 300:
        return f"the receiver returned {answer.status}"
    try:
        said = msgspec.json.decode(answer.body, type=_ChallengeResponse).challenge
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 'the response is not JSON of the form {"challenge": "..."}'
    return None if hmac.compare_digest(said.encode(), text.encode()) else "the response contains a different challenge"
