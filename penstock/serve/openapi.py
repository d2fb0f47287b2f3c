"""The OpenAPI 3.1 document for an app: the API's paths, with the app's names and its streams' event schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.core.schema import Event, Raw, wire_class
from penstock.core.settings import Settings
from penstock.serve.webhooks.openapi import WEBHOOK_SCHEMAS, webhook_paths

Object = dict[str, Any]
EVERYWHERE = ("400", "401", "403", "408", "429", "431", "500", "503")
"""Statuses that any request can return, because of a limit or check that runs before the routes, or because a disk
failed."""
_BUSY = ("429", "503", "507")
_CURSOR: Object = {"type": "string", "description": "An opaque position: pass it as `since` to continue from there."}
_SINCE: Object = {
    "name": "since",
    "in": "query",
    "schema": {"type": "string", "minLength": 1},
    "description": "A cursor, `earliest` or `latest`.",
}
_FILTER: tuple[Object, ...] = (
    {
        "name": "where",
        "in": "query",
        "schema": {"type": "string", "minLength": 1},
        "description": "A SQL condition: only rows for which it is true are returned.",
    },
    {
        "name": "select",
        "in": "query",
        "schema": {"type": "string", "minLength": 1},
        "description": "A list of columns or SQL expressions to return.",
    },
)
_NONE_MATCH: Object = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "The `ETag` of an earlier response. Returns 304 if nothing has changed.",
}
_ORDER: Object = {
    "name": "order",
    "in": "query",
    "schema": {"type": "string", "minLength": 1},
    "description": "Columns to sort the rows by, such as `city, total DESC`. Not allowed with `since`.",
}
_RANGE: tuple[Object, ...] = (
    {
        "name": "per",
        "in": "query",
        "schema": {"type": "string", "minLength": 1},
        "description": "For a rollup: the unit of the buckets to return, such as `hour`.",
    },
    {
        "name": "from",
        "in": "query",
        "schema": {"type": "string", "format": "date-time"},
        "description": "With `per`: only buckets that begin at this time or later.",
    },
    {
        "name": "to",
        "in": "query",
        "schema": {"type": "string", "format": "date-time"},
        "description": "With `per`: only buckets that begin before this time.",
    },
)
_KEY: Object = {
    "name": "key",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "The value of the handler's key; for a key with several fields, a JSON array of their values.",
}
_LAST_EVENT_ID: Object = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": {"type": "string"},
    "description": "The id of the last event received; overrides `since`.",
}
_PUBLISH = (
    'A WebSocket that accepts events. Send `{"seq": n, "event": {...}}` or `{"seq": n, "events": [...]}`, increasing '
    '`seq` by one each time. The server sends `{"event": "ack", "seq": n}` once all events up to `n` are durable.'
)
_PRODUCER: Object = {
    "name": "producer",
    "in": "query",
    "schema": {"type": "string", "minLength": 1, "maxLength": 100},
    "description": "The sender's name. A message that it sends again is recognised by its `seq`.",
}
_POSTING: tuple[Object, ...] = (
    {
        "name": "ack",
        "in": "query",
        "schema": {"type": "string", "enum": ["durable", "none"]},
        "description": "`none` returns 202 immediately, before the events are durable.",
    },
    {
        "name": "reply",
        "in": "query",
        "schema": {"type": "string", "minLength": 1},
        "description": "A stream or view. The response includes the results that the events produce there.",
    },
    {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!#-~]([ -~]*[!#-~])?$"},
        "description": "A string that identifies this request, for events that have no id.",
    },
)
_TIMEOUT: Object = {"name": "timeout", "in": "query", "description": "Seconds to wait for the reply."}
_ACK: Object = {
    "name": "ack",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "The `ack` from an earlier response.",
}
_SQL: Object = {
    "name": "sql",
    "in": "query",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "The SQL of the query.",
}
_LIVE = (
    "Server-sent events: `snapshot`, `change`, `progress`, `reset`, `stall`, and a final `error` if the channel fails. "
    "The id of each event is a cursor."
)
_SOCKET = (
    'A WebSocket with many subscriptions. Send `{"op": "subscribe", "id", "view", "stream" or "query", "since"?, '
    '"where"?, "select"?, "window"?}`, or `unsubscribe`, `filter`, `ack`, `pause`, `resume`, `pace` with the same id, '
    'or `{"op": "ping"}`. The server sends `{"id", "event", "cursor", "data"}`.'
)


def document(app: Mapping[str, Any], events: Mapping[str, type[Event]], settings: Settings) -> Object:
    """Return the OpenAPI document for an app. `app` is the body of `/v1/app`, and `events` contains the event
    classes."""
    event_schemas, components = _event_schemas(events)
    streams = [item["name"] for item in app.get("streams", ())]
    views = [item["name"] for item in app.get("views", ())]
    handlers = [item["name"] for item in app.get("handlers", ())]
    ranges = _RANGE if any(item.get("units") for item in app.get("views", ())) else ()
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{app.get('name', 'app')} on Penstock", "version": str(app.get("version", "0"))},
        "paths": {
            "/v1/streams/{name}": {
                "parameters": [_name_parameter("stream", streams)],
                "get": _read_operation("Events of a stream", "StreamPage", settings, [_last_parameter(settings)]),
                "post": _post_operation(event_schemas, settings, opaque=Raw in events.values()),
            },
            "/v1/views/{name}": {
                "parameters": [_name_parameter("view", views)],
                "get": _read_operation(
                    "Rows of a view, or its changes after a cursor", "ViewPage", settings, [_ORDER, *ranges]
                ),
            },
            "/v1/streams/{name}/live": {
                "parameters": [_name_parameter("stream", streams)],
                "get": _live_operation("stream"),
            },
            "/v1/views/{name}/live": {"parameters": [_name_parameter("view", views)], "get": _live_operation("view")},
            "/v1/streams/{name}/publish": {
                "parameters": [_name_parameter("stream", streams)],
                "get": _operation(
                    "Send events",
                    {"101": {"description": _PUBLISH}},
                    parameters=[_PRODUCER],
                    also=("404", "426"),
                ),
            },
            "/v1/query": {"post": _query_operation(settings)},
            "/v1/query/live": {
                "get": _live_operation("query") | {"parameters": [_SINCE, _SQL, _LAST_EVENT_ID]},
            },
            "/v1/live": {"get": _operation("Live subscriptions", {"101": {"description": _SOCKET}}, also=("426",))},
            "/v1/acks/{ack}": {
                "parameters": [_ACK],
                "get": _operation(
                    "The outcome of a request's events",
                    _ok_response({"$ref": "#/components/schemas/Acknowledged"}),
                    also=("404",),
                ),
            },
            "/v1/handlers/{name}/state/{key}": {
                "parameters": [_name_parameter("handler", handlers), _KEY],
                "get": _operation(
                    "The state of a key", _ok_response({"$ref": "#/components/schemas/KeyState"}), also=("404",)
                ),
            },
            "/v1/app": {"get": _operation("The app with live figures", _ok_response({"type": "object"}))},
            "/v1/health": {
                "get": _operation("Readiness of the app, with the reasons if it is not ready", _health_responses())
            },
            "/v1/openapi.json": {"get": _operation("This document", _ok_response({"type": "object"}))},
            "/metrics": {"get": _operation("Prometheus metrics", _ok_response({"type": "string"}, "text/plain"))},
            **webhook_paths(_operation),
        },
        "security": [{}, {"key": []}],
        "components": {
            "schemas": _SCHEMAS | WEBHOOK_SCHEMAS | components,
            "responses": {"Problem": _PROBLEM, "Busy": _LATER},
            "securitySchemes": {"key": _BEARER},
        },
    }


def _event_schemas(events: Mapping[str, type[Event]]) -> tuple[list[Object], Object]:
    """Return the JSON Schema for each stream's events, and the components that the schema refers to, named after the
    stream.

    A stream without a class accepts events of any form.
    """
    schemas: list[Object] = []
    components: Object = {}
    for stream, event in events.items():
        if event is Raw:
            continue
        template = f"#/components/schemas/{stream}.{{name}}"
        try:
            event_schemas, parts = msgspec.json.schema_components([wire_class(event)], ref_template=template)
        except KeyError:  # msgspec cannot distinguish two records with the same name
            event_schemas, parts = ({"type": "object", "title": event.__name__},), {}
        schemas += event_schemas
        components |= {f"{stream}.{name}": part for name, part in parts.items()}
    return schemas, components


def _name_parameter(kind: str, names: list[str]) -> Object:
    schema: Object = {"type": "string"} | ({"examples": names} if names else {})
    return {"name": "name", "in": "path", "required": True, "schema": schema, "description": f"The name of a {kind}."}


def _last_parameter(settings: Settings) -> Object:
    schema = {"type": "integer", "minimum": 1, "maximum": settings.page_events_max}
    return {
        "name": "last",
        "in": "query",
        "schema": schema,
        "description": "The number of latest events to return. Not allowed with `since`.",
    }


def _read_operation(summary: str, schema: str, settings: Settings, own: Sequence[Object]) -> Object:
    limit: Object = {"type": "integer", "minimum": 1, "maximum": settings.page_events_max}
    if schema == "ViewPage":
        limit = {"anyOf": [limit, {"const": "all"}]}
    limit["default"] = settings.page_events
    wait = {
        "name": "wait",
        "in": "query",
        "schema": {"type": "number", "minimum": 0, "maximum": settings.wait_s_max},
        "description": "Seconds to wait for new data after `since`, if there is none yet.",
    }
    return _operation(
        summary,
        _ok_response({"$ref": f"#/components/schemas/{schema}"}) | {"304": {"description": "Nothing has changed."}},
        parameters=[_SINCE, {"name": "limit", "in": "query", "schema": limit}, wait, *_FILTER, *own, _NONE_MATCH],
        also=("404",),
    )


def _post_operation(event_schemas: list[Object], settings: Settings, *, opaque: bool) -> Object:
    one: Object = {"anyOf": event_schemas} if event_schemas else {"type": "object"}
    content: Object = {
        "application/json": {"schema": {"anyOf": [one, {"type": "array", "items": one}]}},
        "application/x-ndjson": {"schema": {"type": "string", "description": "One event per line."}},
    }
    if opaque:
        described = "One event with any content, for a stream without an event class."
        content["application/octet-stream"] = {"schema": {"type": "string", "description": described}}
    receipt = _ok_response({"$ref": "#/components/schemas/Receipt"})
    answers = receipt | {"202": receipt["200"] | {"description": "Accepted, not yet durable."}}
    timeout = _TIMEOUT | {"schema": {"type": "number", "exclusiveMinimum": 0, "maximum": settings.reply_s_max}}
    refusals = ("404", "413", "415", "422", "504", "507")
    operation = _operation("Append events", answers, parameters=[*_POSTING, timeout], also=refusals)
    return operation | {"requestBody": {"required": True, "content": content}}


def _live_operation(kind: str) -> Object:
    answers = {"200": {"description": _LIVE, "content": {"text/event-stream": {"schema": {"type": "string"}}}}}
    return _operation(f"Follow a {kind}", answers, parameters=[_SINCE, *_FILTER, _LAST_EVENT_ID], also=("404",))


def _query_operation(settings: Settings) -> Object:
    asked = {
        "type": "object",
        "required": ["sql"],
        "additionalProperties": False,
        "properties": {
            "sql": {"type": "string", "maxLength": settings.query_text_max, "description": "One SELECT."},
            "limit": {"type": ["integer", "null"], "minimum": 1, "maximum": settings.query_rows_max},
            "format": {"enum": ["json", "arrow", None]},
        },
    }
    answers = _ok_response({"$ref": "#/components/schemas/Answer"})
    answers["200"]["content"]["application/vnd.apache.arrow.stream"] = {"schema": {"type": "string"}}
    operation = _operation("Run a query", answers, also=("404", "413", "422"))
    return operation | {"requestBody": {"required": True, "content": {"application/json": {"schema": asked}}}}


def _health_responses() -> Object:
    return {
        status: {
            "description": description,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Health"}}},
        }
        for status, description in (("200", "Ready."), ("503", "Not ready; `reasons` says why."))
    }


def _operation(summary: str, answers: Object, *, parameters: Sequence[Object] = (), also: Sequence[str] = ()) -> Object:
    refusals = {status: _refusal_response(status) for status in sorted({*EVERYWHERE, *also})}
    operation: Object = {"summary": summary, "responses": refusals | answers}
    return operation | ({"parameters": list(parameters)} if parameters else {})


def _refusal_response(status: str) -> Object:
    return {"$ref": f"#/components/responses/{'Busy' if status in _BUSY else 'Problem'}"}


def _ok_response(schema: Object, media: str = "application/json") -> Object:
    return {"200": {"description": "Success.", "content": {media: {"schema": schema}}}}


def _page_schema(required: list[str], **properties: Object) -> Object:
    return {"type": "object", "required": [*required, "cursor"], "properties": {"cursor": _CURSOR} | properties}


_OBJECTS: Object = {"type": "array", "items": {"type": "object"}}
_RESET: Object = {"type": "boolean", "description": "The position is no longer kept: start over with this page."}
_MORE: Object = {"type": "boolean", "description": "Another page is available now."}
_TRUNCATED: Object = {"type": "boolean", "description": "There are more rows than `limit`."}
_COUNT: Object = {"type": "integer", "minimum": 0}
_CHANGE: Object = {
    "type": "object",
    "required": ["upserts", "deletes"],
    "properties": {"upserts": _OBJECTS, "deletes": _OBJECTS},
}
_SCHEMAS: Object = {
    "StreamPage": _page_schema(["events"], events=_OBJECTS, reset=_RESET, more=_MORE),
    "ViewPage": _page_schema(
        [], rows=_OBJECTS, changes={"type": "array", "items": _CHANGE}, reset=_RESET, truncated=_TRUNCATED
    ),
    "Receipt": _page_schema(
        ["accepted", "duplicates", "rejected"],
        accepted=_COUNT,
        duplicates=_COUNT,
        rejected=_COUNT,
        cursor=_CURSOR | {"type": ["string", "null"]},
        errors=_OBJECTS,
        shed={**_COUNT, "description": "Events dropped because the stream is overloaded; omitted if none."},
        ack={"type": ["string", "null"], "description": "An acknowledgement: `GET /v1/acks/ACK` returns the outcome."},
        reply={"type": ["object", "null"], "description": "The results of the events, if requested."},
    ),
    "Answer": {
        "type": "object",
        "required": ["columns", "rows", "cursors", "elapsed_ms"],
        "properties": {
            "columns": _OBJECTS,
            "rows": _OBJECTS,
            "cursors": {"type": "object", "additionalProperties": _CURSOR},
            "elapsed_ms": _COUNT,
            "truncated": _TRUNCATED,
        },
    },
    "Acknowledged": {
        "type": "object",
        "required": ["stream", "events", "logged", "processed"],
        "properties": {
            "stream": {"type": "string"},
            "events": _COUNT,
            "logged": {"type": ["string", "null"]},
            "processed": _OBJECTS,
        },
    },
    "KeyState": _page_schema(
        ["state", "timers"],
        state={"type": "object", "description": "The fields of the handler's state class."},
        timers={"type": "object", "description": "The due time of each pending timer."},
    ),
    "Health": {
        "type": "object",
        "required": ["ready"],
        "description": "A caller without access to the app's figures gets only `ready`.",
        "properties": {
            "ready": {"type": "boolean"},
            "state": {"type": "string"},
            "reasons": {"type": "array", "items": {"type": "string"}},
            "problems": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["kind", "name", "cause", "level", "message", "since", "page"],
                    "properties": {
                        "kind": {"type": "string"},
                        "name": {"type": "string"},
                        "cause": {
                            "type": "string",
                            "enum": ["failed", "events", "disconnected", "died", "recovering"],
                        },
                        "level": {"type": "string", "enum": ["amber", "red"]},
                        "message": {"type": "string"},
                        "since": {"type": "string", "format": "date-time"},
                        "page": {"type": "string", "description": "The dashboard page that shows the problem."},
                    },
                },
            },
        },
    },
    "Problem": {
        "type": "object",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"type": "string"},
            "detail": {"type": "string"},
        },
    },
}
_PROBLEM: Object = {
    "description": "An error with a stable `code`.",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_LATER: Object = _PROBLEM | {
    "description": "A temporary error with a stable `code`: the same request can succeed later.",
    "headers": {
        "Retry-After": {"required": True, "schema": {"type": "integer", "minimum": 1}, "description": "In seconds."}
    },
}
_BEARER: Object = {
    "type": "http",
    "scheme": "bearer",
    "description": "A key, or a token from another issuer. Required once keys exist; a certificate is also accepted.",
}
