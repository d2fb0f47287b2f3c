"""TLS: the context that the gateway listens with, and the names of those who show a certificate."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from penstock.access.policy import Tls
from penstock.errors import DeclarationError

CERTIFIED = "penstock.certified"
"""Where the names of a client's certificate stand in the `state` of an ASGI scope."""
HANDSHAKE_S = 10.0
_KINDS = ("DNS", "URI", "email", "IP Address")


def server_context(tls: Tls) -> ssl.SSLContext:
    """TLS 1.2 or newer, with the ciphers that Python chooses for servers. Reads the files, so not in the event loop.

    A certificate that was renewed takes a new context: one that is in use would be left without a key if certificate
    and key did not fit each other for a moment.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise DeclarationError(f"[tls] {tls.certificate} and {tls.key} cannot be used ({_reason(error)})") from None
    if tls.clients is not None:
        try:
            context.load_verify_locations(tls.clients)
        except (OSError, ssl.SSLError) as error:
            raise DeclarationError(f"[tls] clients: {tls.clients} cannot be used ({_reason(error)})") from None
        context.verify_mode = ssl.CERT_REQUIRED if tls.require else ssl.CERT_OPTIONAL
    return context


def certified_names(transport: Any) -> tuple[str, ...]:
    """The names in the certificate that the client of a connection showed, and TLS has checked; else none."""
    connection = transport.get_extra_info("ssl_object")
    if connection is None:
        return ()
    return names(connection.getpeercert() or {})


def names(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Those that it is made for; the common name counts only if there is no other, as RFC 6125 has it."""
    others = tuple(value for kind, value in certificate.get("subjectAltName", ()) if kind in _KINDS)
    common = (value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName")
    return others or tuple(common)


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted; give one that is not, readable by this user only")


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__ if not isinstance(error, ssl.SSLError) else str(error.args[-1])[:200]
