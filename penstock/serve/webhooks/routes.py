"""The HTTP routes of webhooks."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access import Caller, caller_of
from penstock.core.errors import BadParameter, MalformedBody, Unauthorized
from penstock.core.settings import Settings
from penstock.http.arriving import has_ended
from penstock.http.problems import HEADERS
from penstock.http.small_body import read_body
from penstock.serve.channels.stream_reader import LATEST
from penstock.serve.deps import parameters
from penstock.serve.webhooks.messages import BATCH_MAX
from penstock.serve.webhooks.model import Hook
from penstock.serve.webhooks.registry import Registry

BODY_BYTES_MAX = 64 * 1024
DEAD_PAGE, DEAD_PAGE_MAX = 100, 1_000
NAME_LENGTH_MAX = 64
_ENDED = "the request was accepted, but its key has since been revoked or has expired"
Endpoint = Callable[[Request], Awaitable[Response]]
S = TypeVar("S", bound=msgspec.Struct)
_number = re.compile(r"[0-9]{1,15}", re.ASCII).fullmatch
_name = re.compile(r"[ -~]*").fullmatch


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    stream: str | None = None
    view: str | None = None
    where: str | None = None
    select: str | None = None
    since: str = LATEST
    name: str = ""
    batch: int = 1


class _Since(msgspec.Struct, forbid_unknown_fields=True):
    since: str


class _Which(msgspec.Struct, forbid_unknown_fields=True):
    number: int | None = None


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


def webhook_routes(registry: Registry, body_s: float = Settings.body_s) -> list[BaseRoute]:
    """Return all webhook routes. A request body can take up to `body_s` seconds to arrive."""
    routes = _Routes(registry, body_s)
    one = "/v1/webhooks/{id}"
    return [
        Route("/v1/webhooks", routes.all, methods=["GET", "POST"]),
        Route(one, routes.one, methods=["GET", "DELETE"]),
        Route(f"{one}/pause", routes.posted(routes.pause), methods=["POST"]),
        Route(f"{one}/resume", routes.posted(routes.resume), methods=["POST"]),
        Route(f"{one}/verify", routes.posted(routes.verify), methods=["POST"]),
        Route(f"{one}/rotate", routes.posted(routes.rotate), methods=["POST"]),
        Route(f"{one}/redrive", routes.posted(routes.redrive), methods=["POST"]),
        Route(f"{one}/dead", routes.dead, methods=["GET"]),
        Route(f"{one}/dead/redrive", routes.posted(routes.revive), methods=["POST"]),
    ]


Call = Callable[[Caller, str, bytes], Awaitable[Response]]


class _Routes:
    def __init__(self, registry: Registry, body_s: float) -> None:
        self._registry, self._body_s = registry, body_s

    def posted(self, call: Call) -> Endpoint:
        """Return a webhook endpoint that passes the request body to `call`."""

        async def answer(request: Request) -> Response:
            caller = _admitted(request)
            response = await call(caller, request.path_params["id"], await self._webhook_body(request))
            _require_valid_key(caller)
            return response

        return answer

    async def _webhook_body(self, request: Request) -> bytes:
        return await read_body(request, bytes_max=BODY_BYTES_MAX, limit_s=self._body_s)

    async def all(self, request: Request) -> Response:
        if request.method != "POST":
            parameters(request.query_params.multi_items())
            return _webhook_response({"webhooks": self._registry.listed(caller_of(request.scope))})
        caller = _admitted(request)
        wanted = _decoded_webhook_body(await self._webhook_body(request), _Wanted)
        description, secret = await self._registry.register(caller, _requested_hook(wanted), wanted.since)
        _require_valid_key(caller)
        return _webhook_response({**description, "secret": secret}, 201)

    async def one(self, request: Request) -> Response:
        parameters(request.query_params.multi_items())
        caller, id = caller_of(request.scope), request.path_params["id"]
        if request.method == "DELETE":
            await self._registry.remove(caller, id)
            return Response(status_code=204, headers=HEADERS)
        return _webhook_response(self._registry.get(caller, id))

    async def pause(self, caller: Caller, id: str, body: bytes) -> Response:
        _decoded_webhook_body(body, _Nothing)
        return _webhook_response(await self._registry.pause(caller, id))

    async def resume(self, caller: Caller, id: str, body: bytes) -> Response:
        _decoded_webhook_body(body, _Nothing)
        return _webhook_response(await self._registry.resume(caller, id))

    async def verify(self, caller: Caller, id: str, body: bytes) -> Response:
        _decoded_webhook_body(body, _Nothing)
        return _webhook_response(await caller.while_valid(self._registry.verify(caller, id), _ENDED))

    async def rotate(self, caller: Caller, id: str, body: bytes) -> Response:
        _decoded_webhook_body(body, _Nothing)
        description, secret = await self._registry.rotate(caller, id)
        return _webhook_response({**description, "secret": secret})

    async def redrive(self, caller: Caller, id: str, body: bytes) -> Response:
        since = _decoded_webhook_body(body, _Since).since
        return _webhook_response(await self._registry.redrive(caller, id, _webhook_since(since)))

    async def revive(self, caller: Caller, id: str, body: bytes) -> Response:
        number = _decoded_webhook_body(body, _Which).number
        return _webhook_response({"redriven": await self._registry.revive(caller, id, number)})

    async def dead(self, request: Request) -> Response:
        given = parameters(request.query_params.multi_items(), "after", "limit")
        after = _dead_page_integer(given.get("after", "0"), "after", 10**15)
        limit = _dead_page_integer(given.get("limit", str(DEAD_PAGE)), "limit", DEAD_PAGE_MAX)
        letters = await self._registry.dead(caller_of(request.scope), request.path_params["id"], after, limit)
        return _webhook_response({"dead": letters})


def _admitted(request: Request) -> Caller:
    """Return the caller of a webhook route's POST, and count the request against the caller's rate limit, because POSTs
    are not counted before this."""
    parameters(request.query_params.multi_items())
    caller = caller_of(request.scope)
    caller.require_room()
    caller.spend(1)
    return caller


def _require_valid_key(caller: Caller) -> None:
    """Raise `Unauthorized` if the caller's key was revoked or expired while its change was made."""
    if has_ended(caller):
        raise Unauthorized(_ENDED)


