"""The endpoint of `POST /v1/query`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.core.access import caller_of
from penstock.core.errors import MalformedBody
from penstock.http.problems import HEADERS
from penstock.http.small_body import read_body
from penstock.serve.connections import while_heard
from penstock.serve.deps import Deps, parameters
from penstock.serve.query.answers import Format
from penstock.serve.sliced import sliced_response

ARROW = "application/vnd.apache.arrow.stream"


class QueryBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a query's request."""

    sql: str
    limit: int | None = None
    format: Format | None = None


_decode = msgspec.json.Decoder(QueryBody).decode


class QueryEndpoint:
    """The endpoint of `POST /v1/query`."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    async def __call__(self, request: Request) -> Response:
        caller = caller_of(request.scope)
        caller.require_room()
        caller.spend(1)
        parameters(request.query_params.multi_items())
        asked = await self._asked(request)
        format = asked.format or _accepted_format(request)
        work = self._deps.asked.answer(asked.sql, caller, format, asked.limit)
        answer = await while_heard(work, request, self._deps.closing)
        end, media_type = (b"", ARROW) if format == "arrow" else (answer.json_end, "application/json")
        return sliced_response(answer.data, self._deps.connections, HEADERS, end=end, media_type=media_type)

    async def _asked(self, request: Request) -> QueryBody:
        most = 8 * self._deps.settings.query_text_max + 1024
        body = await read_body(request, bytes_max=most, limit_s=self._deps.settings.body_s)
        try:
            return _decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise MalformedBody(f'the body must be a JSON object, such as {{"sql": "SELECT ..."}}: {error}') from None


def _accepted_format(request: Request) -> Format:
    return "arrow" if ARROW in request.headers.get("accept", "").lower() else "json"
