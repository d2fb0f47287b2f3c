"""Where a webhook may go: the rules for its URL, and for every address that its host has.

Someone who may register a webhook chooses where the gateway connects to, from inside its network. So a host is
resolved for every try, all of its addresses must be public, and the connection goes to one of those that were checked
(`transport.py`). Networks that are allowed besides are a setting; plain HTTP goes there only.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from penstock.errors import BadParameter, DeclarationError

URL_LENGTH_MAX = 2_000
HTTPS_PORT, HTTP_PORT, PORT_MIN = 443, 80, 1024
"""Ports below 1024 but these belong to other protocols: mail, shells, directories."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PRIVATE = [
    ipaddress.ip_network(each)
    for each in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade translation
        "127.0.0.0/8",
        "168.63.129.16/32",  # a public address at which one cloud answers its machines
        "169.254.0.0/16",  # link-local, and where clouds tell machines their credentials
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays from 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # protocol assignments: Teredo, which carries another address, and identifiers
        "2001:db8::/32",
        "2002::/16",  # 6to4, which carries another address
        "3fff::/20",
    )
]
_UNICAST = ipaddress.ip_network("2000::/3")
"""All of IPv6 that is public. Outside are loopback, link-local, multicast, unique local, mapped and translated IPv4."""
_name = re.compile(
    r"(?=.{1,253}\.?$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.?"
)
_number = re.compile(r"[0-9]+|0x[0-9a-f]*")
_target = re.compile(r"[!-~]*")


@dataclass(frozen=True)
class Endpoint:
    """A URL in its parts, read once: what is checked is what is connected to."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def shown(self) -> str:
        """Without path and query, which may hold secrets of the receiver's."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def authority(self) -> str:
        """What `Host` says: the name as it was given, and the port unless it goes without saying."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (HTTPS_PORT if self.scheme == "https" else HTTP_PORT) else f"{host}:{self.port}"


def endpoint(url: str, allowed: Allowed) -> Endpoint:
    """The parts of a URL that a webhook may have. `BadParameter` says what is wrong, without the URL."""
    try:
        return _endpoint(url, allowed)
    except ValueError as error:
        raise BadParameter(f"url: {error}", parameter="url") from None


def _endpoint(url: str, allowed: Allowed) -> Endpoint:
    if len(url) > URL_LENGTH_MAX:
        raise ValueError(f"it has more than {URL_LENGTH_MAX} characters")
    if not _target.fullmatch(url):
        raise ValueError("use ASCII without blanks; write other letters of a host name as xn--, of a path as %XX")
    if "\\" in url or "#" in url:
        raise ValueError("a backslash or a # has no place in it")
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and allowed.networks):
        raise ValueError("it must begin with https://")
    if "@" in parts.netloc:
        raise ValueError("put no user or password into it; messages are signed instead")
    host = _host(parts.hostname or "")
    port = _port(parts)
    if port not in (HTTPS_PORT, HTTP_PORT) and port < PORT_MIN and not allowed.networks:
        raise ValueError(f"use port {HTTPS_PORT}, or one from {PORT_MIN}")
    found = Endpoint(parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    literal = as_address(host)
    if literal is not None:
        allowed.require(found, [literal])
    elif host == "localhost" or host.endswith(".localhost"):
        allowed.require(found, [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")])
    return found


def _port(parts: SplitResult) -> int:
    try:
        given = parts.port
    except ValueError:  # its words quote the text, which may be a part of a password
        raise ValueError("the port is no number up to 65535") from None
    return given if given is not None else HTTPS_PORT if parts.scheme == "https" else HTTP_PORT


def _host(host: str) -> str:
    """A host name in small letters, or an address as everyone writes it. Other ways to write one (`0x7f.1`, `127.1`,
    `2130706433`) are read differently by different programs, and refused."""
    if as_address(host) is not None:
        return host
    if "%" in host or not _name.fullmatch(host):
        raise ValueError("there is no host in it that could be one")
    if _number.fullmatch(host.rstrip(".").rpartition(".")[2]):
        raise ValueError("the host is a number that is no address; write addresses as 203.0.113.7 or [2001:db8::7]")
    return host.removesuffix(".")


def as_address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether it belongs to the internet, and carries no other address inside."""
    if isinstance(address, ipaddress.IPv6Address) and (address not in _UNICAST or address.scope_id is not None):
        return False
    return not any(address in network for network in _PRIVATE)


@dataclass(frozen=True)
class Allowed:
    """The networks that webhooks may reach besides the public internet."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, text: str) -> Allowed:
        """From the setting: networks such as `10.1.0.0/16`, with commas between."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        try:
            return cls(tuple(ipaddress.ip_network(word) for word in words))
        except ValueError as error:
            raise DeclarationError(f"PENSTOCK_WEBHOOK_PRIVATE: {error}; use networks such as 10.1.0.0/16") from None

    def require(self, target: Endpoint, addresses: list[Address]) -> None:
        """Raise `ValueError` unless the target may be connected to at every one of these addresses."""
        if not addresses:
            raise ValueError("the host has no address")
        for address in addresses:
            if any(address in network for network in self.networks):
                continue
            if not is_public(address):
                raise ValueError("the host has an address that is not public; PENSTOCK_WEBHOOK_PRIVATE can allow it")
            if target.scheme != "https":
                raise ValueError("it must begin with https://; plain HTTP is for networks that are allowed only")
            if target.port != HTTPS_PORT and target.port < PORT_MIN:
                raise ValueError(f"use port {HTTPS_PORT}, or one from {PORT_MIN}")
