"""`/`, `/assets/...` and `/penstock.js`: the only paths that the dashboard answers."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.dashboard.assets import CLIENT, CLIENT_TYPES, HEADERS, PAGE, Asset, load
from penstock.encodings import accepts_gzip

CLIENT_PATHS = (f"/{CLIENT}", f"/{CLIENT_TYPES}")
"""Where the client for browsers stands, and its types. Like the page, they are for everyone."""


def routes() -> list[BaseRoute]:
    """The dashboard's routes, for `runtime` to put beside those of the API.

    Reads the files when called, and nothing after that: answering never touches the disk or blocks the loop.
    """
    assets = load()

    async def page(request: Request) -> Response:
        return _answer(request, assets, PAGE)

    async def asset(request: Request) -> Response:
        return _answer(request, assets, request.path_params["path"])

    async def client(request: Request) -> Response:
        return _answer(request, assets, request.url.path.removeprefix("/"))

    return [
        Route("/", page, name="dashboard"),
        *(Route(path, client) for path in CLIENT_PATHS),
        Route("/assets/{path:path}", asset, name="dashboard-assets"),
    ]


def _answer(request: Request, assets: Mapping[str, Asset], path: str) -> Response:
    asset = assets.get(path)
    if asset is None:
        return PlainTextResponse("not found", status_code=404, headers=HEADERS)
    headers, body = {**HEADERS, "ETag": asset.etag}, asset.body
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        headers, body = headers | {"ETag": asset.compressed_etag, "Content-Encoding": "gzip"}, asset.compressed
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        headers.pop("Content-Encoding", None)
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=asset.media_type, headers=headers)
