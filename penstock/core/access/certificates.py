"""TLS: the gateway's server context, and the names in client certificates."""

from __future__ import annotations

import hashlib
import math
import re
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.core.access.policy import TlsPolicy
from penstock.core.errors import DeclarationError, StorageError
from penstock.core.files import require_own

CERTIFIED = "penstock.certified"
"""Key of the client's `Certified` in the `state` of an ASGI scope."""
HANDSHAKE_S = 10.0
_TICKETS_NONE = 0
_pem = re.compile(rb"-----BEGIN [A-Z0-9 ]*CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END [A-Z0-9 ]*CERTIFICATE-----").findall
_is_dns = re.compile(r"(?!.*\.[0-9]+$)(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*").fullmatch
_is_uri = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+|urn:.+", re.IGNORECASE).fullmatch
_is_email = re.compile(r"[^@:/]+@[^@:/]+").fullmatch
_is_ip = re.compile(r"[0-9]+(\.[0-9]+){3}|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*").fullmatch
_SHAPES = {"DNS": _is_dns, "URI": _is_uri, "email": _is_email, "IP Address": _is_ip}
"""Patterns that alternative names of each kind must match. No such name matches two patterns."""


class Certified(NamedTuple):
    """A client certificate verified by TLS: its names, its expiry time, and the TLS context that verified it."""

    names: tuple[str, ...] = ()
    until: float = math.inf
    context: ssl.SSLContext | None = None


NOT_CERTIFIED = Certified()


class Secured(NamedTuple):
    """A TLS context for the server, and the hashes of the CA certificates that verify client certificates."""

    context: ssl.SSLContext
    authorities: frozenset[bytes] = frozenset()


def secured(tls: TlsPolicy) -> Secured:
    """Create a server context for TLS 1.2 or newer, with Python's default ciphers. Reads files, so do not call it in
    the event loop.

    A renewed certificate needs a new context. If it were loaded into a context in use while the certificate and the key
    did not match, that context would be left without a key.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _require_own_files(tls)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_key_password)
    except (OSError, ssl.SSLError) as error:
        raise DeclarationError(
            f"[tls] {tls.certificate} and {tls.key} cannot be used ({_tls_error_reason(error)})"
        ) from None
    authorities: list[bytes] = []
    if tls.clients is not None:
        try:
            authorities = _pem(tls.clients.read_bytes())
            context.load_verify_locations(tls.clients)
        except (OSError, ssl.SSLError) as error:
            raise DeclarationError(
                f"[tls] clients: {tls.clients} cannot be used ({_tls_error_reason(error)})"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED if tls.require else ssl.CERT_OPTIONAL
        # A resumed session does not present a certificate. A TLS 1.2 session resumed without a ticket ends with its
        # context, which is replaced when a file changes.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = _TICKETS_NONE
    return Secured(context, frozenset(hashlib.sha256(authority).digest() for authority in authorities))


def certified(transport: Any) -> Certified:
    """Return the contents of a connection's client certificate; `NOT_CERTIFIED` if the client did not present a
    certificate."""
    connection = transport.get_extra_info("ssl_object")
    shown = None if connection is None else connection.getpeercert()
    if not shown:
        return NOT_CERTIFIED
    return Certified(names(shown), float(ssl.cert_time_to_seconds(shown["notAfter"])), connection.context)


def names(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in a client certificate that match the pattern for their kind. Other names are left out: an
    authority that signs an arbitrary string as an email address has not vouched for a host of that name. As in RFC
    6125, the common name is used only if the certificate has no other names. It has no kind, so it can be any text."""
    others = certificate.get("subjectAltName", ())
    if others:
        return tuple(value for kind, value in others if kind in _SHAPES and _SHAPES[kind](value))
    common = (value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName")
    return tuple(common)


def _require_own_files(tls: TlsPolicy) -> None:
    """Raise `DeclarationError` if another user can change a file. A missing file is reported later, when it is
    opened."""
    for path in tls.files:
        try:
            require_own(path)
        except StorageError as error:
            raise DeclarationError(f"[tls] {error}") from None
        except OSError:
            continue


def _no_key_password() -> str:
    raise ssl.SSLError("the key is encrypted; use an unencrypted key that only this user can read")


def _tls_error_reason(error: OSError) -> str:
    return error.strerror or type(error).__name__ if not isinstance(error, ssl.SSLError) else str(error.args[-1])[:200]
