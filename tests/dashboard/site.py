"""Another party's web site: some files on a separate port, without the headers of the dashboard."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript", "mjs": "text/javascript"}


class Site:
    """Serves the files while in the block. `address` is its origin."""

    def __init__(self, files: Mapping[str, bytes], host: str = "127.0.0.1") -> None:
        self._server = ThreadingHTTPServer((host, 0), _handler(files))
        self._thread = threading.Thread(target=self._server.serve_forever, name="site")
        self.address = f"http://{host}:{self._server.server_address[1]}"

    def __enter__(self) -> Site:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(files: Mapping[str, bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/").partition("?")[0]
            body = files.get(name)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", TYPES.get(name.rpartition(".")[2], "text/plain"))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *given: object) -> None:
            """Log nothing: the tests report failures."""

    return Handler
