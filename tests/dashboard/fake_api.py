"""A stand-in for the gateway: the API that the dashboard uses, over data that a test sets, and the dashboard itself.

Everything lives on one event loop in a separate thread; a test calls the methods of `FakeApi` from outside, and each
returns when its effect is visible. Cursors are the number of changes or events seen, as text.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.dashboard import routes

Row = dict[str, Any]
Message = dict[str, Any]
T = TypeVar("T")
START_S_MAX = 10.0


class FakeView:
    """A view's rows and every change since the start."""

    def __init__(self, key: list[str], rows: list[Row]) -> None:
        self.key = key
        self.rows = {self.identity(row): row for row in rows}
        self.changes: list[dict[str, list[Row]]] = []
        self.rebuilt = False

    def identity(self, row: Row) -> bytes:
        return msgspec.json.encode([row.get(name) for name in self.key])

    def change(self, upserts: list[Row], deletes: list[Row]) -> None:
        for row in deletes:
            self.rows.pop(self.identity(row), None)
        for row in upserts:
            self.rows[self.identity(row)] = row
        self.changes.append({"upserts": upserts, "deletes": deletes})

    def rebuild(self, rows: list[Row]) -> None:
        """Start again with other rows, as a view does when it is recreated: earlier cursors are invalid now."""
        self.rows = {self.identity(row): row for row in rows}
        self.changes.clear()
        self.rebuilt = True


