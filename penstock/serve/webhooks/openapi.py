"""The webhook paths in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.serve.channels.stream_reader import LATEST
from penstock.serve.webhooks.address import URL_LENGTH_MAX
from penstock.serve.webhooks.messages import BATCH_MAX
from penstock.serve.webhooks.model import WebhookState
from penstock.serve.webhooks.routes import DEAD_PAGE, DEAD_PAGE_MAX, NAME_LENGTH_MAX

Object = dict[str, Any]
_TEXT: Object = {"type": ["string", "null"]}
_COUNT: Object = {"type": "integer", "minimum": 0}
_ID: Object = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "The id of a webhook.",
}
_DEAD: tuple[Object, ...] = (
    {"name": "after", "in": "query", "schema": _COUNT, "description": "The number of the last dead letter received."},
    {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 0, "maximum": DEAD_PAGE_MAX, "default": DEAD_PAGE},
    },
)
_WANTED: Object = {
    "type": "object",
    "required": ["url"],
    "additionalProperties": False,
    "properties": {
        "url": {
            "type": "string",
            "maxLength": URL_LENGTH_MAX,
            "description": "The address that messages are posted to.",
        },
        "stream": _TEXT,
        "view": _TEXT,
        "where": _TEXT,
        "select": _TEXT,
        "since": {"type": "string", "minLength": 1, "default": LATEST},
        "name": {"type": "string", "maxLength": NAME_LENGTH_MAX, "pattern": "^[ -~]*$"},
        "batch": {"type": "integer", "minimum": 1, "maximum": BATCH_MAX, "default": 1},
    },
}
_FIGURES = ("pending", "retrying", "delivered", "failures", "dead", "forgotten", "secrets", "batch")
_TIMES = ("last_success", "last_error_at", "created")
_TEXTS = ("stream", "view", "where", "select", "reason", "last_error", "secret")
WEBHOOK_SCHEMAS: Object = {
    "Webhook": {
        "type": "object",
        "required": ["id", "url", "state", "cursor", "pending", "dead"],
        "properties": {
            "id": {"type": "string"},
            "name": {"type": "string"},
            "url": {"type": "string"},
            "owner": {"type": "string"},
            "declared": {"type": "boolean"},
            "cursor": {"type": "string"},
            "state": {"type": "string", "enum": [state.value for state in WebhookState]},
            "lag": {"type": ["integer", "null"]},
            **dict.fromkeys(_FIGURES, _COUNT),
            **dict.fromkeys((*_TIMES, *_TEXTS), _TEXT),
        },
    },
}


def webhook_paths(operation: Callable[..., Object]) -> Object:
    """Return the paths of webhooks. `operation` builds each operation."""
    one: Object = {"$ref": "#/components/schemas/Webhook"}
    listed = _webhook_object_answer(webhooks={"type": "array", "items": one})
    paths = {
        "/v1/webhooks": {
            "get": operation("Webhooks of the caller", {"200": listed}),
            "post": _with_webhook_body(
                _WANTED, operation("Register a webhook", {"201": _webhook_schema_answer(one)}, also=_REFUSED)
            ),
        },
        "/v1/webhooks/{id}": {
            "get": operation("A webhook", {"200": _webhook_schema_answer(one)}, also=("404",)),
            "delete": operation("Remove a webhook", {"204": {"description": "Removed."}}, also=("404", "409", "507")),
        },
        "/v1/webhooks/{id}/dead": {
            "get": operation(
                "Dead letters",
                {"200": _webhook_object_answer(dead={"type": "array", "items": {"type": "object"}})},
                parameters=_DEAD,
                also=("404",),
            )
        },
    }
    actions = (
        ("pause", "Pause a webhook", None, one),
        ("resume", "Resume a webhook", None, one),
        ("verify", "Send a challenge now", None, one),
        ("rotate", "Create a new secret", None, one),
        (
            "redrive",
            "Restart from another cursor",
            _webhook_request_schema(since={"type": "string", "minLength": 1}),
            one,
        ),
        ("dead/redrive", "Retry dead letters", _webhook_request_schema((), number={"type": ["integer", "null"]}), None),
    )
    for path, summary, wanted, shown in actions:
        answer = _webhook_object_answer(redriven=_COUNT) if shown is None else _webhook_schema_answer(shown)
        post = operation(summary, {"200": answer}, also=_REFUSED)
        paths[f"/v1/webhooks/{{id}}/{path}"] = {"post": post if wanted is None else _with_webhook_body(wanted, post)}
    return {path: ({"parameters": [_ID]} if "{id}" in path else {}) | item for path, item in paths.items()}


_REFUSED = ("404", "409", "413", "507")
_GONE: Object = {"description": "Removed."}


def _webhook_request_schema(required: tuple[str, ...] | None = None, **properties: Object) -> Object:
    chosen = list(properties) if required is None else list(required)
    return {"type": "object", "required": chosen, "additionalProperties": False, "properties": properties}


def _with_webhook_body(schema: Object, operation: Object) -> Object:
    needed = bool(schema["required"])
    return operation | {"requestBody": {"required": needed, "content": {"application/json": {"schema": schema}}}}


def _webhook_object_answer(**properties: Object) -> Object:
    return _webhook_schema_answer({"type": "object", "required": list(properties), "properties": properties})


def _webhook_schema_answer(schema: Object) -> Object:
    return {"description": "Success.", "content": {"application/json": {"schema": schema}}}
