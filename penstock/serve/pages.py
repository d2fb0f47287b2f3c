"""`GET /v1/streams/{name}` and `GET /v1/views/{name}`: pages, long polling, and 304 responses if nothing has
changed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.core.access import caller_of
from penstock.core.contracts import Channel, PageBody
from penstock.core.errors import BadParameter, NotFound
from penstock.http.problems import HEADERS
from penstock.serve.channels.ranges import PARAMETERS, asked
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import while_heard
from penstock.serve.deps import Deps, parameters
from penstock.serve.sliced import sliced_response

COMMON = ("since", "limit", "wait", "where", "select")
ALL = "all"
"""The value of `limit` that requests a whole view."""


class PageEndpoint:
    """The endpoint for pages of a `stream` or `view`."""

    def __init__(self, deps: Deps, kind: str) -> None:
        self._deps = deps
        self._kind = kind
        self._known = (*COMMON, "last" if kind == "stream" else "order")

    async def __call__(self, request: Request) -> Response:
        # the collect tier handles POST, and its route comes first; POST is listed here so that `Allow` includes it
        if request.method == "POST":
            raise NotFound("events are not accepted here")
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
        if not {tag, "W/*"}.isdisjoint(_page_tags(request.headers.get("if-none-match", ""))):
            return Response(None, 304, headers=HEADERS | {"ETag": tag})
        return sliced_response(page.body, self._deps.connections, HEADERS | {"ETag": tag}, end=page.end)

    async def _page(self, channel: Channel, given: dict[str, str], request: Request) -> PageBody:
        if "last" in given:
            if given.keys() & {"since", "wait", "limit"}:
                raise BadParameter("last cannot be combined with since, wait or limit", parameter="last")
            return await channel.last(self._count("last", given))
        since, limit = given.get("since"), None if given.get("limit") == ALL else self._count("limit", given)
        if "order" in given and given.keys() & {"since", "wait"}:
            raise BadParameter("changes cannot be sorted: omit order, or omit since and wait", parameter="order")
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
            raise BadParameter("wait can be used only with since, which must be a cursor or latest", parameter="wait")
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1
        if len(text) > 20 or not 0 <= seconds <= most:
            raise BadParameter(f"wait must be a number of seconds from 0 to {most:g}", parameter="wait")
        return seconds

    def _count(self, name: str, given: dict[str, str]) -> int:
        text, most = given.get(name), self._deps.settings.page_events_max
        if text is None:
            return min(self._deps.settings.page_events, most)
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
            word = f", or {ALL!r}" if self._kind == "view" else ""
            raise BadParameter(f"{name} must be an integer from 1 to {most}{word}", parameter=name)
        return int(text)


def _page_tags(header: str) -> list[str]:
    """Parse the page tags in an `If-None-Match` header. All tags are treated as weak, because the standard requires
    weak comparison.

    `*` matches any tag.
    """
    tags = [tag.strip() for tag in header[:4096].split(",")]
    return [tag if tag.startswith("W/") else f"W/{tag}" for tag in tags]
