"""The gateway is killed with -9 while it delivers to a receiver that fails: each key's messages arrive in order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.collect.support import fix
from tests.gateway import RunningGateway, running_gateway
from tests.serve.webhooks.receiver import OK, Received, Receiver, receiving, status

EVENTS, KILLS, KEYS = 250, 5, 6
DEADLINE_S = 200.0
ENVIRON = {
    "PENSTOCK_WEBHOOK_PRIVATE": "127.0.0.0/8",
    "PENSTOCK_WEBHOOK_BACKOFF_S": "0.02",
    "PENSTOCK_WEBHOOK_BACKOFF_S_MAX": "0.2",
    "PENSTOCK_WEBHOOK_TRIES_MAX": "1000",
    "PENSTOCK_WEBHOOK_TIMEOUT_S": "2",
    "PENSTOCK_HEARTBEAT_S": "1",
}


async def persist(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    """Retry until there is an answer: while the gateway restarts there is none."""
    while True:
        try:
            answer = await client.request(method, path, json=body)
        except httpx.HTTPError:
            await asyncio.sleep(0.02)
            continue
        if answer.status_code < 500:
            return answer.raise_for_status().json()
        await asyncio.sleep(0.02)


async def post_all(client: httpx.AsyncClient, chance: random.Random) -> dict[str, list[str]]:
    """Post events of several vehicles, one request after the other; returns the order of each vehicle."""
    sent: dict[str, list[str]] = defaultdict(list)
    number = 0
    while number < EVENTS:
        count = min(EVENTS - number, chance.randrange(1, 5))
        events = [fix(number + index, f"v{chance.randrange(KEYS)}") for index in range(count)]
        await persist(client, "POST", "/v1/streams/fixes", events)
        for event in events:
            sent[event["vehicle"]].append(event["fix_id"])
        number += count
        await asyncio.sleep(chance.random() * 0.03)  # so that kills come between posts too
    return sent


def received(receiver: Receiver) -> dict[str, list[str]]:
    fixes: dict[str, list[str]] = defaultdict(list)
    for event in receiver.events():
        fixes[event["vehicle"]].append(event["fix_id"])
    return fixes


@pytest.mark.parametrize("seed", random.sample(range(10**6), 1))
def test_each_keys_sequence_is_right_though_both_sides_fail(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def bad(receiver: Receiver, message: Received, writer: asyncio.StreamWriter) -> bytes | None:
        await asyncio.sleep(chance.random() * 0.02)  # the fault: a slow answer
        fault = chance.choice(["none"] * 8 + ["500", "cut", "taken but cut"])
        if fault == "taken but cut":
            receiver.taken.setdefault(message.id, message)
            return None
        return None if fault == "cut" else status(500) if fault == "500" else OK

    async def kill(gateway: RunningGateway, receiver: Receiver) -> None:
        for _ in range(KILLS):
            seen = len(receiver.requests)
            wanted = seen + chance.randrange(1, 40)
            while len(receiver.requests) < wanted and len(receiver.taken) < EVENTS:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(gateway.kill)
            gateway.start()

    async def main() -> None:
        with running_gateway(tmp_path, **ENVIRON) as gateway:
            base = f"http://127.0.0.1:{gateway.port}"
            async with receiving(bad) as receiver, httpx.AsyncClient(base_url=base) as client:
                wanted = {"url": receiver.url, "stream": "fixes"}
                hook = (await client.post("/v1/webhooks", json=wanted)).raise_for_status().json()
                receiver.secrets.append(hook["secret"])
                while (await persist(client, "GET", f"/v1/webhooks/{hook['id']}"))["state"] != "active":
                    await asyncio.sleep(0.02)
                sent, _ = await asyncio.gather(post_all(client, chance), kill(gateway, receiver))
                while (await persist(client, "GET", f"/v1/webhooks/{hook['id']}"))["pending"] or len(
                    receiver.taken
                ) < EVENTS:
                    await asyncio.sleep(0.02)
                state = await persist(client, "GET", f"/v1/webhooks/{hook['id']}")
        assert received(receiver) == sent
        bodies: dict[str, bytes] = {}
        for message in receiver.requests:
            assert bodies.setdefault(message.id, message.body) == message.body
        assert len(bodies) == EVENTS
        assert len(receiver.requests) > EVENTS
        assert (state["dead"], state["lag"]) == (0, 0)

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main()

    asyncio.run(bounded())
