"""The OpenAPI 3.1 document of an app: the API's paths, with the names and event schemas of this app's streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.schema import Event, Raw, wire_class
from penstock.serve.webhooks.openapi import WEBHOOK_SCHEMAS, webhook_paths
from penstock.settings import Settings

Object = dict[str, Any]
EVERYWHERE = ("400", "401", "403", "408", "429", "431", "500", "503")
"""What may be answered to any request, whatever it asks for: by the edge, the guard, or a disk that fails."""
_BUSY = ("429", "503", "507")
_CURSOR: Object = {"type": "string", "description": "An opaque position: give it back as `since` to go on from there."}
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
        "description": "A condition in SQL: only what it holds for is shown.",
    },
    {
        "name": "select",
        "in": "query",
        "schema": {"type": "string", "minLength": 1},
        "description": "A list of columns or expressions in SQL: what is shown.",
    },
)
_NONE_MATCH: Object = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "The `ETag` of an earlier answer: 304 if there is nothing else to tell.",
}
_ORDER: Object = {
    "name": "order",
    "in": "query",
    "schema": {"type": "string", "minLength": 1},
    "description": "Columns to sort the rows by, as in `city, total DESC`; without `since` only.",
}
_RANGE: tuple[Object, ...] = (
    {
        "name": "per",
        "in": "query",
        "schema": {"type": "string", "minLength": 1},
        "description": "Of a rollup: a unit, as in `hour`. Only its buckets are shown.",
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
    "description": "A value of the handler's key, as text; of a key of several fields, a JSON array of their values.",
}
_LAST_EVENT_ID: Object = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": {"type": "string"},
    "description": "The id of the last event that was received; wins over `since`.",
}
_PUBLISH = (
    'A WebSocket that takes events. Say `{"seq": n, "event": {...}}` or `{"seq": n, "events": [...]}`, with `seq` one '
    'higher each time; the answers are `{"event": "ack", "seq": n}` once all up to there are durable.'
)
_PRODUCER: Object = {
    "name": "producer",
    "in": "query",
    "schema": {"type": "string", "minLength": 1, "maxLength": 100},
    "description": "A name under which a message that is sent again is known by its `seq`.",
}
_POSTING: tuple[Object, ...] = (
    {
        "name": "ack",
        "in": "query",
        "schema": {"type": "string", "enum": ["durable", "none"]},
        "description": "`none` answers 202 at once, before the events are durable.",
    },
    {
        "name": "reply",
        "in": "query",
        "schema": {"type": "string", "minLength": 1},
        "description": "A stream or view: answer with what the events caused there.",
    },
    {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!#-~]([ -~]*[!#-~])?$"},
        "description": "Tells this request from all others, for events that have no id.",
    },
)
_TIMEOUT: Object = {"name": "timeout", "in": "query", "description": "Seconds to wait for the reply."}
_ACK: Object = {
    "name": "ack",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "The `ack` of an answer.",
}
_SQL: Object = {
    "name": "sql",
    "in": "query",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "The text of a query.",
}
_LIVE = (
    "Server-sent events: `snapshot`, `change`, `progress`, `reset`, `stall`, and a last `error` if the channel fails. "
    "The id of each is a cursor."
)
_SOCKET = (
    'A WebSocket with many subscriptions. Say `{"op": "subscribe", "id", "view", "stream" or "query", "since"?, '
    '"where"?, "select"?, "window"?}`, or `unsubscribe`, `filter`, `ack`, `pause`, `resume`, `pace` with the same id, '
    'or `{"op": "ping"}`; the answers are `{"id", "event", "cursor", "data"}`.'
)


def document(app: Mapping[str, Any], events: Mapping[str, type[Event]], settings: Settings) -> Object:
    """The document for an app as `/v1/app` describes it, whose streams have these event classes."""
    event_schemas, components = _events(events)
    streams = [item["name"] for item in app.get("streams", ())]
    views = [item["name"] for item in app.get("views", ())]
    handlers = [item["name"] for item in app.get("handlers", ())]
    ranges = _RANGE if any(item.get("units") for item in app.get("views", ())) else ()
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{app.get('name', 'app')} on Penstock", "version": str(app.get("version", "0"))},
        "paths": {
            "/v1/streams/{name}": {
                "parameters": [_name("stream", streams)],
                "get": _read("Events of a stream", "StreamPage", settings, [_last(settings)]),
                "post": _post(event_schemas, settings, opaque=Raw in events.values()),
            },
            "/v1/views/{name}": {
                "parameters": [_name("view", views)],
                "get": _read("Rows of a view, or its changes after a cursor", "ViewPage", settings, [_ORDER, *ranges]),
            },
            "/v1/streams/{name}/live": {"parameters": [_name("stream", streams)], "get": _live("stream")},
            "/v1/views/{name}/live": {"parameters": [_name("view", views)], "get": _live("view")},
            "/v1/streams/{name}/publish": {
                "parameters": [_name("stream", streams)],
                "get": _operation(
                    "Send events",
                    {"101": {"description": _PUBLISH}},
                    parameters=[_PRODUCER],
                    also=("404", "426"),
                ),
            },
            "/v1/query": {"post": _query(settings)},
            "/v1/query/live": {
                "get": _live("query") | {"parameters": [_SINCE, _SQL, _LAST_EVENT_ID]},
            },
            "/v1/live": {"get": _operation("Live subscriptions", {"101": {"description": _SOCKET}}, also=("426",))},
            "/v1/acks/{ack}": {
                "parameters": [_ACK],
                "get": _operation(
                    "What became of the events of a request",
                    _ok({"$ref": "#/components/schemas/Acknowledged"}),
                    also=("404",),
                ),
            },
            "/v1/handlers/{name}/state/{key}": {
                "parameters": [_name("handler", handlers), _KEY],
                "get": _operation("The state of a key", _ok({"$ref": "#/components/schemas/KeyState"}), also=("404",)),
            },
            "/v1/app": {"get": _operation("The app with live figures", _ok({"type": "object"}))},
            "/v1/health": {"get": _operation("Ready or not, and why", _health())},
            "/v1/openapi.json": {"get": _operation("This document", _ok({"type": "object"}))},
            "/metrics": {"get": _operation("Prometheus metrics", _ok({"type": "string"}, "text/plain"))},
            **webhook_paths(_operation),
        },
        "security": [{}, {"key": []}],
        "components": {
            "schemas": _SCHEMAS | WEBHOOK_SCHEMAS | components,
            "responses": {"Problem": _PROBLEM, "Busy": _LATER},
            "securitySchemes": {"key": _BEARER},
        },
    }


def _events(events: Mapping[str, type[Event]]) -> tuple[list[Object], Object]:
    """The JSON Schema of each stream's event, and the components they refer to, each under its stream's name. What goes
    to a stream without a class is of any form."""
    schemas: list[Object] = []
    components: Object = {}
    for stream, event in events.items():
        if event is Raw:
            continue
        template = f"#/components/schemas/{stream}.{{name}}"
        try:
            found, parts = msgspec.json.schema_components([wire_class(event)], ref_template=template)
        except KeyError:  # two records of one name inside an event: msgspec cannot tell them apart
            found, parts = ({"type": "object", "title": event.__name__},), {}
        schemas += found
        components |= {f"{stream}.{name}": part for name, part in parts.items()}
    return schemas, components


def _name(kind: str, names: list[str]) -> Object:
    schema: Object = {"type": "string"} | ({"examples": names} if names else {})
    return {"name": "name", "in": "path", "required": True, "schema": schema, "description": f"The name of a {kind}."}


def _last(settings: Settings) -> Object:
    schema = {"type": "integer", "minimum": 1, "maximum": settings.page_events_max}
    return {
        "name": "last",
        "in": "query",
        "schema": schema,
        "description": "The latest so many events; not with since.",
    }


def _read(summary: str, schema: str, settings: Settings, own: Sequence[Object]) -> Object:
    limit: Object = {"type": "integer", "minimum": 1, "maximum": settings.page_events_max}
    if schema == "ViewPage":
        limit = {"anyOf": [limit, {"const": "all"}]}
    limit["default"] = settings.page_events
    wait = {
        "name": "wait",
        "in": "query",
        "schema": {"type": "number", "minimum": 0, "maximum": settings.wait_s_max},
        "description": "Seconds to wait for something after `since`, if there is nothing.",
    }
    return _operation(
        summary,
        _ok({"$ref": f"#/components/schemas/{schema}"}) | {"304": {"description": "There is nothing else to tell."}},
        parameters=[_SINCE, {"name": "limit", "in": "query", "schema": limit}, wait, *_FILTER, *own, _NONE_MATCH],
        also=("404",),
    )


def _post(event_schemas: list[Object], settings: Settings, *, opaque: bool) -> Object:
    one: Object = {"anyOf": event_schemas} if event_schemas else {"type": "object"}
    content: Object = {
        "application/json": {"schema": {"anyOf": [one, {"type": "array", "items": one}]}},
        "application/x-ndjson": {"schema": {"type": "string", "description": "One event a line."}},
    }
    if opaque:
        described = "One event as it is, for a stream without an event class."
        content["application/octet-stream"] = {"schema": {"type": "string", "description": described}}
    receipt = _ok({"$ref": "#/components/schemas/Receipt"})
    answers = receipt | {"202": receipt["200"] | {"description": "Taken, not yet durable."}}
    timeout = _TIMEOUT | {"schema": {"type": "number", "exclusiveMinimum": 0, "maximum": settings.reply_s_max}}
    refusals = ("404", "413", "415", "422", "504", "507")
    operation = _operation("Append events", answers, parameters=[*_POSTING, timeout], also=refusals)
    return operation | {"requestBody": {"required": True, "content": content}}


def _live(kind: str) -> Object:
    answers = {"200": {"description": _LIVE, "content": {"text/event-stream": {"schema": {"type": "string"}}}}}
    return _operation(f"Follow a {kind}", answers, parameters=[_SINCE, *_FILTER, _LAST_EVENT_ID], also=("404",))


def _query(settings: Settings) -> Object:
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
    answers = _ok({"$ref": "#/components/schemas/Answer"})
    answers["200"]["content"]["application/vnd.apache.arrow.stream"] = {"schema": {"type": "string"}}
    operation = _operation("Ask a query", answers, also=("404", "413", "422"))
    return operation | {"requestBody": {"required": True, "content": {"application/json": {"schema": asked}}}}


def _health() -> Object:
    return {
        status: {
            "description": description,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Health"}}},
        }
        for status, description in (("200", "Ready."), ("503", "Not ready; `reasons` say why."))
    }


def _operation(summary: str, answers: Object, *, parameters: Sequence[Object] = (), also: Sequence[str] = ()) -> Object:
    refusals = {status: _refusal(status) for status in sorted({*EVERYWHERE, *also})}
    found: Object = {"summary": summary, "responses": refusals | answers}
    return found | ({"parameters": list(parameters)} if parameters else {})


def _refusal(status: str) -> Object:
    return {"$ref": f"#/components/responses/{'Busy' if status in _BUSY else 'Problem'}"}


def _ok(schema: Object, media: str = "application/json") -> Object:
    return {"200": {"description": "As asked.", "content": {media: {"schema": schema}}}}


def _page(required: list[str], **properties: Object) -> Object:
    return {"type": "object", "required": [*required, "cursor"], "properties": {"cursor": _CURSOR} | properties}


_OBJECTS: Object = {"type": "array", "items": {"type": "object"}}
_RESET: Object = {"type": "boolean", "description": "The position is no longer kept: begin again with what is here."}
_MORE: Object = {"type": "boolean", "description": "The next page can be asked for at once."}
_TRUNCATED: Object = {"type": "boolean", "description": "There are more rows than `limit`."}
_COUNT: Object = {"type": "integer", "minimum": 0}
_CHANGE: Object = {
    "type": "object",
    "required": ["upserts", "deletes"],
    "properties": {"upserts": _OBJECTS, "deletes": _OBJECTS},
}
_SCHEMAS: Object = {
    "StreamPage": _page(["events"], events=_OBJECTS, reset=_RESET, more=_MORE),
    "ViewPage": _page(
        [], rows=_OBJECTS, changes={"type": "array", "items": _CHANGE}, reset=_RESET, truncated=_TRUNCATED
    ),
    "Receipt": _page(
        ["accepted", "duplicates", "rejected"],
        accepted=_COUNT,
        duplicates=_COUNT,
        rejected=_COUNT,
        cursor=_CURSOR | {"type": ["string", "null"]},
        errors=_OBJECTS,
        shed={**_COUNT, "description": "Events given up because the stream is overloaded; left out if there are none."},
        ack={"type": ["string", "null"], "description": "An acknowledgement: ask with it what became of the events."},
        reply={"type": ["object", "null"], "description": "What the events caused, if that was asked for."},
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
    "KeyState": _page(
        ["state", "timers"],
        state={"type": "object", "description": "The fields of the handler's state class."},
        timers={"type": "object", "description": "When each timer that waits is due."},
    ),
    "Health": {
        "type": "object",
        "required": ["ready"],
        "description": "Who may not see the figures of the app is told no more than `ready`.",
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
                        "page": {"type": "string", "description": "Where to look, in the dashboard."},
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
    "description": "What is wrong, with a stable `code`.",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_LATER: Object = _PROBLEM | {
    "description": "Not now, with a stable `code`: the same request can succeed later.",
    "headers": {
        "Retry-After": {"required": True, "schema": {"type": "integer", "minimum": 1}, "description": "In seconds."}
    },
}
_BEARER: Object = {
    "type": "http",
    "scheme": "bearer",
    "description": "A key, or a token of another issuer. Asked for once there are keys; a certificate does as well.",
}
