"""Every route for every role, on the fast path and by ASGI."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from websockets.sync.client import ClientConnection

from penstock.core.cursor import Ack, AckSigner, Span
from tests.runtime.guarded import Running, running

ROLES = ("nobody", "wrong", "produce:a", "consume:a", "consume:*", "admin")
WRONG = "penstock_" + "0" * 48 + "b49dd12c"
NOT_KNOWN = (401, 401)
ROUTES: dict[str, tuple[int, ...]] = {
    "POST /v1/streams/a": (*NOT_KNOWN, 200, 403, 403, 200),
    "POST /v1/streams/b": (*NOT_KNOWN, 403, 403, 403, 200),
    "POST /v1/streams/%62": (*NOT_KNOWN, 403, 403, 403, 200),
    "POST /v1/streams/b?ack=none": (*NOT_KNOWN, 403, 403, 403, 202),
    "POST /v1/streams/a?reply=h&timeout=0.05": (*NOT_KNOWN, 403, 403, 403, 504),
    "POST /v1/streams/none": (*NOT_KNOWN, 403, 403, 403, 404),
    "POST /v1/streams/a.rejected": (*NOT_KNOWN, 403, 403, 403, 404),
    "POST /v1/app": (*NOT_KNOWN, 405, 405, 405, 405),
    "WS /v1/streams/a/publish": (*NOT_KNOWN, 101, 403, 403, 101),
    "WS /v1/streams/b/publish": (*NOT_KNOWN, 403, 403, 403, 101),
    "WS /v1/streams/none/publish": (*NOT_KNOWN, 403, 403, 403, 101),
    "WS /b/publish": (*NOT_KNOWN, 403, 403, 403, 101),
    "WS /v1/live": (*NOT_KNOWN, 101, 101, 101, 101),
    "WS /v1/live%0A": (404, 404, 404, 404, 404, 404),
    "WS /none": (*NOT_KNOWN, 404, 404, 404, 404),
    "GET /v1/streams/a": (*NOT_KNOWN, 403, 200, 200, 200),
    "GET /v1/streams/b": (*NOT_KNOWN, 403, 403, 200, 200),
    "GET /v1/streams/a.rejected": (*NOT_KNOWN, 403, 403, 200, 200),
    "GET /v1/streams/none": (*NOT_KNOWN, 403, 403, 404, 404),
    "GET /v1/streams/b%0A": (404, 404, 404, 404, 404, 404),
    "GET /v1/views/v": (*NOT_KNOWN, 403, 403, 200, 200),
    "GET /v1/views/none": (*NOT_KNOWN, 403, 403, 404, 404),
    "GET /v1/streams/a/publish": (*NOT_KNOWN, 426, 426, 426, 426),
    "SSE /v1/streams/a/live": (*NOT_KNOWN, 403, 200, 200, 200),
    "SSE /v1/streams/b/live": (*NOT_KNOWN, 403, 403, 200, 200),
    "SSE /v1/streams/a/live%0A": (404, 404, 404, 404, 404, 404),
    "SSE /v1/views/v/live": (*NOT_KNOWN, 403, 403, 200, 200),
    "GET /v1/live": (*NOT_KNOWN, 426, 426, 426, 426),
    "GET /v1/handlers/h/state/x": (*NOT_KNOWN, 403, 403, 404, 404),
    "GET /v1/handlers/none/state/x": (*NOT_KNOWN, 403, 403, 404, 404),
    "GET /v1/acks/A": (*NOT_KNOWN, 200, 200, 200, 200),
    "GET /v1/acks/B": (*NOT_KNOWN, 403, 403, 200, 200),
    "GET /v1/acks/MADE_UP_B": (*NOT_KNOWN, 404, 404, 404, 404),
    "GET /v1/acks/rubbish": (*NOT_KNOWN, 404, 404, 404, 404),
    "GET /v1/webhooks": (*NOT_KNOWN, 200, 200, 200, 200),
    "POST /v1/webhooks": (*NOT_KNOWN, 400, 400, 400, 400),
    "GET /v1/webhooks/none": (*NOT_KNOWN, 404, 404, 404, 404),
    "GET /v1/webhooks/none/dead": (*NOT_KNOWN, 404, 404, 404, 404),
    "POST /v1/webhooks/none/pause": (*NOT_KNOWN, 400, 400, 400, 400),
    "POST /v1/webhooks/none/resume": (*NOT_KNOWN, 400, 400, 400, 400),
    "POST /v1/webhooks/none/verify": (*NOT_KNOWN, 400, 400, 400, 400),
    "POST /v1/webhooks/none/rotate": (*NOT_KNOWN, 400, 400, 400, 400),
    "POST /v1/webhooks/none/redrive": (*NOT_KNOWN, 400, 400, 400, 400),
    "POST /v1/webhooks/none/dead/redrive": (*NOT_KNOWN, 400, 400, 400, 400),
    "POST /v1/query": (*NOT_KNOWN, 400, 400, 400, 400),
    "SSE /v1/query/live?sql=SELECT+k+FROM+a": (*NOT_KNOWN, 403, 200, 200, 200),
    "SSE /v1/query/live?sql=SELECT+k+FROM+b": (*NOT_KNOWN, 403, 403, 200, 200),
    "SSE /v1/query/live?sql=SELECT+k+FROM+none": (*NOT_KNOWN, 403, 403, 400, 400),
    "GET /v1/app": (*NOT_KNOWN, 403, 403, 200, 200),
    "GET /v1/openapi.json": (*NOT_KNOWN, 200, 200, 200, 200),
    "GET /metrics": (*NOT_KNOWN, 403, 403, 200, 200),
    "GET /metrics%0A": (404, 404, 404, 404, 404, 404),
    "GET /%6detrics": (*NOT_KNOWN, 403, 403, 200, 200),
    "GET /v1/health": (503, 503, 503, 503, 503, 503),
    "GET /none": (*NOT_KNOWN, 404, 404, 404, 404),
    "GET /": (200, 200, 200, 200, 200, 200),
    "GET /assets/none": (404, 404, 404, 404, 404, 404),
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("data")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def keys(gateway: Running) -> dict[str, str | None]:
    """Return the key of each role."""
    named = {"produce:a": "producer", "consume:a": "reader", "consume:*": "watcher", "admin": "boss"}
    return {"nobody": None, "wrong": WRONG} | {role: gateway.add(name, role) for role, name in named.items()}


@pytest.fixture(scope="module")
def acks(gateway: Running, keys: dict[str, str | None]) -> dict[str, str]:
    """Return an acknowledgement of each stream, and one of events that do not exist."""
    acks = {name: gateway.post(name.lower(), keys["admin"]).json()["ack"] for name in ("A", "B")}
    made_up = Ack("b", gateway.gateway.log.generation("b"), (Span(0, 0, 10**6),))
    return acks | {"MADE_UP_B": AckSigner(b"another key").sign(made_up)}


def ask(gateway: Running, kind: str, path: str, key: str | None) -> int:
    if kind == "WS":
        return gateway.opened(path, key)
    with gateway.client(key) as client:
        if kind == "POST":
            return client.post(path, json={"k": "x"}).status_code
        with client.stream("GET", path) as response:
            return response.status_code


@pytest.mark.parametrize("route", ROUTES)
def test_each_route_is_for_those_who_may(
    route: str, gateway: Running, keys: dict[str, str | None], acks: dict[str, str]
) -> None:
    kind, _, path = route.partition(" ")
    last = path.rpartition("/")[2]
    path = path.removesuffix(last) + acks.get(last, last)
    statuses = {role: ask(gateway, kind, path, keys[role]) for role in ROLES}
    again = {role: ask(gateway, kind, path, keys[role]) for role in ROLES}
    assert statuses == again == dict(zip(ROLES, ROUTES[route], strict=True))


def test_every_route_of_the_gateway_is_in_the_table(gateway: Running) -> None:
    document = gateway.gateway.status.describe()
    assert [stream["name"] for stream in document["streams"]] == ["a", "b", "h", "h.failed"]
    known = {path.partition("?")[0] for path in (route.split()[1] for route in ROUTES)}
    listed = gateway.get("/v1/openapi.json", _boss(gateway)).json()["paths"]
    examples = {"name": "a", "key": "x", "ack": "A", "id": "none"}
    for path in listed:
        name = "v" if "views" in path else "h" if "handlers" in path else "a"
        assert path.format(**(examples | {"name": name})) in known, f"{path} is missing in the table of this test"


def _boss(gateway: Running) -> str:
    kept = gateway.keys.keys()
    return gateway.add(f"boss-{len(kept)}", "admin")


def subscribed(socket: ClientConnection, id: str, **what: str) -> int:
    """Return the status of a subscription: 200, or that of the problem."""
    socket.send(json.dumps({"op": "subscribe", "id": id} | what))
    while (answer := json.loads(socket.recv(60))).get("id") != id:
        pass
    return int(answer["data"]["status"]) if answer["event"] == "error" else 200


@pytest.mark.parametrize("role", ROLES[2:])
def test_a_subscription_is_for_those_who_may_read(role: str, gateway: Running, keys: dict[str, str | None]) -> None:
    column = ROLES.index(role)
    with gateway.socket("/v1/live", keys[role]) as socket:
        for stream in ("a", "b", "none", "a.rejected"):
            assert subscribed(socket, stream, stream=stream) == ROUTES[f"GET /v1/streams/{stream}"][column]
        for view in ("v", "none"):
            assert subscribed(socket, f"view {view}", view=view) == ROUTES[f"GET /v1/views/{view}"][column]


@pytest.mark.parametrize("role", ROLES)
def test_health_says_no_more_than_ready_or_not_to_those_who_may_not_see_all(
    role: str, gateway: Running, keys: dict[str, str | None]
) -> None:
    health = gateway.get("/v1/health", keys[role]).json()
    assert (health == {"ready": False}) == (role not in ("consume:*", "admin"))


def test_the_document_of_the_api_has_only_what_the_caller_has_to_do_with(
    gateway: Running, keys: dict[str, str | None]
) -> None:
    whole = gateway.get("/v1/openapi.json", keys["admin"]).text
    assert all(f'"{name}"' in whole for name in ("a", "b", "v", "h"))
    assert "Other" in whole
    for role in ("produce:a", "consume:a"):
        document = gateway.get("/v1/openapi.json", keys[role]).json()
        named = document["paths"]["/v1/streams/{name}"]["parameters"][0]["schema"]
        assert named["examples"] == ["a"]
        assert "examples" not in document["paths"]["/v1/views/{name}"]["parameters"][0]["schema"]
        assert "examples" not in document["paths"]["/v1/handlers/{name}/state/{key}"]["parameters"][0]["schema"]
        assert '"b"' not in json.dumps(document)
        assert "Other" not in json.dumps(document), "the class of the events of b"


def test_nobody_is_told_what_there_is(gateway: Running, keys: dict[str, str | None]) -> None:
    """An existing stream and a missing one are refused in the same words."""
    for kind in ("GET", "POST"):
        with gateway.client(keys["consume:a"]) as client:
            there, missing = (client.request(kind, f"/v1/streams/{name}").json() for name in ("b", "c"))
        assert there["status"] == 403
        assert there["detail"].replace("'b'", "'c'").replace("e:b", "e:c") == missing["detail"]


def test_an_answer_of_401_says_how_to_ask_and_repeats_nothing(gateway: Running) -> None:
    answer = gateway.get("/v1/app", WRONG)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "unauthorized"
    assert WRONG not in answer.text
