"""The read routes of the API: pages, live channels, figures, metrics and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from penstock.core.access import EVERYTHING, Caller, caller_of
from penstock.core.errors import Forbidden, NotFound
from penstock.http.problems import HEADERS
from penstock.serve.deps import Deps, parameters
from penstock.serve.metrics import CONTENT_TYPE, render
from penstock.serve.openapi import document
from penstock.serve.pages import PageEndpoint
from penstock.serve.query.http import QueryEndpoint
from penstock.serve.socket import LiveSocket, no_such_socket
from penstock.serve.sse import LiveEvents

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(deps: Deps) -> list[BaseRoute]:
    """Return all read routes of the API. Pass them to `Starlette` together with `problems.exception_handlers()`."""
    return [
        Route("/v1/streams/{name}", PageEndpoint(deps, "stream").__call__, methods=["GET", "POST"]),
        Route("/v1/views/{name}", PageEndpoint(deps, "view").__call__, methods=["GET"]),
        Route("/v1/streams/{name}/publish", _refuse_plain_http_publish, methods=["GET"]),
        Route("/v1/streams/{name}/live", LiveEvents(deps, "stream"), methods=["GET"]),
        Route("/v1/views/{name}/live", LiveEvents(deps, "view"), methods=["GET"]),
        Route("/v1/query", QueryEndpoint(deps).__call__, methods=["POST"]),
        Route("/v1/query/live", LiveEvents(deps, "query"), methods=["GET"]),
        WebSocketRoute("/v1/live", LiveSocket(deps)),
        Route("/v1/live", _refuse_plain_http_live, methods=["GET"]),
        WebSocketRoute("/{path:path}", no_such_socket),
        Route("/v1/handlers/{name}/state/{key:path}", _state_endpoint(deps), methods=["GET"]),
        Route("/v1/acks/{ack}", _ack_endpoint(deps), methods=["GET"]),
        Route("/v1/app", _app_endpoint(deps), methods=["GET"]),
        Route("/v1/health", _health_endpoint(deps), methods=["GET"]),
        Route("/v1/openapi.json", _openapi_endpoint(deps), methods=["GET"]),
        Route("/metrics", _metrics_endpoint(deps), methods=["GET"]),
    ]


async def _refuse_plain_http_live(_: Request) -> Response:
    raise _websocket_required("over plain HTTP, follow /v1/views/NAME/live or /v1/streams/NAME/live")


async def _refuse_plain_http_publish(_: Request) -> Response:
    raise _websocket_required("over plain HTTP, POST to /v1/streams/NAME")


def _websocket_required(instead: str) -> HTTPException:
    return HTTPException(
        426, f"this is a WebSocket endpoint; {instead}", headers={"Upgrade": "websocket", "Connection": "Upgrade"}
    )


def _state_endpoint(deps: Deps) -> Endpoint:
    async def state(request: Request) -> Response:
        name, key = request.path_params["name"], request.path_params["key"]
        _require_state(deps, name, caller_of(request.scope))
        parameters(request.query_params.multi_items())
        read = deps.states.get(name)
        if read is None:
            raise NotFound(f"there is no handler {name[:80]!r}")
        state = await read(key)
        if state is None:
            raise NotFound(f"handler {name} has no state for {key[:80]!r}")
        return _read_api_response(state)

    return state


def _require_state(deps: Deps, name: str, caller: Caller) -> None:
    """Raise `Forbidden` unless the caller can read the handler and all events that its state is computed from."""
    caller.require_all(name)
    if any(caller.sees(stream) is not None for stream in deps.state_inputs.get(name, ())):
        raise Forbidden(
            f"{caller.name} sees only some of the events that {name[:80]!r} reads, but the handler's state is computed "
            "from all of them"
        )


def _ack_endpoint(deps: Deps) -> Endpoint:
    async def ack(request: Request) -> Response:
        parameters(request.query_params.multi_items())
        if deps.acks is None:
            raise NotFound("acknowledgements are not available here")
        return _read_api_response(
            msgspec.json.encode(await deps.acks(request.path_params["ack"], caller_of(request.scope)))
        )

    return ack


def _app_endpoint(deps: Deps) -> Endpoint:
    async def app(request: Request) -> Response:
        caller = caller_of(request.scope)
        caller.require("consume", EVERYTHING)
        parameters(request.query_params.multi_items())
        return _read_api_response(_read_api_body(deps.describe(**_app_details_option(caller))))

    return app


def _health_endpoint(deps: Deps) -> Endpoint:
    async def health(request: Request) -> Response:
        caller = caller_of(request.scope)
        report = deps.health(**_app_details_option(caller))
        if not caller.may("consume", EVERYTHING):
            report = {"ready": report["ready"]}
        return _read_api_response(_read_api_body(report), 200 if report["ready"] else 503)

    return health


def _app_details_option(caller: Caller) -> dict[str, bool]:
    return {} if caller.sees_all_rows else {"details": False}


def _openapi_endpoint(deps: Deps) -> Endpoint:
    async def openapi(request: Request) -> Response:
        app = _visible_app(deps.describe(), caller_of(request.scope))
        shown = {item["name"] for item in app["streams"]}
        events = {name: event for name, event in deps.events.items() if name in shown}
        return _read_api_response(_read_api_body(document(app, events, deps.settings)))

    return openapi


def _metrics_endpoint(deps: Deps) -> Endpoint:
    async def metrics(request: Request) -> Response:
        caller_of(request.scope).require("consume", EVERYTHING)
        return Response(render(deps.describe()), headers=HEADERS | {"Content-Type": CONTENT_TYPE})

    return metrics


def _visible_app(app: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Return an app's description with only the streams, views and handlers that the caller is allowed to use."""

    def sees(name: str) -> bool:
        return caller.may("consume", name) or caller.may("produce", name)

    parts = ("streams", "views", "handlers")
    return app | {part: [item for item in app.get(part, ()) if sees(item["name"])] for part in parts}


def _read_api_body(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


def _read_api_response(body: bytes, status: int = 200) -> Response:
    return Response(body, status, headers=HEADERS, media_type="application/json")
