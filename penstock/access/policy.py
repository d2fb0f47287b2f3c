"""The access file: TLS, tokens of others that are taken for good, and what clients with certificates may do.

It is a TOML file that names other files, relative to itself, and holds no secret.
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

from penstock.access.grants import Grants, grants
from penstock.errors import DeclarationError, StorageError
from penstock.files import read_own

ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
SHARED = ("HS256", "HS384", "HS512")
_is_origin = re.compile(r"https?://([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?").fullmatch
_UNSAID = {True: ":443", False: ":80"}


@dataclass(frozen=True)
class Tls:
    """PEM files. With `clients`, certificates of clients signed by one of these are taken; without them, if `require`,
    no connection is."""

    certificate: Path
    key: Path
    clients: Path | None = None
    require: bool = True

    @property
    def files(self) -> list[Path]:
        return [each for each in (self.certificate, self.key, self.clients) if each is not None]


@dataclass(frozen=True)
class Jwt:
    """Whose tokens are taken, for whom they must be made, and the file with the keys to check them: a JSON Web Key Set,
    a public key in PEM, or, for `HS...`, a secret. `claim` is where the grants stand: words, or a list of them."""

    issuer: str
    audience: str
    keys: Path
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    claim: str = "scope"
    rate: float = 0.0


@dataclass(frozen=True)
class Client:
    """What one who has a certificate of this name may do."""

    grants: Grants
    rate: float = 0.0


@dataclass(frozen=True)
class Policy:
    tls: Tls | None = None
    jwt: Jwt | None = None
    clients: Mapping[str, Client] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)
    """By the name of a stream or view, or the beginning of names and `*`: the rows that those see who are no admin."""
    origins: frozenset[str] = frozenset()
    """Web sites, besides the gateway's own, whose pages may use the API: as in `https://shop.example`."""

    @property
    def authenticates(self) -> bool:
        """Whether somebody can prove who they are by it."""
        return self.jwt is not None or bool(self.clients)

    @property
    def secrets(self) -> list[Path]:
        """The files that only this user should be able to read."""
        shared = self.jwt is not None and self.jwt.algorithms[0] in SHARED
        found = [None if self.tls is None else self.tls.key, self.jwt.keys if shared and self.jwt is not None else None]
        return [each for each in found if each is not None]


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
    """The policy of an access file; an empty one without it. Raises `DeclarationError` with the file and what is wrong.
    The files that it names are opened later, by those who use them."""
    if path is None:
        return Policy()
    try:
        content = msgspec.convert(tomllib.loads(read_own(path).decode()), _File)
        clients = {name: Client(grants(each.grants), _rate(each.rate)) for name, each in content.clients.items()}
        origins = frozenset() if content.pages is None else frozenset(map(_origin, content.pages.origins))
        tls, jwt = _tls(path.parent, content.tls), _jwt(path.parent, content.jwt)
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
                f"{path}: [rows] has a condition for each name, as in orders = \"owner = claim('sub')\""
            )
    if clients and (policy.tls is None or policy.tls.clients is None):
        raise DeclarationError(f"{path}: [clients] needs [tls] with `clients`, the file of those who sign certificates")
    return policy


def _tls(folder: Path, given: _Tls | None) -> Tls | None:
    if given is None:
        return None
    clients = None if given.clients is None else folder / given.clients
    return Tls(folder / given.certificate, folder / given.key, clients, given.require)


def _jwt(folder: Path, given: _Jwt | None) -> Jwt | None:
    """HMAC and signatures are not mixed: a public key would be taken for a secret that everybody knows."""
    if given is None:
        return None
    chosen: Any = given.algorithms
    if not chosen or not (set(chosen) <= set(ASYMMETRIC) or set(chosen) <= set(SHARED)):
        raise DeclarationError(
            f"[jwt] algorithms are some of {', '.join(ASYMMETRIC)}, or some of {', '.join(SHARED)}, and never of both"
        )
    if not given.issuer or not given.audience:
        raise DeclarationError("[jwt] needs the issuer and the audience of the tokens")
    return Jwt(given.issuer, given.audience, folder / given.keys, tuple(chosen), given.claim, _rate(given.rate))


def _origin(text: str) -> str:
    """An origin as a browser writes it: anything else would never be met, and `*` is everyone."""
    if not _is_origin(text) or text.endswith(_UNSAID[text.startswith("https")]):
        raise DeclarationError(
            f"[pages] origins: {text[:80]!r} is no origin; write it as a browser does, such as https://shop.example or "
            "http://localhost:3000: in small letters, without a path, and without a port that goes without saying"
        )
    return text


def _rate(rate: float) -> float:
    if not 0 <= rate < math.inf:
        raise DeclarationError(f"rate is {rate:g}, and must be events a second, or 0 for no limit of its own")
    return rate
