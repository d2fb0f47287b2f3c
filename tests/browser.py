"""A real browser for tests. Import the fixtures into a conftest: `from tests.browser import browser, page`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests import packages

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first has no window to draw, and takes half the time of the others."""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
expect.set_options(timeout=30_000)
"""A page on a busy machine is slow; the tests' own limit ends one that never finishes."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run one browser for the tests of a module.

    Not for the whole session: while it is there, Playwright keeps an event loop running in the main thread, and another
    module's `asyncio.run` would fail.
    """
    path = packages.need(*NAMES, packages=NAMES[:2])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a fresh laptop-sized page, with nothing of other tests in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()
