"""Allowed targets of webhooks: the rules for a URL, and for all IP addresses of its host.

A caller who registers a webhook chooses an address that the gateway connects to from inside its network. Therefore a
host is resolved for every attempt, all of its addresses must be public, and the connection is made to one of the
checked addresses (`transport.py`). A setting can allow other networks, and plain HTTP is allowed only in those
networks.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from penstock.core.errors import BadParameter, DeclarationError

URL_LENGTH_MAX = 2_000
HTTPS_PORT, HTTP_PORT, PORT_MIN = 443, 80, 1024
"""Ports below 1024 other than these belong to other protocols, such as mail, shells and directories."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PRIVATE = [
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # a public address that one cloud uses for its own services
        "169.254.0.0/16",  # link-local, where clouds serve machine credentials
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved and broadcast
        "2001::/23",  # protocol assignments: Teredo, which embeds another address, and identifiers
        "2001:db8::/32",
        "2002::/16",  # 6to4, which embeds another address
        "3fff::/20",
    )
]
_UNICAST = ipaddress.ip_network("2000::/3")
"""All public IPv6 addresses.

Loopback, link-local, multicast and unique local addresses, and mapped and translated IPv4 addresses, are not among
them.
"""
_name = re.compile(
    r"(?=.{1,253}\.?$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.?"
)
_number = re.compile(r"[0-9]+|0x[0-9a-f]*")
_bracketed = re.compile(r"\[[^\[\]]*\](:.*)?")
_target = re.compile(r"[!-~]*")


@dataclass(frozen=True)
class WebhookAddress:
    """A webhook's URL split into its parts. It is parsed once, so the gateway connects to the same address that was
    checked."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def shown(self) -> str:
        """The webhook's URL without its path and query, because these can contain the receiver's secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def authority(self) -> str:
        """The value of the `Host` header: the host as written in the URL, and the port unless it is the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (HTTPS_PORT if self.scheme == "https" else HTTP_PORT) else f"{host}:{self.port}"


def endpoint(url: str, allowed: Allowed) -> WebhookAddress:
    """Parse and check the URL of a webhook. Raises `BadParameter` with the reason, but without the URL."""
    try:
        return _checked_endpoint(url, allowed)
    except ValueError as error:
        raise BadParameter(f"url: {error}", parameter="url") from None


def _checked_endpoint(url: str, allowed: Allowed) -> WebhookAddress:
    if len(url) > URL_LENGTH_MAX:
        raise ValueError(f"it is longer than {URL_LENGTH_MAX} characters")
    if not _target.fullmatch(url):
        raise ValueError("use ASCII without spaces; write other characters as xn-- in a host name and %XX in a path")
    if "\\" in url or "#" in url:
        raise ValueError("it must not contain a backslash or a #")
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and allowed.networks):
        raise ValueError("it must begin with https://")
    if "@" in parts.netloc:
        raise ValueError("it must not contain a user name or password; messages are signed instead")
    if ("[" in parts.netloc or "]" in parts.netloc) and not _bracketed.fullmatch(parts.netloc):
        raise ValueError("an IPv6 address in brackets can be followed only by a port")  # urlsplit ignores other text
    host = _webhook_host(parts.hostname or "")
    port = _webhook_port(parts)
    if port not in (HTTPS_PORT, HTTP_PORT) and port < PORT_MIN and not allowed.networks:
        raise ValueError(f"use port {HTTPS_PORT}, or port {PORT_MIN} or above")
    address = WebhookAddress(parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    literal = as_address(host)
    if literal is not None:
        allowed.require(address, [literal])
    elif host == "localhost" or host.endswith(".localhost"):
        allowed.require(address, [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")])
    return address


def _webhook_port(parts: SplitResult) -> int:
    try:
        given = parts.port
    except ValueError:  # the error message can quote part of a password
        raise ValueError("the port must be a number up to 65535") from None
    return given if given is not None else HTTPS_PORT if parts.scheme == "https" else HTTP_PORT


def _webhook_host(host: str) -> str:
    """Return a webhook's host name in lower case, or an address in its usual form.

    Other forms of an address (`0x7f.1`, `127.1`, `2130706433`) are refused, because programs interpret them
    differently.
    """
    if as_address(host) is not None:
        return host
    if "%" in host or not _name.fullmatch(host):
        raise ValueError("the host is missing or invalid")
    if _number.fullmatch(host.rstrip(".").rpartition(".")[2]):
        raise ValueError(
            "the host ends in a number but is not an IP address; write addresses as 203.0.113.7 or [2001:db8::7]"
        )
    return host.removesuffix(".")


def as_address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Return whether a webhook's address is public, and does not embed another address."""
    if isinstance(address, ipaddress.IPv6Address) and (address not in _UNICAST or address.scope_id is not None):
        return False
    return not any(address in network for network in _PRIVATE)


@dataclass(frozen=True)
class Allowed:
    """The networks that webhooks can reach in addition to the public internet."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, text: str) -> Allowed:
        """Parse the setting: networks such as `10.1.0.0/16`, separated by commas."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        try:
            return cls(tuple(ipaddress.ip_network(word) for word in words))
        except ValueError as error:
            raise DeclarationError(f"PENSTOCK_WEBHOOK_PRIVATE: {error}; use networks such as 10.1.0.0/16") from None

    def require(self, target: WebhookAddress, addresses: list[Address]) -> None:
        """Raise `ValueError` unless connecting to every one of these addresses is allowed for the target."""
        if not addresses:
            raise ValueError("the host has no IP address")
        for address in addresses:
            if any(address in network for network in self.networks):
                continue
            if not is_public(address):
                raise ValueError(
                    "the host has an address that is not public; PENSTOCK_WEBHOOK_PRIVATE can allow that address"
                )
            if target.scheme != "https":
                raise ValueError(
                    "it must begin with https://; plain HTTP needs a network that PENSTOCK_WEBHOOK_PRIVATE allows"
                )
            if target.port != HTTPS_PORT and target.port < PORT_MIN:
                raise ValueError(f"use port {HTTPS_PORT}, or port {PORT_MIN} or above")
