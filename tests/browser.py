"""A real browser for tests. Import the fixtures into a conftest: `from tests.browser import browser, page`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL_S_MAX = 240
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def find_browser() -> str | None:
    """The path of an installed browser, None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def install_browser() -> str | None:
    """Install Debian's chromium, if we may: as root, where there is apt-get."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
        subprocess.run(command, check=False, capture_output=True, timeout=INSTALL_S_MAX)
    return find_browser()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module.

    Not for the whole session: while it is there, Playwright keeps an event loop running in the main thread, and another
    module's `asyncio.run` would fail.
    """
    path = find_browser() or install_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh laptop-sized page, with nothing of other tests in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()
