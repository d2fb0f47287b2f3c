"""Pages of other sites are refused; users and programs on the machine are not."""

from __future__ import annotations

import pytest

from penstock.core.errors import Forbidden
from penstock.http.guard import require_own_page


def request(
    method: str = "GET", kind: str = "http", path: str = "/v1/streams/a", site: str | None = None, **headers: str
) -> dict[str, object]:
    """Return the scope of a request; `site` is its `Sec-Fetch-Site`."""
    named = headers | ({"sec-fetch-site": site} if site is not None else {})
    encoded = [(name.encode(), value.encode()) for name, value in named.items()]
    return {"type": kind, "method": method, "path": path, "headers": encoded}


def refusal(scope: dict[str, object], *, is_open: bool = True) -> str | None:
    try:
        require_own_page(scope, is_open=is_open)
    except Forbidden as error:
        return error.message
    return None


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "localhost", "localhost:8080", "127.8.8.8:1", "[::1]:8080", "LocalHost:1", "[::1]", ""]
)
def test_loopback_names_are_let_in(host: str) -> None:
    assert refusal(request(host=host)) is None
    assert refusal(request("POST", host=host, origin=f"http://{host}")) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "10.0.0.1",
        "127.0.0.1.evil.example",
        "[::",
        "a b",
        "[::1].evil.example",
        "[::1]evil",
        "localhost:80:evil",
        "localhost:evil",
        "localhost.evil",
        "me@localhost",
        "me:80@127.0.0.1",
        "::1",
        "localhost/x",
        "localhost?x",
        "127.1",
        "[127.0.0.1]",
        "[::1%lo]",
        "[::2]",
        ":80",
        "127.0.0.1\n",
        " localhost",
        "local\u017fhost",
        "\u0661\u0662\u0667.0.0.1",
    ],
)
def test_a_page_whose_name_points_here_is_kept_out(host: str) -> None:
    assert refusal(request(host=host)) is not None
    assert refusal(request(kind="websocket", host=host)) is not None


def test_with_keys_any_name_is_let_in_because_a_proxy_may_use_it() -> None:
    assert refusal(request(host="evil.example"), is_open=False) is None


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://["])
def test_a_post_from_another_page_is_kept_out(origin: str) -> None:
    assert refusal(request("POST", host="127.0.0.1:8080", origin=origin)) is not None


API = ["/v1/streams/a", "/v1/views/v/live", "/v1/query/live", "/v1/live", "/v1/health", "/v1", "/metrics"]


@pytest.mark.parametrize("path", API)
@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("is_open", [True, False])
def test_no_request_of_another_page_gets_an_answer(path: str, kind: str, is_open: bool) -> None:
    """A page cannot read our answer, but it can measure its time, and so infer the answer."""
    for headers in ({"origin": "http://evil.example"}, {"site": "cross-site"}, {"site": "same-site"}, {"site": "odd"}):
        assert refusal(request("GET", kind, path, host="127.0.0.1:8080", **headers), is_open=is_open) is not None


@pytest.mark.parametrize("path", API)
@pytest.mark.parametrize(
    "headers", [{}, {"site": "none"}, {"site": "same-origin"}, {"origin": "http://127.0.0.1:8080"}]
)
def test_programs_people_and_our_own_pages_get_an_answer(path: str, headers: dict[str, str]) -> None:
    assert refusal(request("GET", "http", path, host="127.0.0.1:8080", **headers)) is None


@pytest.mark.parametrize("path", ["/", "/penstock.js", "/assets/app.js"])
def test_a_link_of_another_site_opens_the_dashboard(path: str) -> None:
    assert refusal(request("GET", "http", path, host="127.0.0.1:8080", site="cross-site")) is None


@pytest.mark.parametrize(
    ("scheme", "origin", "is_ours"),
    [
        ("https", "https://plant.example", True),
        ("wss", "https://plant.example", True),
        ("https", "http://plant.example", False),
        ("wss", "http://plant.example", False),
        ("https", "ftp://plant.example", False),
        ("http", "ftp://plant.example", False),
        ("http", "//plant.example", False),
        ("http", "http://plant.example", True),
        ("http", "https://plant.example", True),
    ],
)
def test_a_page_of_the_same_host_by_another_scheme_is_another_page(scheme: str, origin: str, is_ours: bool) -> None:
    """Anyone on the network can write a page that comes without TLS. Behind a proxy that has TLS the gateway has
    none."""
    scope = request(host="plant.example", origin=origin) | {"scheme": scheme}
    assert (refusal(scope, is_open=False) is None) == is_ours


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (b"origin", (b"http://evil.example", b"http://127.0.0.1:8080")),
        (b"sec-fetch-site", (b"cross-site", b"same-origin")),
        (b"host", (b"evil.example", b"127.0.0.1:8080")),
    ],
)
def test_a_header_that_stands_twice_is_refused(name: bytes, values: tuple[bytes, bytes]) -> None:
    for pair in (values, values[::-1], values[1:] * 2):
        scope = request() | {
            "headers": [(b"host", b"127.0.0.1:8080")] * (name != b"host") + [(name, value) for value in pair]
        }
        assert "can each be sent only once" in (refusal(scope) or "")
