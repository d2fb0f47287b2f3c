"""Pages of other sites are kept out; people and programs on the machine are not."""

from __future__ import annotations

import pytest

from penstock.errors import Forbidden
from penstock.runtime.guard import require_own_page


def request(
    method: str = "GET", kind: str = "http", path: str = "/v1/streams/a", site: str | None = None, **headers: str
) -> dict[str, object]:
    """The scope of a request; `site` is its `Sec-Fetch-Site`."""
    named = headers | ({"sec-fetch-site": site} if site is not None else {})
    encoded = [(name.encode(), value.encode()) for name, value in named.items()]
    return {"type": kind, "method": method, "path": path, "headers": encoded}


def refusal(scope: dict[str, object], *, is_open: bool = True) -> str | None:
    try:
        require_own_page(scope, is_open=is_open)
    except Forbidden as error:
        return error.message
    return None


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "localhost:8080", "127.8.8.8:1", "[::1]:8080", ""])
def test_loopback_names_are_let_in(host: str) -> None:
    assert refusal(request(host=host)) is None
    assert refusal(request("POST", host=host, origin=f"http://{host}")) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "10.0.0.1", "127.0.0.1.evil.example", "[::", "a b"]
)
def test_a_page_whose_name_points_here_is_kept_out(host: str) -> None:
    assert refusal(request(host=host)) is not None
    assert refusal(request(kind="websocket", host=host)) is not None


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://["])
def test_a_post_from_another_page_is_kept_out(origin: str) -> None:
    assert refusal(request("POST", host="127.0.0.1:8080", origin=origin)) is not None


API = ["/v1/streams/a", "/v1/views/v/live", "/v1/query/live", "/v1/live", "/v1/health", "/v1", "/metrics"]


@pytest.mark.parametrize("path", API)
@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("is_open", [True, False])
def test_no_request_of_another_page_gets_an_answer(path: str, kind: str, is_open: bool) -> None:
    """A page cannot read an answer of ours, but it can tell how long it took, and so what the answer was."""
    for told in ({"origin": "http://evil.example"}, {"site": "cross-site"}, {"site": "same-site"}, {"site": "odd"}):
        assert refusal(request("GET", kind, path, host="127.0.0.1:8080", **told), is_open=is_open) is not None


@pytest.mark.parametrize("path", API)
@pytest.mark.parametrize("told", [{}, {"site": "none"}, {"site": "same-origin"}, {"origin": "http://127.0.0.1:8080"}])
def test_programs_people_and_our_own_pages_get_an_answer(path: str, told: dict[str, str]) -> None:
    assert refusal(request("GET", "http", path, host="127.0.0.1:8080", **told)) is None


@pytest.mark.parametrize("path", ["/", "/penstock.js", "/assets/app.js"])
def test_a_link_of_another_site_opens_the_dashboard(path: str) -> None:
    assert refusal(request("GET", "http", path, host="127.0.0.1:8080", site="cross-site")) is None