class FakeApi:
    """The state of the fake app. `app` is the answer of `/v1/app`."""

    def __init__(self, app: dict[str, Any], rows: dict[str, list[Row]], events: dict[str, list[Row]]) -> None:
        self.app = app
        self.views = {view["name"]: FakeView(view["key"], rows.get(view["name"], [])) for view in app["views"]}
        self.streams = {name: list(events.get(name, [])) for name in _stream_names(app)}
        self.asked: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.polls = 0
        self.down = False
        self.key: str | None = None
        self.refusal = "this key is not known here"
        self.sockets: set[WebSocket] = set()
        self.moved = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    def call(self, action: Callable[[], T]) -> T:
        """Run `action` on the server's loop and wake every follower; returns its result."""

        async def run() -> T:
            result = action()
            self.moved.set()
            self.moved = asyncio.Event()
            return result

        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(START_S_MAX)

    def change(self, view: str, upserts: list[Row], deletes: list[Row] | None = None) -> None:
        self.call(lambda: self.views[view].change(upserts, deletes or []))

    def append(self, stream: str, *events: Row) -> None:
        self.call(lambda: self.streams[stream].extend(events))

    def drop(self, *, stay_down: bool = False) -> None:
        """Break every live connection without a closing handshake; `stay_down` also refuses new ones."""

        async def run() -> None:
            self.down = stay_down
            for websocket in list(self.sockets):
                await websocket.close(1012)

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(run(), self.loop).result(START_S_MAX)

    def come_back(self) -> None:
        self.down = False

    def application(self) -> Starlette:
        paths = [
            Route("/v1/app", self._describe),
            Route("/v1/health", self._health),
            Route("/v1/streams/{name}", self._page),
            Route("/v1/{kind}/{name}/live", self._events),
            WebSocketRoute("/v1/live", self._live),
        ]
        return Starlette(routes=[*paths, *routes()])

    async def _describe(self, request: Request) -> Response:
        self.polls += 1
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return Response(msgspec.json.encode({"detail": self.refusal}), 401)
        return Response(status_code=503) if self.down else _json(self.app)

    async def _page(self, request: Request) -> Response:
        events = self.streams.get(request.path_params["name"])
        if events is None:
            return Response(status_code=404)
        if "last" in request.query_params:
            return _json({"events": events[-int(request.query_params["last"]) :], "cursor": str(len(events))})
        since, limit = request.query_params.get("since", "earliest"), int(request.query_params.get("limit", "1000"))
        first = {"earliest": 0, "latest": len(events)}.get(since)
        start = int(since) if first is None else first
        page = events[start : start + limit]
        return _json({"events": page, "cursor": str(start + len(page))})

    async def _health(self, _: Request) -> Response:
        return Response(status_code=503) if self.down else _json({"ready": True})

    async def _events(self, request: Request) -> Response:
        if self.down:
            return Response(status_code=503)
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return Response(msgspec.json.encode({"code": "unauthorized", "detail": "no"}), 401)
        kind, name = request.path_params["kind"], request.path_params["name"]

        async def lines() -> AsyncIterator[bytes]:
            async for message in self._messages(kind.removesuffix("s"), name, request.query_params.get("since")):
                data = msgspec.json.encode(message["data"]).decode()
                self.sent.append({**message, "of": name})
                yield f"event: {message['event']}\nid: {message['cursor']}\ndata: {data}\n\n".encode()

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def _live(self, websocket: WebSocket) -> None:
        if self.down:
            await websocket.close(1013)
            return
        offered = websocket.scope["subprotocols"]
        if self.key is not None and f"penstock.key.{self.key}" not in offered:
            await websocket.close(1008)
            return
        await websocket.accept("penstock.v1" if "penstock.v1" in offered else None)
        self.sockets.add(websocket)
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                self._obey(websocket, msgspec.json.decode(await websocket.receive_text()), tasks)
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            self.sockets.discard(websocket)
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def _obey(self, websocket: WebSocket, message: dict[str, Any], tasks: dict[str, asyncio.Task[None]]) -> None:
        self.asked.append(message)
        if message["op"] == "subscribe":
            tasks[message["id"]] = asyncio.ensure_future(self._follow(websocket, message))
        elif message["op"] == "unsubscribe" and message["id"] in tasks:
            tasks.pop(message["id"]).cancel()

    async def _follow(self, websocket: WebSocket, message: dict[str, Any]) -> None:
        kind = "view" if "view" in message else "stream"
        name = message[kind]

        async def send(reply: Message) -> None:
            await websocket.send_text(msgspec.json.encode({"id": message["id"], **reply}).decode())
            self.sent.append({"id": message["id"], **reply, "of": name})

        if name not in (self.views if kind == "view" else self.streams):
            problem = {"status": 404, "code": "not_found", "detail": f"no view or stream is named {name}"}
            await send({"event": "error", "data": problem})
            return
        await send({"event": "subscribed"})
        async for reply in self._messages(kind, name, message.get("since")):
            await send(reply)

    async def _messages(self, kind: str, name: str, since: str | None) -> AsyncIterator[Message]:
        """Yield the messages to a follower, without end."""

        def message(event: str, data: Any) -> Message:
            return {"event": event, "cursor": str(place), "data": data}

        view = self.views[name] if kind == "view" else None
        source: list[Any] = self.streams[name] if view is None else view.changes
        place = len(source) if since is None or since == "latest" else int(since)
        if view is not None and (since is None or view.rebuilt):
            if since is not None:
                yield message("reset", {"reason": "the view was recreated"})
            yield message("snapshot", {"rows": list(view.rows.values())})
        elif place == len(source):
            yield message("progress", {})
        while True:
            while place < len(source):
                place += 1
                change = source[place - 1]
                yield message("change", change if view is not None else {"events": [change]})
            await self.moved.wait()


def _stream_names(app: dict[str, Any]) -> Iterator[str]:
    for stream in app["streams"]:
        yield stream["name"]
        yield f"{stream['name']}.rejected"


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


@contextmanager
def serving(api: FakeApi, port: int = 0) -> Iterator[str]:
    """Run the fake on a loopback port while in the block; yields its address."""
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(api.application(), log_level="error", ws="websockets-sansio", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    ready = threading.Event()

    async def main() -> None:
        api.loop = asyncio.get_running_loop()
        ready.set()
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="fake-api")
    thread.start()
    try:
        assert ready.wait(START_S_MAX)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(START_S_MAX)
        listener.close()
