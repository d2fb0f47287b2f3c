"""Checks of a request's head that RFC 9112 asks for and the parser leaves out: `Host`, target and transfer codings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.errors import PenstockError, RequestError, UnsupportedCoding

_is_host = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]+").fullmatch
_CHUNKED = b"chunked"


def head_problem(url: bytes, headers: Sequence[tuple[bytes, bytes]], version: str) -> PenstockError | None:
    """Say what is wrong with a head, if anything; names of headers are in small letters. Called for every request."""
    hosts: list[bytes] = []
    codings: list[bytes] = []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings += value.lower().split(b",")
    if len(hosts) != 1 and (hosts or version != "1.0"):
        return RequestError(f"a request needs one Host header, and this one has {len(hosts) or 'none'}")
    host = hosts[0].strip() if hosts else b""
    if hosts and not _is_host(host):
        return RequestError(f"the Host {_shown(host)} is empty, or not the name of a host")
    if codings and (problem := _coding_problem([each.strip() for each in codings], version)) is not None:
        return problem
    return None if url.startswith(b"/") else _target_problem(url, host)


def has_body(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a head announces a body."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 ") != b"")
        for name, value in headers
    )


def _coding_problem(codings: Sequence[bytes], version: str) -> PenstockError | None:
    """Refuse what is not chunked alone. (Chunked before another coding is refused by the parser.)"""
    if version == "1.0":
        return RequestError("HTTP/1.0 has no transfer codings: send a Content-Length")
    if codings != [_CHUNKED]:
        given = b", ".join(codings)
        return UnsupportedCoding(f"the transfer coding {_shown(given)} is not supported; use chunked")
    return None


def _target_problem(url: bytes, host: bytes) -> PenstockError | None:
    """Refuse a full address that is not of the host that the request is for: this gateway is no proxy. Other targets
    without a path, such as `*`, are left to the parser."""
    scheme, found, rest = url.partition(b"://")
    if not found:
        return None
    if scheme.lower() not in (b"http", b"https"):
        return RequestError(f"the target is an address of {_shown(scheme)}; this gateway speaks http")
    authority = re.split(rb"[/?#]", rest, maxsplit=1)[0]
    if authority.lower() != host.lower():
        return RequestError(f"the target is on {_shown(authority)}, but the Host is {_shown(host)}")
    return None


def _shown(value: bytes) -> str:
    return repr(value[:80].decode("latin-1"))
