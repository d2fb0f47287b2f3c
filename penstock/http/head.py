"""Checks of a request's head that RFC 9112 requires and the parser does not make: the `Host` header, the target and the
transfer codings. Also writes a parsed head again, without its `Upgrade`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.core.errors import PenstockError, RequestError, UnsupportedCoding

_is_host = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]+").fullmatch
_CHUNKED = b"chunked"


def head_problem(url: bytes, headers: Sequence[tuple[bytes, bytes]], version: str) -> PenstockError | None:
    """Return the error in a request's head, or None if the head is valid. Header names must be in lower case. Called
    for every request."""
    hosts: list[bytes] = []
    codings: list[bytes] = []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings += value.lower().split(b",")
    if len(hosts) != 1 and (hosts or version != "1.0"):
        return RequestError(f"a request must have one Host header, but this request has {len(hosts) or 'none'}")
    host = hosts[0].strip() if hosts else b""
    if hosts and not _is_host(host):
        return RequestError(f"the Host {_shown_head_value(host)} is empty or not a valid host name")
    if codings and (problem := _coding_problem([coding.strip() for coding in codings], version)) is not None:
        return problem
    return None if url.startswith(b"/") else _target_problem(url, host)


def has_body(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether a request's head announces a body."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 ") != b"")
        for name, value in headers
    )


def head_without_upgrade(method: bytes, url: bytes, headers: Sequence[tuple[bytes, bytes]], version: str) -> bytes:
    """Return the bytes of a parsed head without `Upgrade`. Header names must be in lower case."""
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    lines += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"\r\n".join([*lines, b"", b""])


def _coding_problem(codings: Sequence[bytes], version: str) -> PenstockError | None:
    """Return an error unless chunked is a request's only transfer coding. (The parser itself rejects chunked followed
    by another coding.)"""
    if version == "1.0":
        return RequestError("HTTP/1.0 has no transfer codings: send a Content-Length")
    if codings != [_CHUNKED]:
        given = b", ".join(codings)
        return UnsupportedCoding(f"the transfer coding {_shown_head_value(given)} is not supported; use chunked")
    return None


def _target_problem(url: bytes, host: bytes) -> PenstockError | None:
    """Return an error if a request's absolute target is not on the host that its `Host` header names, because this
    gateway is not a proxy.

    Other targets without a path, such as `*`, are left to the parser.
    """
    scheme, separator, rest = url.partition(b"://")
    if not separator:
        return None
    if scheme.lower() not in (b"http", b"https"):
        return RequestError(f"the target has the scheme {_shown_head_value(scheme)}; this gateway supports only http")
    authority = re.split(rb"[/?#]", rest, maxsplit=1)[0]
    if authority.lower() != host.lower():
        return RequestError(
            f"the request target is on {_shown_head_value(authority)}, but the Host header is {_shown_head_value(host)}"
        )
    return None


def _shown_head_value(value: bytes) -> str:
    return repr(value[:80].decode("latin-1"))
