"""TLS: the context that the gateway listens with, and the names of those who show a certificate."""

from __future__ import annotations

import hashlib
import math
import re
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.access.policy import Tls
from penstock.errors import DeclarationError, StorageError
from penstock.files import require_own

CERTIFIED = "penstock.certified"
"""Where the `Certified` of a client stands in the `state` of an ASGI scope."""
HANDSHAKE_S = 10.0
_TICKETS_NONE = 0
_pem = re.compile(rb"-----BEGIN [A-Z0-9 ]*CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END [A-Z0-9 ]*CERTIFICATE-----").findall
_is_dns = re.compile(r"(?!.*\.[0-9]+$)(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*").fullmatch
_is_uri = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+|urn:.+", re.IGNORECASE).fullmatch
_is_email = re.compile(r"[^@:/]+@[^@:/]+").fullmatch
_is_ip = re.compile(r"[0-9]+(\.[0-9]+){3}|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*").fullmatch
_SHAPES = {"DNS": _is_dns, "URI": _is_uri, "email": _is_email, "IP Address": _is_ip}
"""Patterns for the names of each kind. No name matches two of them, so `[clients.NAME]` means one kind."""


class Certified(NamedTuple):
    """A client certificate that TLS has checked: its names, when it expires, and the context that checked it."""

    names: tuple[str, ...] = ()
    until: float = math.inf
    context: ssl.SSLContext | None = None


NOT_CERTIFIED = Certified()


class Secured(NamedTuple):
    """A context to listen with, and the hash of each certificate that may have signed those of clients."""

    context: ssl.SSLContext
    authorities: frozenset[bytes] = frozenset()


def secured(tls: Tls) -> Secured:
    """TLS 1.2 or newer, with the ciphers that Python chooses for servers. Reads the files, so not in the event loop.

    A certificate that was renewed takes a new context: one that is in use would be left without a key if certificate
    and key did not fit each other for a moment.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _require_own(tls)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise DeclarationError(f"[tls] {tls.certificate} and {tls.key} cannot be used ({_reason(error)})") from None
    authorities: list[bytes] = []
    if tls.clients is not None:
        try:
            authorities = _pem(tls.clients.read_bytes())
            context.load_verify_locations(tls.clients)
        except (OSError, ssl.SSLError) as error:
            raise DeclarationError(f"[tls] clients: {tls.clients} cannot be used ({_reason(error)})") from None
        context.verify_mode = ssl.CERT_REQUIRED if tls.require else ssl.CERT_OPTIONAL
        # A session that is resumed shows no certificate. What TLS 1.2 resumes without a ticket ends with its context,
        # which is replaced when a file changes.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = _TICKETS_NONE
    return Secured(context, frozenset(hashlib.sha256(each).digest() for each in authorities))


def certified(transport: Any) -> Certified:
    """What the certificate says that the client of a connection showed, if it did."""
    connection = transport.get_extra_info("ssl_object")
    shown = None if connection is None else connection.getpeercert()
    if not shown:
        return NOT_CERTIFIED
    return Certified(names(shown), float(ssl.cert_time_to_seconds(shown["notAfter"])), connection.context)


def names(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a certificate, each only if it matches the pattern of its kind: an authority that signs any
    text as an email address has not vouched for a host. The common name counts only if there is no other, as in
    RFC 6125."""
    others = certificate.get("subjectAltName", ())
    if others:
        return tuple(value for kind, value in others if kind in _SHAPES and _SHAPES[kind](value))
    common = (value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName")
    return tuple(common)


def _require_own(tls: Tls) -> None:
    """Raise `DeclarationError` if another user may change a file. One that is missing is met when it is opened."""
    for path in tls.files:
        try:
            require_own(path)
        except StorageError as error:
            raise DeclarationError(f"[tls] {error}") from None
        except OSError:
            continue


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted; give one that is not, readable by this user only")


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__ if not isinstance(error, ssl.SSLError) else str(error.args[-1])[:200]
