"""Addresses of sources: validation, and the form without secrets that logs and problems show."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

HIDDEN = "(an address that cannot be read)"
"""Shown in place of an invalid address."""


def address_parts(url: str) -> SplitResult | None:
    """Return the parts of a source's address, or None if it is invalid: without a host, with a bad port, or with a
    stray `@`.

    A bad port or a stray `@` comes from a password that contains a `/`, `?`, `#` or comma; write these characters as
    %XX.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    misplaced = "@" in parts.path and "@" not in parts.netloc
    return None if not parts.scheme or not parts.hostname or port == 0 or misplaced else parts


def without_secrets(url: str) -> str:
    """Return a source's address without user, password and query, any of which may be secret.

    An invalid address is not shown at all, because what looks like the host may be a password.
    """
    parts = address_parts(url)
    if parts is None:
        return HIDDEN
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
