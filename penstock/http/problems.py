"""Error responses: `application/problem+json` with a stable code, for every request that the gateway rejects."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ExceptionHandler

from penstock.core.errors import Busy, PenstockError, StorageError, Unauthorized, as_problem

MEDIA_TYPE = "application/problem+json"
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_CODES = {
    400: "request",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    426: "upgrade_required",
    500: "internal",
}
_log = logging.getLogger("penstock.serve")


def problem_response(error: PenstockError) -> Response:
    """Return the response for a Penstock error, with `Retry-After` if a retry can help."""
    headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, Busy) else {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return _response_of_problem(error.status, as_problem(error), headers)


def unexpected() -> dict[str, Any]:
    """Return the problem for an unexpected error. The error itself appears only in the log."""
    return problem(500, "internal error; see the gateway's log")


def exception_handlers() -> dict[Any, ExceptionHandler]:
    """Return handlers for `Starlette(exception_handlers=...)`: errors in every route, and unknown paths."""

    async def ours(_: HTTPConnection, error: Exception) -> Response:
        assert isinstance(error, PenstockError)
        if isinstance(error, StorageError):
            _log.error("%s", error, exc_info=error)
        return problem_response(error)

    async def routing(connection: HTTPConnection, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = f"{connection.scope.get('method', 'GET')} {connection.url.path[:200]}: {error.detail}"
        return _response_of_problem(error.status_code, problem(error.status_code, detail), error.headers or {})

    async def unforeseen(_: HTTPConnection, error: Exception) -> Response:
        return _response_of_problem(500, unexpected(), {})

    return {PenstockError: ours, HTTPException: routing, Exception: unforeseen}


def problem(status: int, detail: str) -> dict[str, Any]:
    """Return an HTTP problem for a status that no Penstock error uses."""
    title, code = HTTPStatus(status).phrase, _CODES.get(status, "http")
    return {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail}


def _response_of_problem(status: int, problem: dict[str, Any], headers: Mapping[str, str]) -> Response:
    body = msgspec.json.encode(problem, enc_hook=str)
    return Response(body, status, headers=HEADERS | dict(headers), media_type=MEDIA_TYPE)
