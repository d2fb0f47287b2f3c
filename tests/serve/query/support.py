"""Views and streams to be queried through the API."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pyarrow as pa

from penstock.core.access import Caller
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.deps import Deps
from penstock.serve.query.queries import Queries
from penstock.serve.query.relations import Relation, StreamRelation, ViewRelation
from tests.serve.fakes import FakeLog, FakeView, Reading, application, make_deps

SETTINGS = Settings(heartbeat_s=0.05, query_s_max=3.0, live_query_ms=20)


class Typed(FakeView):
    """A view of rows that have a key and a whole number."""

    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])


def relations(log: FakeLog, view: FakeView, settings: Settings = SETTINGS) -> dict[str, Relation]:
    stream = StreamRelation(
        "readings",
        log,
        lambda: event_schema(Reading),
        events_max=settings.query_events_max,
        bytes_max=settings.query_memory_bytes,
    )
    return {"readings": stream, "by-key": ViewRelation("by-key", view)}


@asynccontextmanager
async def queried(
    log: FakeLog | None = None,
    view: FakeView | None = None,
    settings: Settings = SETTINGS,
    more: Mapping[str, Relation] = MappingProxyType({}),
) -> AsyncIterator[Deps]:
    """Yield the dependencies of the routes, with a stream `readings` and a view `by-key`."""
    log, view = log or FakeLog(2), view or Typed()
    deps = make_deps(
        streams={"readings": StreamChannel("readings", log, settings, lambda: event_schema(Reading))},
        views={"by-key": ViewChannel("by-key", view, settings, key=["k"])},
        settings=settings,
    )
    queries = Queries({**relations(log, view, settings), **more}, settings)
    try:
        yield replace(deps, queries=queries)
    finally:
        queries.close()


@asynccontextmanager
async def asking(deps: Deps, caller: Caller | None = None) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application(deps, caller), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def ask(client: httpx.AsyncClient, sql: str, **more: Any) -> dict[str, Any]:
    """Return the answer to a query that succeeds."""
    response = await client.post("/v1/query", json={"sql": sql, **more})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def workers() -> list[int]:
    """Return the query processes that this one has started."""
    processes = list[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and "query/worker.py" in (folder / "cmdline").read_text():
                processes.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return processes
