"""Long answers, sent slice by slice."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.core.access import CALLER, Caller
from penstock.core.access.grants import ALL
from penstock.serve.connections import SLICE_BYTES, Connections
from penstock.serve.sliced import sliced_response
from tests.serve.fakes import run

BODY = b"x" * (10 * SLICE_BYTES)


async def nothing_more() -> Any:
    await asyncio.Event().wait()


def test_a_long_answer_is_broken_off_when_its_key_is_revoked() -> None:
    """Its reader takes a slice, and is slow to take the next."""

    async def main() -> None:
        caller, connections, sent = Caller("key:bob", ALL), Connections(10, stuck_s=600), list[bytes]()

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))
            if sum(map(len, sent)) == 2 * SLICE_BYTES:
                caller.limit(0.0)
                await asyncio.Event().wait()

        response = sliced_response(BODY, connections, {})
        async with asyncio.timeout(10):
            await response({"type": "http", CALLER: caller}, nothing_more, send)
        assert sum(map(len, sent)) == 2 * SLICE_BYTES
        assert connections.open == 0

    run(main())


def test_a_long_answer_is_sent_whole_while_its_key_is_valid() -> None:
    async def main() -> None:
        sent = list[Any]()

        async def send(message: Any) -> None:
            sent.append(message)

        response = sliced_response(BODY, Connections(10), {}, end=b"}")
        await response({"type": "http", CALLER: Caller("key:bob", ALL)}, nothing_more, send)
        assert b"".join(message["body"] for message in sent[1:]) == BODY + b"}"
        assert not sent[-1].get("more_body")

    run(main())
