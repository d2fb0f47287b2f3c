"""The OpenAPI document: complete, sound, and of this app."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from starlette.routing import Route, WebSocketRoute

from penstock.schema import EpochMillis, Event, Raw, Record
from penstock.serve.http import routes
from penstock.serve.openapi import document
from penstock.serve.socket import no_such_socket
from penstock.serve.webhooks.crew import Around
from penstock.serve.webhooks.registry import Registry
from penstock.serve.webhooks.routes import webhook_routes
from penstock.settings import Settings
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


def made() -> dict[str, Any]:
    return document(APP, {"sales": Sale, "more": Sale, "readings": Reading, "raw": Raw}, Settings())


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in the document."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from parts(each)
    elif isinstance(value, list):
        for each in value:
            yield from parts(each)


def test_the_document_has_every_route_and_no_other() -> None:
    """Paths and methods are those that are served, and the front door's POST."""

    async def main() -> set[tuple[str, str]]:
        found = {("/v1/streams/{name}", "post")}
        registry = Registry(Path("none"), Settings(), Around(lambda name: None, lambda kind, of: ()))
        for route in (*routes(make_deps()), *webhook_routes(registry)):
            if isinstance(route, Route):
                path = route.path.replace(":path}", "}")
                found |= {(path, method.lower()) for method in (route.methods or ()) if method != "HEAD"}
            elif isinstance(route, WebSocketRoute) and route.endpoint is not no_such_socket:
                found.add((route.path, "get"))
        return found

    said = {
        (path, method)
        for path, operations in made()["paths"].items()
        for method in operations
        if method != "parameters"
    }
    assert said == run(main())


def test_every_reference_leads_somewhere() -> None:
    """A `$ref` names a component that is there."""
    found = made()
    references = [part["$ref"] for part in parts(found) if "$ref" in part]
    assert references
    for reference in references:
        target: Any = found
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def test_path_parameters_are_declared() -> None:
    """What stands in braces is a required parameter of its path."""
    for path, operations in made()["paths"].items():
        declared = {each["name"] for each in operations.get("parameters", ()) if each["in"] == "path"}
        assert declared == set(re.findall(r"\{(\w+)\}", path))


def test_the_events_of_the_app_are_described() -> None:
    """A stream's event class is a schema that says what the front door takes; the names are examples."""
    found = made()
    schemas = found["components"]["schemas"]
    assert schemas["sales.Sale"]["required"] == ["at", "seen"]
    assert schemas["sales.Sale"]["properties"]["seen"]["type"] == "integer"
    assert "sales.Venue" in schemas
    assert found["paths"]["/v1/streams/{name}"]["parameters"][0]["schema"]["examples"] == ["sales"]
    assert (found["openapi"], found["info"]["version"]) == ("3.1.0", "1.2")


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
    """An empty app is no special case."""
    assert msgspec.json.decode(msgspec.json.encode(document({}, {}, Settings())))["paths"]
