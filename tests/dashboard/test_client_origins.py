"""A page of another site in a real browser: it uses the API if the operator has listed it, and gets nothing if not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page

from penstock.core.access import Policy
from penstock.dashboard import load
from tests.dashboard.site import Site
from tests.runtime.guarded import Running, running

pytestmark = pytest.mark.browser
PAGE = b"<!doctype html><title>another site</title>"
USE = """
    async ([address, key, transports]) => {
        const { connect } = await import("/client.js");
        const penstock = connect(address, { key, transports });
        const seen = { events: [], errors: [], transport: null };
        const done = new Promise((resolve) => {
            penstock.follow("streams", "a", { since: "earliest" }, {
                change: ({ events }) => {
                    seen.events.push(...events.map(({ n }) => n));
                    seen.transport = penstock.state.transport;
                    if (seen.events.length === 2) resolve();
                },
                error: (error) => resolve(seen.errors.push(error.code)),
            });
        });
        await penstock.publish("a", [{ k: "x", n: 1 }, { k: "x", n: 2 }]);
        await done;
        await penstock.close();
        return seen;
    }
"""


@contextmanager
def two_sites(folder: Path, *, listed: bool) -> Iterator[tuple[Site, Running]]:
    """Run another site, which has its own copy of the client, and a gateway that lists it or not."""
    with Site({"page.html": PAGE, "client.js": load()["penstock.js"].body}) as site:
        origins = frozenset({site.address} if listed else {"https://shop.example"})
        with running(folder, Policy(origins=origins)) as gateway:
            yield site, gateway


@pytest.mark.parametrize("transport", ["websocket", "sse", "poll"])
def test_a_listed_site_reads_and_sends_with_a_key(page: Page, tmp_path: Path, transport: str) -> None:
    """The browser sends a preflight first, since there is a key in a header; the key is not in any address."""
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.on("websocket", lambda socket: addresses.append(socket.url))
    with two_sites(tmp_path, listed=True) as (site, gateway):
        key = gateway.add("page", "consume:a", "produce:a")
        page.goto(f"{site.address}/page.html")
        seen = page.evaluate(USE, [f"http://127.0.0.1:{gateway.port}", key, [transport]])
        assert seen == {"events": [1, 2], "errors": [], "transport": transport}
    assert len(addresses) > 2
    assert not [address for address in addresses if key in address]


def test_a_listed_site_may_load_the_client_from_the_gateway(page: Page, tmp_path: Path) -> None:
    """Then the address need not be given: it is where the client came from."""
    with two_sites(tmp_path, listed=True) as (site, gateway):
        page.goto(f"{site.address}/page.html")
        answer = page.evaluate(
            "async (module) => (await import(module)).connect().get('v1/streams/a')",
            f"http://127.0.0.1:{gateway.port}/penstock.js",
        )
        assert answer["events"] == []


TRIES = {
    "read": "fetch(`${address}/v1/streams/a`).then((answer) => answer.text())",
    "read with a key": "fetch(`${address}/v1/streams/a`, { headers: { Authorization: 'Bearer x' } }).then(String)",
    "follow": "fetch(`${address}/v1/streams/a/live`).then(String)",
    "load": "import(`${address}/penstock.js`).then(String)",
    "send": "fetch(`${address}/v1/streams/a`, { method: 'POST', body: '{\"k\": \"x\"}' }).then(String)",
    "websocket": """new Promise((resolve, reject) => {
        const socket = new WebSocket(`${address.replace('http', 'ws')}/v1/live`);
        socket.onopen = () => resolve('open');
        socket.onerror = reject;
    })""",
}


@pytest.mark.parametrize("what", TRIES)
def test_a_site_that_is_not_listed_gets_nothing(page: Page, tmp_path: Path, what: str) -> None:
    """This holds even on a gateway without keys. Requests without a preflight, such as a form's, are refused."""
    with two_sites(tmp_path, listed=False) as (site, gateway):
        page.goto(f"{site.address}/page.html")
        script = f"async (address) => {{ try {{ return await {TRIES[what]} }} catch {{ return 'refused' }} }}"
        assert page.evaluate(script, f"http://127.0.0.1:{gateway.port}") == "refused"
        assert json.loads(gateway.get("/v1/streams/a").content)["events"] == []
