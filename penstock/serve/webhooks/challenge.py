"""Whether an address wants to be called: it is sent a random text, signed, and must send it back.

So nobody can point a webhook at someone else, and a receiver can see at once whether it has the right secret.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from penstock.serve.webhooks.address import Endpoint
from penstock.serve.webhooks.transport import Transport, Unreachable
from penstock.signing import sign


class _Answer(msgspec.Struct):
    challenge: str


async def challenge(transport: Transport, target: Endpoint, hook: str, given: Sequence[str]) -> str | None:
    """What is wrong with the answer to a challenge; None if it is the right one."""
    text = secrets.token_urlsafe(24)
    body = msgspec.json.encode(
        {"type": "webhook.challenge", "timestamp": datetime.now(UTC), "data": {"challenge": text}}
    )
    headers = sign(given, f"msg_{hook}_challenge_{secrets.token_hex(6)}", int(time.time()), body)
    try:
        answer = await transport.post(target, headers, body)
    except Unreachable as error:
        return str(error)
    if not 200 <= answer.status < 300:
        return f"it answered {answer.status}"
    try:
        said = msgspec.json.decode(answer.body, type=_Answer).challenge
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 'its answer is not {"challenge": "..."} in JSON'
    return None if hmac.compare_digest(said.encode(), text.encode()) else "it answered another challenge"
