"""The files that the server sends: strict headers, only its own files, nothing that the policy would block."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from penstock.dashboard import HEADERS, load, routes
from penstock.dashboard.assets import STATIC

LINES_MAX = 250
OWN = [path for path in STATIC.rglob("*.js") if "vendor" not in path.parts]


APP = Starlette(routes=routes())


def get(path: str, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://test") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize("path", ["/", "/assets/main.js", "/assets/style/base.css", "/assets/nothing.js"])
def test_every_answer_carries_the_strict_headers(path: str) -> None:
    """The page, a module, a style sheet and a miss all have the policy, nosniff and no-referrer."""
    answer = get(path)
    policy = answer.headers["content-security-policy"].split("; ")
    wanted = {
        "default-src 'self'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:",
        "object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
    }  # fmt: skip
    assert wanted <= set(policy)
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path",
    ["%2e%2e/__init__.py", "..%2f__init__.py", "/etc/passwd", "vendor/README.md", "vendor/preact.LICENSE", "style", ""],
)
def test_only_files_of_the_page_are_served(path: str) -> None:
    """No path leads out of the folder, and files that a browser does not need are not served."""
    assert get(f"/assets/{path}").status_code == 404


def test_an_unchanged_file_is_not_sent_again() -> None:
    """A browser that has the file gets an empty 304, with the headers."""
    tag = get("/assets/main.js").headers["etag"]
    again = get("/assets/main.js", **{"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


def test_the_page_has_no_inline_script_and_no_inline_style() -> None:
    """Nothing in the page needs an exception in the policy."""
    page = load()["index.html"].body.decode()
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)


def test_every_import_and_link_is_a_file_that_is_served() -> None:
    """The page works offline: each reference is relative and there."""
    assets = load()
    for name, asset in assets.items():
        for target in (
            re.findall(r"""^import [^"]*"([^"]+)";""", asset.body.decode(), re.MULTILINE) if name.endswith("js") else []
        ):
            assert target.startswith("."), f"{name} imports {target}"
            path = (STATIC / name).parent.joinpath(target).resolve().relative_to(STATIC.resolve())
            assert path.as_posix() in assets, f"{name} imports {target}"
    for target in re.findall(r'(?:href|src)="assets/([^"]+)"', assets["index.html"].body.decode()):
        assert target in assets


def test_no_module_turns_text_into_markup_or_code() -> None:
    """Our own modules use none of the ways by which data could become script."""
    banned = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerously|\beval\(|new Function")
    assert [path.name for path in OWN if banned.search(path.read_text())] == []


def test_modules_stay_small() -> None:
    """No module of the page is too long to read."""
    assert OWN
    assert [path.name for path in OWN if len(path.read_text().splitlines()) > LINES_MAX] == []


def test_each_vendored_library_has_its_licence_and_stands_in_the_list() -> None:
    """Name, version and licence of each library are stated beside it."""
    vendor: Path = STATIC / "vendor"
    listed = (vendor / "README.md").read_text()
    for library in vendor.glob("*.mjs"):
        assert library.with_suffix(".LICENSE").read_text().strip()
        assert re.search(rf"\| {library.stem} \| \d+\.\d+\.\d+ \| \S+", listed)
