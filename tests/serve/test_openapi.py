"""The OpenAPI document: complete, valid, and about this app."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.routing import Route, WebSocketRoute

from penstock.core.schema import EpochMillis, Event, Raw, Record
from penstock.core.settings import Settings
from penstock.runtime.embedded.webhooks import WebhookStore
from penstock.serve.http import routes
from penstock.serve.openapi import document
from penstock.serve.socket import no_such_socket
from penstock.serve.webhooks.dispatcher import RuntimeCallbacks
from penstock.serve.webhooks.registry import Registry
from penstock.serve.webhooks.routes import webhook_routes
from tests.serve.fakes import Reading, make_deps, run


class Venue(Record):
    name: str


class Sale(Event, time="at"):
    at: datetime
    seen: EpochMillis
    venue: Venue | None = None


class One:
    class Health(Event):
        a: int

    class Venue(Record):
        inner: Venue


class Two:
    class Health(Event):
        b: str


class Odd(Event):
    outer: One.Venue


APP = {"name": "shop", "version": "1.2", "streams": [{"name": "sales"}], "views": [{"name": "best"}]}


def description() -> dict[str, Any]:
    return document(APP, {"sales": Sale, "more": Sale, "readings": Reading, "raw": Raw}, Settings())


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in the document."""
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from parts(child)
    elif isinstance(value, list):
        for child in value:
            yield from parts(child)


def test_the_document_has_every_route_and_no_other() -> None:
    """Paths and methods are those that are served, including the POST of ingestion."""

    async def main() -> set[tuple[str, str]]:
        operations = {("/v1/streams/{name}", "post")}
        registry = Registry(
            partial(WebhookStore, Path("none")), Settings(), RuntimeCallbacks(lambda name: None, lambda kind, of: ())
        )
        for route in (*routes(make_deps()), *webhook_routes(registry)):
            if isinstance(route, Route):
                path = route.path.replace(":path}", "}")
                operations |= {(path, method.lower()) for method in (route.methods or ()) if method != "HEAD"}
            elif isinstance(route, WebSocketRoute) and route.endpoint is not no_such_socket:
                operations.add((route.path, "get"))
        return operations

    said = {
        (path, method)
        for path, operations in description()["paths"].items()
        for method in operations
        if method != "parameters"
    }
    assert said == run(main())


def test_every_reference_leads_somewhere() -> None:
    """A `$ref` names a component that is there."""
    openapi = description()
    references = [part["$ref"] for part in parts(openapi) if "$ref" in part]
    assert references
    for reference in references:
        target: Any = openapi
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def test_path_parameters_are_declared() -> None:
    """A name in braces is a required parameter of its path."""
    for path, operations in description()["paths"].items():
        declared = {parameter["name"] for parameter in operations.get("parameters", ()) if parameter["in"] == "path"}
        assert declared == set(re.findall(r"\{(\w+)\}", path))


def test_the_events_of_the_app_are_described() -> None:
    """A stream's event class is a schema that says what the front door takes; the names are examples."""
    openapi = description()
    schemas = openapi["components"]["schemas"]
    assert schemas["sales.Sale"]["required"] == ["at", "seen"]
    assert schemas["sales.Sale"]["properties"]["seen"]["type"] == "integer"
    assert "sales.Venue" in schemas
    assert openapi["paths"]["/v1/streams/{name}"]["parameters"][0]["schema"]["examples"] == ["sales"]
    assert (openapi["openapi"], openapi["info"]["version"]) == ("3.1.0", "1.2")


def test_classes_of_one_name_do_not_disturb_each_other() -> None:
    """Two events of one name, and one named as a schema of ours, each keep their own fields."""
    schemas = document(APP, {"one": One.Health, "two": Two.Health}, Settings())["components"]["schemas"]
    assert list(schemas["one.Health"]["properties"]) == ["a"]
    assert list(schemas["two.Health"]["properties"]) == ["b"]
    assert "reasons" in schemas["Health"]["properties"]


def test_records_of_one_name_inside_an_event_do_not_break_the_document() -> None:
    """Such an event is described as any object."""
    post = document(APP, {"odd": Odd}, Settings())["paths"]["/v1/streams/{name}"]["post"]
    body = post["requestBody"]["content"]["application/json"]["schema"]
    assert body["anyOf"][0]["anyOf"] == [{"type": "object", "title": "Odd"}]


def test_an_app_without_streams_has_a_document() -> None:
    """An empty app is not a special case."""
    assert msgspec.json.decode(msgspec.json.encode(document({}, {}, Settings())))["paths"]
