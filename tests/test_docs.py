"""The documentation is complete: a setting, error, command, metric or route that it leaves out fails."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.app.app import App
from penstock.app.check import check
from penstock.app.loading import load
from penstock.cli import main as cli
from penstock.core import errors
from penstock.core.schema import UnmappedType
from penstock.core.settings import MIB, Settings
from penstock.serve.metrics import METRICS
from penstock.serve.openapi import EVERYWHERE, document
from tests.harness import START_S, running, wait_for
from tests.test_layers import ABOVE, LAYERS

PROJECT = Path(__file__).parents[1]
PAGES = [*sorted(PROJECT.glob("*.md")), *sorted((PROJECT / "docs").glob("*.md"))]
SOURCES = sorted((PROJECT / "docs/sources").glob("*.md"))
BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```python\n(?P<code>.*?)```\n", re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\((?!https?:)(?P<target>[^)#]+)")
DEMO_PAGES = sorted((PROJECT / "docs/examples").glob("*.md"))
DEMOS = ("rsvps", "fleet", "royalties", *(path.stem for path in DEMO_PAGES))
APPS = [*sorted((PROJECT / "docs/examples").glob("[!t]*.py")), *(PROJECT / f"examples/{name}.py" for name in DEMOS)]


def page(name: str) -> str:
    return (PROJECT / name).read_text()


def table(text: str) -> Iterator[list[str]]:
    """Yield the cells of each row of every table in a page."""
    for line in text.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def settings_table() -> list[list[str]]:
    def shown(value: Any, unit: str) -> str:
        if unit == "bytes" and value >= MIB:
            return f"{value} ({value // MIB} MiB)"
        return f"{value:g}" if type(value) is float else str(value)

    return [
        [f"`PENSTOCK_{setting.name.upper()}`", shown(setting.default, unit), unit, setting.metadata["help"]]
        for setting in fields(Settings)
        for unit in [setting.metadata["unit"]]
    ]


def test_every_setting_is_documented_with_its_default_unit_and_meaning() -> None:
    rows = [row for row in table(page("docs/settings.md")) if row[0].startswith("`PENSTOCK_")]
    wanted = settings_table()
    assert rows == wanted, "\n".join(f"| {' | '.join(row)} |" for row in wanted)


def test_every_error_is_documented_with_its_status_and_whether_a_retry_helps() -> None:
    rows = {row[0].strip("`"): row[1:3] for row in table(page("docs/operations.md")) if len(row) == 5}
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    for error in [*classes, UnmappedType]:
        if issubclass(error, errors.PenstockError):
            status, retry = rows[error.code]
            assert retry == ("yes" if error.retry else "no"), error
            assert status in ("-", str(error.status)), error


def test_every_metric_is_documented_with_its_type_labels_and_meaning() -> None:
    rows = [row for row in table(page("docs/metrics.md")) if row[0].startswith("`penstock_")]
    wanted = [
        [f"`{metric.name}`", metric.type, ", ".join(f"`{label}`" for label in metric.labels) or "-", metric.help]
        for metric in METRICS
    ]
    assert rows == wanted, "\n".join(f"| {' | '.join(row)} |" for row in wanted)


@pytest.mark.parametrize("path", SOURCES, ids=[path.stem for path in SOURCES])
def test_the_apps_on_the_pages_of_sources_are_sound(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "a secret that an example takes from the environment")
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    apps = [block for block in blocks if "App(" in block]
    assert apps
    for number, block in enumerate(apps):
        file = tmp_path / f"{path.stem}_{number}.py"
        file.write_text(block)
        app = load(str(file)).app
        assert check(app) == []
        assert app.inlets


def operations() -> dict[str, dict[str, Any]]:
    """Return each operation of the OpenAPI document, by its method and path, as in `GET /v1/app`."""
    verbs = {"get", "post", "put", "patch", "delete"}
    paths = document({}, {}, Settings())["paths"]
    return {
        f"{verb.upper()} {path}": paths[path][verb] for path in paths for verb in sorted(verbs & paths[path].keys())
    }


@pytest.mark.parametrize("name", operations())
def test_every_route_is_documented_with_its_parameters_and_answers(name: str) -> None:
    sections = re.split(r"^## ", page("docs/api.md"), flags=re.MULTILINE)
    [section] = [section for section in sections if section.startswith(f"{name}\n")]
    operation = operations()[name]
    for parameter in operation.get("parameters", ()):
        assert f"`{parameter['name']}`" in section, f"{parameter['name']} of {name}"
    for status in operation["responses"].keys() - {"200", *EVERYWHERE}:
        assert status in section, f"status {status} of {name}"


def test_what_any_request_may_be_answered_is_documented_once() -> None:
    [section] = re.findall(r"^## Errors\n(.*?)^## ", page("docs/api.md"), re.DOTALL | re.MULTILINE)
    assert all(status in section for status in EVERYWHERE)


def commands() -> dict[str, argparse.ArgumentParser]:
    [choices] = [action.choices for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(choices)


@pytest.mark.parametrize("command", commands())
def test_every_command_is_documented_with_all_its_options(command: str) -> None:
    sections = re.split(r"^## ", page("docs/cli.md"), flags=re.MULTILINE)
    [section] = [section for section in sections if re.match(rf"penstock {command}\b", section)]
    options = [action for action in commands()[command]._actions if action.dest != "help"]
    for option in options:
        for name in option.option_strings or [str(option.metavar)]:
            assert name in section, f"docs/cli.md does not tell of {name} of penstock {command}"
    assert f"`penstock {command} " in page("README.md") or f"`penstock {command}`" in page("README.md")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_block_of_python_is_a_file_word_for_word(path: Path) -> None:
    for block in BLOCK.finditer(path.read_text()):
        assert block["file"], f"{path.name}: a block of Python without its file:\n{block['code'][:200]}"
        assert (PROJECT / block["file"]).read_text() == block["code"]


@pytest.mark.parametrize("path", DEMO_PAGES, ids=lambda path: path.name)
def test_what_the_page_of_a_demo_shows_is_in_its_file(path: Path) -> None:
    code = (PROJECT / f"examples/{path.stem}.py").read_text()
    shown = [block["code"] for block in BLOCK.finditer(path.read_text())]
    assert shown
    assert [excerpt for excerpt in shown if excerpt not in code] == []


@pytest.mark.parametrize("path", [*PAGES, *SOURCES, *DEMO_PAGES], ids=lambda path: path.name)
def test_every_link_leads_to_a_file(path: Path) -> None:
    for link in LINK.finditer(path.read_text()):
        assert (path.parent / link["target"]).exists(), f"{path.name} links to {link['target']}"


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"])
def test_every_path_in_the_text_exists(name: str) -> None:
    paths = re.findall(r"`((?:penstock|tests|docs|examples|bench)/[^`\s]*)`", page(name))
    assert [path for path in paths if not (PROJECT / path).exists()] == []


def test_the_table_of_layers_is_the_one_that_the_tests_enforce() -> None:
    rows = {row[0].strip("`"): row[2] for row in table(page("ARCHITECTURE.md")) if len(row) == 3}
    layers = {name: set(re.findall(r"`(\w+)`", rows[name])) for name in LAYERS}
    assert layers == LAYERS
    assert rows.keys() >= ABOVE - {"__init__"}


def test_the_index_lists_every_page() -> None:
    docs = PROJECT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")} - {"index.md"}
    assert pages - {link["target"] for link in LINK.finditer(page("docs/index.md"))} == set()


@pytest.mark.parametrize("path", APPS, ids=lambda path: path.name)
def test_every_app_in_the_documentation_is_sound(path: Path) -> None:
    app: App = load(str(path)).app
    assert check(app) == []


@pytest.mark.spark
@pytest.mark.parametrize("name", ["test_shop", "test_stock"])
def test_the_tutorials_tests_pass(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "docs/examples"))
    tests = [test for title, test in vars(importlib.import_module(name)).items() if title.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


CALL = re.compile(r"^\$ curl (?P<url>http\S+)(?: -d '(?P<body>[^']+)')?\n(?P<answer>\{.*\})$", re.MULTILINE)


@pytest.mark.spark
def test_the_readmes_calls_are_answered_as_it_says(tmp_path: Path) -> None:
    calls = list(CALL.finditer(page("README.md")))
    assert len(calls) == 3
    with running(PROJECT / "docs/examples/shop.py", tmp_path / "data") as shop:
        for call in calls:
            wait_for(partial(_is_answered, call, shop.url), START_S, call["answer"])
        assert shop.stop() == 0


def _is_answered(call: re.Match[str], address: str) -> bool:
    """Return whether a call has the answer that the page shows, except for what differs from run to run."""
    url = call["url"].replace("http://127.0.0.1:8080", address)
    answer = httpx.post(url, content=call["body"], timeout=30) if call["body"] else httpx.get(url, timeout=30)
    return bool(_timeless(answer.json()) == _timeless(json.loads(call["answer"])))


SERVED = re.compile(r"^\$ curl (?P<how>-s|-N) '?(?P<url>http[^\s']+)'?\n(?P<answer>(?:.+\n)+?)(?=\$|```)", re.MULTILINE)
FIX = {
    "fix_id": "1",
    "at": "2026-01-01T12:00:00Z",
    "vehicle": "v1",
    "speed": 31.5,
    "place": {"lat": 41.88, "lon": -87.63},
}


@pytest.mark.spark
def test_what_the_page_on_serving_shows_is_what_is_served(tmp_path: Path) -> None:
    calls = list(SERVED.finditer(page("docs/serving.md")))
    assert len(calls) == 6
    with running(PROJECT / "docs/examples/fleet_feeds.py", tmp_path / "data") as fleet:
        assert fleet.post("fixes", FIX).status_code == 200
        wait_for(lambda: fleet.view("latest") != [], START_S, "the view")
        for call in calls:
            url = call["url"].replace("http://127.0.0.1:8080", fleet.url)
            if call["how"] == "-s":
                assert _timeless(httpx.get(url, timeout=30).json()) == _timeless(json.loads(call["answer"]))
            else:
                assert _first_event(url) == [
                    line for line in call["answer"].splitlines() if not line.startswith("id: ")
                ]
        assert fleet.stop() == 0


def _first_event(url: str) -> list[str]:
    """Return the event and data lines of the first server-sent event that is more than a progress mark; of a stream,
    from its beginning."""
    headers = {"Last-Event-ID": "earliest"} if "/streams/" in url else {}
    with httpx.stream("GET", url, headers=headers, timeout=30) as response:
        return [line for line in _until_data(response.iter_lines()) if line.startswith(("event:", "data:"))]


def _until_data(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if line.startswith("data:"):
            return


def _timeless(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: "" if name in ("cursor", "ack") else value for name, value in answer.items()}
