"""The served OpenAPI document is correct: schemathesis sends requests that it allows and that it forbids, and checks
that each answer is documented. `schemathesis.toml` has the exclusions, and the reasons."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.core.access import KeyFile
from penstock.runtime.embedded.directory import DataDirectory
from tests.fuzz.gateway import RunningGateway, gateway

CONFIG = Path(__file__).parent / "schemathesis.toml"
SEED = int(os.environ["TEST_SEED"])
OPERATIONS = 22
"""The operations of the document, without itself, and without the three that are followed below."""
LIVE = ("/v1/streams/{name}/live", "/v1/views/{name}/live", "/v1/query/live")
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


class Impatient(requests.Session):
    """Reads only the beginning of server-sent events, which never end."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        response = super().send(request, **(options | {"stream": True}))
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            response._content = next(response.iter_content(None))
            response.close()
        return response


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with gateway(tmp_path_factory.mktemp("openapi") / "data") as running:
        yield running


def explore(url: str, *options: str) -> None:
    """Run schemathesis on every operation whose answers end. It fails on any finding."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", f"{url}/v1/openapi.json"]
    fixed = ["--exclude-path-regex", "(}|query)/live$", "--seed", str(SEED), "--no-color", "--continue-on-failure"]
    done = subprocess.run(
        [*command, *fixed, "--generation-database", "none", "--request-timeout", "20", *options],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Tested: {OPERATIONS}" in done.stdout, done.stdout


def follow(url: str, path: str, mode: GenerationMode, count: int, key: str | None = None) -> None:
    """Open `count` connections to an operation whose answers do not end."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    operation: Any = schemathesis.openapi.from_url(f"{url}/v1/openapi.json", headers=headers)[path]["GET"]

    @seed(SEED)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def attack(case: Any) -> None:
        with Impatient() as session:
            case.call_and_validate(session=session, headers=headers, checks=CHECKS, timeout=20)

    attack()


def test_every_answer_is_one_that_the_document_names(served: RunningGateway) -> None:
    explore(served.url, "--phases", "examples,coverage,fuzzing", "--max-examples", "5")
    served.require_sound()


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", LIVE)
def test_live_channels_answer_as_the_document_says(served: RunningGateway, path: str, mode: GenerationMode) -> None:
    follow(served.url, path, mode, 10)
    served.require_sound()


def test_a_key_with_few_grants_gets_nothing_but_what_is_documented(tmp_path: Path) -> None:
    """No answer is 500, or a status that the document does not name, whoever asks."""
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    _, key = KeyFile(directory.keys).add("few", ["produce:things", "consume:orders"])
    with gateway(directory.root) as running:
        options = ["--phases", "examples,coverage"]
        explore(running.url, *options, "--header", f"Authorization: Bearer {key}")
        for path in LIVE:
            follow(running.url, path, GenerationMode.POSITIVE, 5, key)
        running.require_sound()


def test_without_a_key_nothing_is_told_but_whether_the_gateway_is_ready(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    _, key = KeyFile(directory.keys).add("all", ["admin"])
    with gateway(directory.root) as running:
        bearer = {"Authorization": f"Bearer {key}"}
        document: Any = schemathesis.openapi.from_url(f"{running.url}/v1/openapi.json", headers=bearer).raw_schema
        for path, operations in document["paths"].items():
            for method in operations.keys() - {"parameters"}:
                answer = running.client.request(method, re.sub(r"{\w+}", "orders", path))
                refused = (answer.status_code, answer.headers.get("www-authenticate")) == (401, "Bearer")
                assert refused or (path == "/v1/health" and answer.json() == {"ready": False}), path


@pytest.mark.soak
def test_every_answer_is_documented_for_a_long_time(served: RunningGateway) -> None:
    explore(served.url, "--max-examples", "300")
    for path in LIVE:
        for mode in GenerationMode:
            follow(served.url, path, mode, 300)
    served.require_sound()
