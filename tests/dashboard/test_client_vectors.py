"""The browser client agrees with the vectors of the protocol: in node, as one file, and in a real browser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from penstock.dashboard import load
from penstock.dashboard.assets import CLIENT
from tests import packages
from tests.dashboard.site import Site
from tests.harness import ROOT

VECTORS = ROOT / "docs/vectors"
CHECKS = Path(__file__).with_name("client")
TRIED = {"backoff", "errors", "pages", "positions", "requests", "socket", "sse", "table"}
"""`publish` is about the publishing WebSocket, which this client does not use."""


def vectors() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(VECTORS.glob("*.json"))}


def test_every_file_of_vectors_is_tried() -> None:
    assert vectors().keys() - {"publish"} == TRIED
    assert all(file["cases"] for file in vectors().values())


def test_the_client_agrees_with_the_vectors_in_node(tmp_path: Path) -> None:
    node = packages.find("node")
    if node is None:
        pytest.skip("node is not installed; the same is tried in a browser")
    module = tmp_path / "penstock.mjs"
    module.write_bytes(load()[CLIENT].body)
    command = [node, str(CHECKS / "node_vectors.mjs"), str(module), str(VECTORS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []


@pytest.mark.browser
def test_the_client_agrees_with_the_vectors_in_a_browser(page: Page) -> None:
    files = {"client.js": load()[CLIENT].body, "vectors.mjs": (CHECKS / "vectors.mjs").read_bytes(), "page.html": b""}
    with Site(files) as site:
        page.goto(f"{site.address}/page.html")
        failures = page.evaluate(
            "async (vectors) => (await import('/vectors.mjs')).check(await import('/client.js'), vectors)", vectors()
        )
    assert failures == []


def test_a_vector_that_is_not_met_is_told() -> None:
    """The check itself can fail: it reports a wrong vector."""
    node = packages.find("node")
    if node is None:
        pytest.skip("node is not installed")
    script = """
        import { check } from "./vectors.mjs";
        const vectors = Object.fromEntries(%s.map((name) => [name, { cases: [] }]));
        vectors.errors.cases = [{ name: "wrong", status: 503, code: "busy", retry: false }];
        console.log(JSON.stringify(await check({ retriable: () => true }, vectors)));
    """
    done = subprocess.run(
        [node, "--input-type=module", "-e", script % sorted(TRIED)],
        capture_output=True, text=True, check=True, cwd=CHECKS, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == ["errors: wrong:  is true, and should be false"]
