"""Pages of other sites are kept out; people and programs on the machine are not."""

from __future__ import annotations

import pytest

from penstock.errors import Forbidden
from penstock.runtime.guard import require_own_page


def request(method: str = "GET", kind: str = "http", **headers: str) -> dict[str, object]:
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": kind, "method": method, "headers": encoded}


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


def test_a_read_across_origins_is_left_to_the_browser() -> None:
    """No answer of ours allows other origins, so a browser does not show it to the page."""
    assert refusal(request("GET", host="127.0.0.1:8080", origin="http://evil.example")) is None
