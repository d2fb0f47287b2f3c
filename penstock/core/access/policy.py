"""The access file, which configures TLS, tokens from other issuers, grants for client certificates, and row rules.

It is a TOML file. Paths in it are relative to its own location. It does not contain secrets.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.access.grants import Grants, grants
from penstock.core.errors import DeclarationError, StorageError
from penstock.core.files import read_own

ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
SHARED = ("HS256", "HS384", "HS512")
_is_origin = re.compile(r"https?://([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?").fullmatch
_UNSAID = {True: ":443", False: ":80"}


@dataclass(frozen=True)
class TlsPolicy:
    """TLS settings: paths to PEM files. If `clients` is set, client certificates signed by one of the authorities in
    that file are accepted. If `require` is also true, connections without a client certificate are refused."""

    certificate: Path
    key: Path
    clients: Path | None = None
    require: bool = True

    @property
    def files(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.clients) if path is not None]


@dataclass(frozen=True)
class Jwt:
    """The accepted token issuer, the expected audience, and the file with the keys that verify tokens. The file
    contains a JSON Web Key Set, a PEM public key, or a secret for `HS...`. `claim` is the name of the claim that
    contains the grants, as space-separated words or as a list."""

    issuer: str
    audience: str
    keys: Path
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    claim: str = "scope"
    rate: float = 0.0


@dataclass(frozen=True)
class CertificateClient:
    """The grants and rate of a client whose certificate contains a certain name."""

    grants: Grants
    rate: float = 0.0


@dataclass(frozen=True)
class Policy:
    tls: TlsPolicy | None = None
    jwt: Jwt | None = None
    clients: Mapping[str, CertificateClient] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)
    """Conditions on rows. Each key is the name of a stream or view, or a prefix followed by `*`. Callers without the
    grant `admin` see only rows that meet the condition."""
    origins: frozenset[str] = frozenset()
    """Origins, such as `https://shop.example`, whose pages can use the API in addition to the gateway's own pages."""

    @property
    def authenticates(self) -> bool:
        """Whether the policy offers a way to authenticate."""
        return self.jwt is not None or bool(self.clients)

    @property
    def secrets(self) -> list[Path]:
        """The files that only this user should be able to read."""
        shared = self.jwt is not None and self.jwt.algorithms[0] in SHARED
        paths = [None if self.tls is None else self.tls.key, self.jwt.keys if shared and self.jwt is not None else None]
        return [path for path in paths if path is not None]


class _Tls(msgspec.Struct, forbid_unknown_fields=True):
    certificate: str
    key: str
    clients: str | None = None
    require: bool = True


class _Jwt(msgspec.Struct, forbid_unknown_fields=True):
    issuer: str
    audience: str
    keys: str
    algorithms: list[str] = msgspec.field(default_factory=lambda: list(Jwt.algorithms))
    claim: str = Jwt.claim
    rate: float = Jwt.rate


class _Client(msgspec.Struct, forbid_unknown_fields=True):
    grants: list[str]
    rate: float = 0.0


class _Pages(msgspec.Struct, forbid_unknown_fields=True):
    origins: list[str]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tls: _Tls | None = None
    jwt: _Jwt | None = None
    clients: dict[str, _Client] = {}
    rows: dict[str, str] = {}
    pages: _Pages | None = None


def read_policy(path: Path | None) -> Policy:
    """Read the policy from an access file; without a path, return an empty policy. Raises `DeclarationError` with the
    file and the error. The files that the access file refers to are opened later, when they are used."""
    if path is None:
        return Policy()
    try:
        content = msgspec.convert(tomllib.loads(read_own(path).decode()), _File)
        clients = {
            name: CertificateClient(grants(client.grants), _policy_rate(client.rate))
            for name, client in content.clients.items()
        }
        origins = frozenset() if content.pages is None else frozenset(map(_page_origin, content.pages.origins))
        tls, jwt = _tls_policy(path.parent, content.tls), _jwt_policy(path.parent, content.jwt)
        policy = Policy(tls, jwt, clients, content.rows, origins)
    except StorageError as error:
        raise DeclarationError(f"the access file cannot be trusted: {error}") from None
    except OSError as error:
        raise DeclarationError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path}: {error}") from None
    except DeclarationError as error:
        raise DeclarationError(f"{path}: {error.message}") from None
    for name, condition in content.rows.items():
        if not name or not condition.strip():
            raise DeclarationError(
                f"{path}: [rows] needs a condition for each name, such as orders = \"owner = claim('sub')\""
            )
    if clients and (policy.tls is None or policy.tls.clients is None):
        raise DeclarationError(f"{path}: [clients] requires `clients` in [tls] to be set to your CA certificate file")
    return policy


def _tls_policy(folder: Path, given: _Tls | None) -> TlsPolicy | None:
    if given is None:
        return None
    clients = None if given.clients is None else folder / given.clients
    return TlsPolicy(folder / given.certificate, folder / given.key, clients, given.require)


def _jwt_policy(folder: Path, given: _Jwt | None) -> Jwt | None:
    """Check the [jwt] section. HMAC and signature algorithms must not be mixed, because a public key, which is not
    secret, could then be used as an HMAC secret."""
    if given is None:
        return None
    chosen: Any = given.algorithms
    if not chosen or not (set(chosen) <= set(ASYMMETRIC) or set(chosen) <= set(SHARED)):
        raise DeclarationError(
            f"[jwt] algorithms must all be from {', '.join(ASYMMETRIC)}, or all from {', '.join(SHARED)}"
        )
    if not given.issuer or not given.audience:
        raise DeclarationError("[jwt] requires an issuer and an audience")
    return Jwt(given.issuer, given.audience, folder / given.keys, tuple(chosen), given.claim, _policy_rate(given.rate))


def _page_origin(text: str) -> str:
    """Check that an origin is written as browsers write it, because any other spelling would never match. `*` is
    rejected, because it would allow everyone."""
    if not _is_origin(text) or text.endswith(_UNSAID[text.startswith("https")]):
        raise DeclarationError(
            f"[pages] origins: {text[:80]!r} is not an origin; write it as browsers do, in lower case, without "
            "a path or the default port, such as https://shop.example or http://localhost:3000"
        )
    return text


def _policy_rate(rate: float) -> float:
    if not 0 <= rate < math.inf:
        raise DeclarationError(f"rate is {rate:g}; use a number of events per second, or 0 for the default limit")
    return rate
