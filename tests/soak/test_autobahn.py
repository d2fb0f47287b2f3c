"""The framing of our WebSockets, judged by the Autobahn test suite. Skipped, with the reason, without Python 2.7."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any

import pytest
import uvicorn

from penstock.serve.protocol import OPTIONS, BoundedWebSocket
from tests.fuzz.gateway import gateway
from tests.soak.autobahn import Autobahn, Case, python27

pytestmark = pytest.mark.soak
FRAMING = ("1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "10.*")
BREAKING = ("2.*", "3.*", "4.*", "5.*", "7.*")
"""Where most cases are that break the protocol. The others wait for an echo, each for a second."""
LARGE, COMPRESSED = ("9.*",), ("12.1.*", "13.1.*")
LARGEST = 16 * 1024 * 1024
TOO_MANY_FRAGMENTS = {f"9.{kind}.{number}" for kind in (3, 4) for number in (1, 2, 3, 4)}
"""A message of 4 MiB in 65,536 to 1,024 fragments: more than `FRAGMENTS_MAX`."""
NORMAL, PROTOCOL, NOT_UTF_8, POLICY, TOO_BIG = 1000, 1002, 1007, 1008, 1009


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Autobahn:
    python = python27()
    if python is None:
        pytest.skip("Autobahn needs Python 2.7: set PYTHON27 to one, or have python2.7 on the path or in pyenv")
    found = Autobahn(python, tmp_path_factory.mktemp("autobahn"))
    if reason := found.install():
        pytest.skip(reason)
    return found


async def echo(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


def judged(suite: Autobahn, *cases: str, **options: Any) -> dict[str, Case]:
    """Our protocol with an echo behind it, as the suite wants it."""

    async def main() -> dict[str, Case]:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(echo, ws=BoundedWebSocket, lifespan="off", log_config=None, **(OPTIONS | options))
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([listener]))
        try:
            url = f"ws://127.0.0.1:{listener.getsockname()[1]}/"
            return await asyncio.to_thread(suite.run, url, *cases)
        finally:
            server.should_exit = True
            await serving

    return asyncio.run(main())


def test_every_case_of_framing_passes(suite: Autobahn) -> None:
    """With the options of the gateway."""
    found = judged(suite, *FRAMING)
    print(Counter((case.behaviour, case.ending) for case in found.values()))
    assert len(found) > 200
    assert {name: case for name, case in found.items() if not case.passed} == {}


def test_large_messages_pass_up_to_the_bound_on_fragments(suite: Autobahn) -> None:
    """With a larger bound on size than the gateway's; above that of fragments, the end says why."""
    found = judged(suite, *LARGE, ws_max_size=LARGEST)
    assert {name for name, case in found.items() if not case.passed} == TOO_MANY_FRAGMENTS
    assert {found[name].code for name in TOO_MANY_FRAGMENTS} == {POLICY}


def test_messages_over_the_bound_on_size_are_refused_with_its_code(suite: Autobahn) -> None:
    """64 KiB is answered; the rest, up to 16 MiB in one frame, is closed with 1009 before it is read."""
    found = judged(suite, "9.1.*", "9.2.*")
    assert {name for name, case in found.items() if case.passed} == {"9.1.1", "9.2.1"}
    assert {case.code for case in found.values() if not case.passed} <= {TOO_BIG, None}


def test_compression_is_declined(suite: Autobahn) -> None:
    found = judged(suite, *COMPRESSED)
    assert {case.behaviour for case in found.values()} == {"UNIMPLEMENTED"}


def test_the_gateway_ends_every_broken_connection_with_its_reason(
    suite: Autobahn, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whoever breaks the protocol gets the same code from `/v1/live` and `/publish` as from an echo, or that of a
    message that is none, which may be seen first. The gateway is as sound and as small as before."""
    model = judged(suite, *BREAKING)
    broken = {name: case.code for name, case in model.items() if case.code in (PROTOCOL, NOT_UTF_8)}
    assert len(broken) > 30
    with gateway(tmp_path_factory.mktemp("gateway") / "data") as running:
        before = running.forget_peak()
        for path in ("/v1/live", "/v1/streams/things/publish"):
            found = suite.run(f"ws://127.0.0.1:{running.port}{path}", *BREAKING)
            assert found.keys() == model.keys()
            assert [name for name, case in found.items() if not case.was_clean or case.waited] == []
            assert {name: found[name].code for name in broken if found[name].code not in (broken[name], POLICY)} == {}
        running.require_sound()
        assert running.peak_mib < before + 50
