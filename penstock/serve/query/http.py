"""`POST /v1/query`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.access import caller_of
from penstock.errors import MalformedBody
from penstock.serve.body import read_body
from penstock.serve.connections import while_heard
from penstock.serve.deps import Deps, parameters
from penstock.serve.problems import HEADERS
from penstock.serve.query.answers import Format
from penstock.serve.sliced import answered

ARROW = "application/vnd.apache.arrow.stream"


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request."""

    sql: str
    limit: int | None = None
    format: Format | None = None


_decode = msgspec.json.Decoder(Asked).decode


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
        format = asked.format or _accepted(request)
        work = self._deps.asked.answer(asked.sql, caller, format, asked.limit)
        answer = await while_heard(work, request, self._deps.closing)
        end, media_type = (b"", ARROW) if format == "arrow" else (answer.json_end, "application/json")
        return answered(answer.data, self._deps.connections, HEADERS, end=end, media_type=media_type)

    async def _asked(self, request: Request) -> Asked:
        most = 8 * self._deps.settings.query_text_max + 1024
        body = await read_body(request, bytes_max=most, limit_s=self._deps.settings.body_s)
        try:
            return _decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise MalformedBody(f'a query is a JSON object, {{"sql": "SELECT ..."}}: {error}') from None


def _accepted(request: Request) -> Format:
    return "arrow" if ARROW in request.headers.get("accept", "").lower() else "json"
