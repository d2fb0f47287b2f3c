"""The dashboard's files, in memory, and the headers that they are served with."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from penstock.dashboard.bundle import bundle

STATIC = Path(__file__).with_name("static")
PAGE = "index.html"
CLIENT, CLIENT_TYPES = "penstock.js", "penstock.d.ts"
"""The browser client, which the page itself uses, and its TypeScript types."""
CLIENT_MODULES = "client"
SERVED = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".ts": "text/plain; charset=utf-8",
}

_POLICY = (
    "default-src 'self'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "object-src 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": "; ".join(_POLICY),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
        "Vary": "Accept-Encoding",
    }
)
"""Headers of every response, including "not found".

`no-cache` makes browsers revalidate each file every time. Thanks to the ETag, revalidating costs only an empty 304
response, and modules of different Penstock versions are never mixed.
"""


@dataclass(frozen=True)
class Asset:
    """One file of the dashboard: its bytes, its media type, and an ETag that changes with the bytes.

    The compressed form, which is created once, has a different ETag, because a strong ETag identifies the exact bytes.
    """

    body: bytes
    media_type: str
    etag: str
    compressed: bytes
    compressed_etag: str


def load(folder: Path = STATIC) -> Mapping[str, Asset]:
    """Read every file of the dashboard that a browser needs, keyed by its path below `folder`; about 200 KB in total.

    Called once, before serving starts. Only these files can be requested, so no path can lead out of the folder;
    licences and notes stay on disk.
    """
    modules = folder / CLIENT_MODULES
    paths = sorted(path for path in folder.rglob("*") if path.suffix in SERVED and path.parent != modules)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    if modules.exists():
        files[CLIENT] = bundle(modules)
    return MappingProxyType({name: _asset(name, body) for name, body in files.items()})


def _asset(name: str, body: bytes) -> Asset:
    digest = hashlib.sha256(body).hexdigest()[:32]
    packed = gzip.compress(body, 9, mtime=0)
    return Asset(body, SERVED[Path(name).suffix], f'"{digest}"', packed, f'"{digest}-gzip"')
