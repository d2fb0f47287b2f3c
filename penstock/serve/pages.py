"""`GET /v1/streams/{name}` and `GET /v1/views/{name}`: pages, long polling, and 304 where nothing has changed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.access import caller_of
from penstock.contracts import Channel, Page
from penstock.errors import BadParameter, NotFound
from penstock.serve.channels.ranges import PARAMETERS, asked
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import while_heard
from penstock.serve.deps import Deps, parameters
from penstock.serve.problems import HEADERS
from penstock.serve.sliced import answered

COMMON = ("since", "limit", "wait", "where", "select")
ALL = "all"
"""The limit of those who want a view as a whole."""


class PageEndpoint:
    """Pages of a `stream` or `view`."""

    def __init__(self, deps: Deps, kind: str) -> None:
        self._deps = deps
        self._kind = kind
        self._known = (*COMMON, "last" if kind == "stream" else "order")

    async def __call__(self, request: Request) -> Response:
        if request.method == "POST":  # the front door's, which comes first; named here so that `Allow` has it
            raise NotFound("events are not taken here")
        name = request.path_params["name"]
        channel = self._deps.channel(self._kind, name, caller_of(request.scope))
        units = self._deps.rollups.get(name, ()) if self._kind == "view" else ()
        given = parameters(request.query_params.multi_items(), *self._known, *(PARAMETERS if units else ()))
        wanted = asked(given, units) if units else None
        if wanted is not None and isinstance(channel, ViewChannel):
            channel = channel.through(wanted.condition, None) if "since" in given else channel.within(wanted)
        if "where" in given or "select" in given:
            channel = channel.through(given.get("where"), given.get("select"))
        page = await self._page(channel, given, request)
        tag = f'W/"{page.tag}"'
        if not {tag, "W/*"}.isdisjoint(_tags(request.headers.get("if-none-match", ""))):
            return Response(None, 304, headers=HEADERS | {"ETag": tag})
        return answered(page.body, self._deps.connections, HEADERS | {"ETag": tag}, end=page.end)

    async def _page(self, channel: Channel, given: dict[str, str], request: Request) -> Page:
        if "last" in given:
            if given.keys() & {"since", "wait", "limit"}:
                raise BadParameter(
                    "last is the end of the stream: it goes without since, wait and limit", parameter="last"
                )
            return await channel.last(self._count("last", given))
        since, limit = given.get("since"), None if given.get("limit") == ALL else self._count("limit", given)
        if "order" in given and given.keys() & {"since", "wait"}:
            raise BadParameter("changes come in their own order: order goes without since and wait", parameter="order")
        if "order" in given:
            return await channel.page(since, limit, order=given["order"])
        wait_s = self._wait_s(given)
        if wait_s == 0:
            return await channel.page(since, limit)
        with self._deps.connections.one(caller_of(request.scope).name):
            return await while_heard(channel.page(since, limit, wait_s), request, self._deps.closing)

    def _wait_s(self, given: dict[str, str]) -> float:
        text, most = given.get("wait"), self._deps.settings.wait_s_max
        if text is None:
            return 0
        if "since" not in given:
            raise BadParameter("wait needs since: a cursor, or latest", parameter="wait")
        try:
            found = float(text)
        except ValueError:
            found = -1
        if len(text) > 20 or not 0 <= found <= most:
            raise BadParameter(f"wait must be a number of seconds from 0 to {most:g}", parameter="wait")
        return found

    def _count(self, name: str, given: dict[str, str]) -> int:
        text, most = given.get(name), self._deps.settings.page_events_max
        if text is None:
            return min(self._deps.settings.page_events, most)
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
            word = f", or {ALL!r}" if self._kind == "view" else ""
            raise BadParameter(f"{name} must be a whole number from 1 to {most}{word}", parameter=name)
        return int(text)


def _tags(header: str) -> list[str]:
    """The tags of an `If-None-Match`, or `*`, which is any. They are compared weakly, as the standard says."""
    tags = [each.strip() for each in header[:4096].split(",")]
    return [each if each.startswith("W/") else f"W/{each}" for each in tags]
