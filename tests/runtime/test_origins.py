"""Pages of other sites: listed ones may use the API, and browsers let no others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.core.access import Policy
from tests.memory_log import DEADLINE_S
from tests.runtime.guarded import Running, running

LISTED, OTHER = "https://shop.example", "https://evil.example"
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,idempotency-key"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("data"), Policy(origins=frozenset({LISTED}))) as gateway:
        yield gateway


def ask(gateway: Running, method: str, path: str, origin: str | None, **headers: str) -> httpx.Response:
    sent = {**headers, **({"Origin": origin} if origin else {})}
    with gateway.client() as client:
        return client.request(method, path, headers=sent, json={"k": "x"} if method == "POST" else None)


def allowed(answer: httpx.Response) -> str | None:
    """Return the origin that a browser would let read the answer."""
    assert "access-control-allow-credentials" not in answer.headers
    origins = answer.headers.get_list("access-control-allow-origin")
    assert len(origins) < 2
    return origins[0] if origins else None


PATHS = ["/v1/streams/a", "/v1/views/v", "/v1/streams/nothing", "/v1/app", "/v1/health", "/penstock.js", "/nothing"]


@pytest.mark.parametrize("path", PATHS)
def test_a_listed_page_may_read_every_answer_and_no_other_page_any(gateway: Running, path: str) -> None:
    """This includes refusals: a page must be able to show its user the error. Caches are told that origins differ."""
    for origin, wanted in [(LISTED, LISTED), (OTHER, None), ("null", None), (None, None), (f"{LISTED}.evil", None)]:
        answer = ask(gateway, "GET", path, origin)
        assert allowed(answer) == wanted
        assert "Origin" in answer.headers.get_list("vary")


def test_a_listed_page_may_post_and_another_may_not(gateway: Running) -> None:
    mine = ask(gateway, "POST", "/v1/streams/a", LISTED, **{"Idempotency-Key": "one"})
    assert (mine.status_code, mine.json()["accepted"], allowed(mine)) == (200, 1, LISTED)
    assert "Retry-After" in mine.headers["access-control-expose-headers"]
    refused = ask(gateway, "POST", "/v1/streams/a", OTHER)
    assert (refused.status_code, refused.json()["code"], allowed(refused)) == (403, "forbidden", None)


def test_a_browser_that_asks_first_is_told_what_a_listed_page_may_send(gateway: Running) -> None:
    answer = ask(gateway, "OPTIONS", "/v1/streams/a", LISTED, **ASKS)
    assert (answer.status_code, answer.content, allowed(answer)) == (204, b"", LISTED)
    assert answer.headers["access-control-allow-methods"] == "GET, HEAD, POST"
    listed = answer.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "content-type", "idempotency-key", "if-none-match", "last-event-id"} == set(listed)
    assert "*" not in answer.headers.values()


@pytest.mark.parametrize("origin", [OTHER, "null", None])
def test_a_browser_that_asks_first_for_another_page_is_told_nothing(gateway: Running, origin: str | None) -> None:
    answer = ask(gateway, "OPTIONS", "/v1/streams/a", origin, **ASKS)
    assert (answer.status_code, allowed(answer)) == (403 if origin else 405, None)
    assert "access-control-allow-methods" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/live", "/v1/streams/a/publish"])
def test_a_listed_page_may_open_a_websocket_and_another_may_not(gateway: Running, path: str) -> None:
    assert gateway.opened(path, additional_headers={"Origin": LISTED}) == 101
    assert gateway.opened(path, additional_headers={"Origin": OTHER}) == 403


@pytest.mark.parametrize("path", ["/v1/live", "/v1/streams/a/publish", "/v1/streams/a/publish?producer=p"])
@pytest.mark.parametrize("scheme", ["", "http://", "HTTP://"])
def test_a_target_with_our_own_address_is_no_way_round(gateway: Running, path: str, scheme: str) -> None:
    """A request line can have a path, or an address with a path."""
    host = f"127.0.0.1:{gateway.port}"
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"
    for browser, status in [
        ("", 101),
        (f"Origin: http://{host}\r\n", 101),
        (f"Origin: {LISTED}\r\n", 101),
        (f"Origin: {OTHER}\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
    ]:
        head = f"GET {scheme and scheme + host}{path} HTTP/1.1\r\nHost: {host}\r\n{upgrade}\r\n{browser}"
        with socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S) as connection:
            connection.sendall(f"{head}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
            assert int(connection.recv(4096).split()[1]) == status, browser


def test_being_listed_is_no_key(tmp_path: Path) -> None:
    """A listed page needs a key like any caller; the preflight, which has none, is answered."""
    with running(tmp_path, Policy(origins=frozenset({LISTED}))) as gateway:
        key = gateway.add("reader", "consume:a")
        refused = ask(gateway, "GET", "/v1/streams/a", LISTED)
        assert (refused.status_code, allowed(refused)) == (401, LISTED)
        assert ask(gateway, "OPTIONS", "/v1/streams/a", LISTED, **ASKS).status_code == 204
        answer = ask(gateway, "GET", "/v1/streams/a", LISTED, Authorization=f"Bearer {key}")
        assert (answer.status_code, allowed(answer)) == (200, LISTED)
        assert ask(gateway, "GET", "/penstock.js", None).status_code == 200


def test_without_a_list_there_is_no_word_of_it(tmp_path: Path) -> None:
    with running(tmp_path) as gateway:
        for origin in (LISTED, None):
            answer = ask(gateway, "GET", "/v1/streams/a", origin)
            assert answer.status_code == (403 if origin else 200)
            assert not [name for name in answer.headers if name.startswith("access-control")]
            assert "origin" not in answer.headers.get("vary", "").lower()
        assert ask(gateway, "OPTIONS", "/v1/streams/a", LISTED, **ASKS).status_code == 403


def test_a_name_that_was_made_to_point_here_is_no_way_round(gateway: Running) -> None:
    """The Host is still checked, for a listed page too: its requests name this machine."""
    assert ask(gateway, "GET", "/v1/streams/a", LISTED, Host="shop.example").status_code == 403
    assert ask(gateway, "OPTIONS", "/v1/streams/a", LISTED, Host="shop.example", **ASKS).status_code == 403


@pytest.mark.parametrize("browser", [{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, {"Origin": OTHER}])
def test_a_page_of_another_site_learns_nothing_by_timing(tmp_path: Path, browser: dict[str, str]) -> None:
    """A matching filter would be answered at once, and one that does not match after a second: with that, a page could
    guess stored data, one character after the other. It gets the same answer to both, which waits for nothing."""
    with running(tmp_path) as gateway, gateway.client() as client:
        assert gateway.post("a", events={"k": "secret"}).status_code == 200
        statuses = []
        for guess in ("s%", "t%"):
            asked = {"where": f"k LIKE '{guess}'", "since": "earliest", "wait": "1"}
            for path in ("/v1/streams/a", "/v1/streams/a/live"):
                with client.stream("GET", path, params=asked, headers=browser) as answer:
                    statuses.append(answer.status_code)
        assert statuses == [403] * 4


def test_a_listed_page_is_let_in_by_browsers_that_say_more(gateway: Running) -> None:
    """A browser marks a listed page, too, as another site. A picture or a form of it sends no origin."""
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert ask(gateway, "GET", "/v1/streams/a", LISTED, **cross).status_code == 200
    assert ask(gateway, "POST", "/v1/streams/a", LISTED, **cross).status_code == 200
    assert ask(gateway, "GET", "/v1/streams/a", None, **cross).status_code == 403
    assert gateway.opened("/v1/live", additional_headers={"Origin": LISTED, **cross}) == 101