def _decoded_webhook_body(body: bytes, cls: type[S]) -> S:
    try:
        return msgspec.json.decode(body or b"{}", type=cls)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBody(f"invalid body: {error}") from None


def _requested_hook(wanted: _Wanted) -> Hook:
    """Build a webhook's registration from a request. Checks everything that can be checked without other data."""
    named = [(kind, of) for kind, of in (("stream", wanted.stream), ("view", wanted.view)) if of is not None]
    if len(named) != 1:
        raise BadParameter("pass exactly one of `stream` and `view`", parameter="stream")
    if not 1 <= wanted.batch <= BATCH_MAX:
        raise BadParameter(f"batch must be an integer from 1 to {BATCH_MAX}", parameter="batch")
    if len(wanted.name) > NAME_LENGTH_MAX or not _name(wanted.name):
        message = f"name must be at most {NAME_LENGTH_MAX} printable ASCII characters long"
        raise BadParameter(message, parameter="name")
    _webhook_since(wanted.since)
    (kind, of), now = named[0], datetime.now(UTC)
    return Hook("", wanted.url, kind, of, "", now, wanted.name, wanted.where, wanted.select, wanted.batch)


def _webhook_since(text: str) -> str:
    if not text:
        raise BadParameter("since must be a cursor, 'earliest' or 'latest'", parameter="since")
    return text


def _dead_page_integer(text: str, name: str, most: int) -> int:
    if not _number(text) or int(text) > most:
        raise BadParameter(f"{name} must be an integer from 0 to {most}", parameter=name)
    return int(text)


def _webhook_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, headers=HEADERS, media_type="application/json")
