"""Routes for `/`, `/assets/...` and `/penstock.js`, the only paths that the dashboard serves."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.dashboard.assets import CLIENT, CLIENT_TYPES, HEADERS, PAGE, Asset, load
from penstock.http.encodings import accepts_gzip

CLIENT_PATHS = (f"/{CLIENT}", f"/{CLIENT_TYPES}")
"""The paths of the browser client and its types. Like the page, they are public."""
_PAGE, _ASSETS = "/", "/assets/"


def is_file(path: str) -> bool:
    """Return whether the dashboard serves a path. Its files are the same for everyone."""
    return path == _PAGE or path in CLIENT_PATHS or path.startswith(_ASSETS)


def routes() -> list[BaseRoute]:
    """Return the dashboard's routes, for `runtime` to add to the API's routes.

    Reads the files once, when called, so serving them never touches the disk or blocks the event loop.
    """
    assets = load()

    async def page(request: Request) -> Response:
        return _asset_response(request, assets, PAGE)

    async def asset(request: Request) -> Response:
        return _asset_response(request, assets, request.path_params["path"])

    async def client(request: Request) -> Response:
        return _asset_response(request, assets, request.url.path.removeprefix("/"))

    return [
        Route(_PAGE, page, name="dashboard"),
        *(Route(path, client) for path in CLIENT_PATHS),
        Route(f"{_ASSETS}{{path:path}}", asset, name="dashboard-assets"),
    ]


def _asset_response(request: Request, assets: Mapping[str, Asset], path: str) -> Response:
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
