"""The framing of our WebSockets, judged by the Autobahn test suite. Skipped, with the reason, without Python 2.7."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any

import pytest
import uvicorn

from penstock.http.protocol import OPTIONS, BoundedWebSocket
from tests.fuzz.gateway import gateway
from tests.soak.autobahn import Autobahn, Case, python27

pytestmark = pytest.mark.soak
FRAMING = ("1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "10.*")
BREAKING = ("2.*", "3.*", "4.*", "5.*", "7.*")
"""The cases that mostly break the protocol. The others wait for an echo, each for a second."""
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
    autobahn = Autobahn(python, tmp_path_factory.mktemp("autobahn"))
    if reason := autobahn.install():
        pytest.skip(reason)
    return autobahn


async def echo(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


def judged(suite: Autobahn, *cases: str, **options: Any) -> dict[str, Case]:
    """Run our protocol with an echo behind it, as the suite requires."""

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
    """This holds with the options of the gateway."""
    cases = judged(suite, *FRAMING)
    print(Counter((case.behaviour, case.ending) for case in cases.values()))
    assert len(cases) > 200
    assert {name: case for name, case in cases.items() if not case.passed} == {}


def test_large_messages_pass_up_to_the_bound_on_fragments(suite: Autobahn) -> None:
    """The bound on size is larger than the gateway's; above that of fragments, the close has the reason."""
    cases = judged(suite, *LARGE, ws_max_size=LARGEST)
    assert {name for name, case in cases.items() if not case.passed} == TOO_MANY_FRAGMENTS
    assert {cases[name].code for name in TOO_MANY_FRAGMENTS} == {POLICY}


def test_messages_over_the_bound_on_size_are_refused_with_its_code(suite: Autobahn) -> None:
    """64 KiB is answered; anything more, up to 16 MiB in one frame, is closed with 1009 before it is read."""
    cases = judged(suite, "9.1.*", "9.2.*")
    assert {name for name, case in cases.items() if case.passed} == {"9.1.1", "9.2.1"}
    assert {case.code for case in cases.values() if not case.passed} <= {TOO_BIG, None}


def test_compression_is_declined(suite: Autobahn) -> None:
    cases = judged(suite, *COMPRESSED)
    assert {case.behaviour for case in cases.values()} == {"UNIMPLEMENTED"}


def test_the_gateway_ends_every_broken_connection_with_its_reason(
    suite: Autobahn, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A client that breaks the protocol gets the same code from `/v1/live` and `/publish` as from an echo, or the code
    of an invalid message, which may be seen first. The gateway is unharmed, and its memory has not grown."""
    model = judged(suite, *BREAKING)
    broken = {name: case.code for name, case in model.items() if case.code in (PROTOCOL, NOT_UTF_8)}
    assert len(broken) > 30
    with gateway(tmp_path_factory.mktemp("gateway") / "data") as running:
        before = running.forget_peak()
        for path in ("/v1/live", "/v1/streams/things/publish"):
            cases = suite.run(f"ws://127.0.0.1:{running.port}{path}", *BREAKING)
            assert cases.keys() == model.keys()
            assert [name for name, case in cases.items() if not case.was_clean or case.waited] == []
            assert {name: cases[name].code for name in broken if cases[name].code not in (broken[name], POLICY)} == {}
        running.require_sound()
        assert running.peak_mib < before + 50
