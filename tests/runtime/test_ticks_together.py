"""Log time advances at once in all streams that a handler reads: else events of one would wait for the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import App, Context, Event, State
from penstock.core.settings import Settings
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.gateway import Gateway


class Reading(Event):
    k: str


class Seen(State):
    count: int = 0


def chained() -> App:
    """Return an app with handlers that read a and b, b and c, and d alone; nobody reads e."""
    app = App("chained")
    for name in "abcde":
        app.stream(name, Reading, key="k")
    for name, reads in {"first": ["a", "b"], "second": ["b", "c"], "third": ["d"]}.items():

        @app.handler(name, reads=reads, key="k", state=Seen)
        def count(seen: Seen, event: Reading, ctx: Context) -> None:
            seen.count += 1

    return app


@pytest.mark.parametrize(
    ("ticked", "expected"), [("", ""), ("a", "abc"), ("c", "abc"), ("d", "d"), ("e", "e"), ("ae", "abce")]
)
def test_streams_that_handlers_read_side_by_side_are_ticked_together(
    ticked: str, expected: str, tmp_path: Path
) -> None:
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    gateway = Gateway(chained(), EmbeddedStorage(directory), Settings())
    assert gateway.status.together(ticked) == set(expected)
    gateway.acks.close()
    gateway.log.close()
