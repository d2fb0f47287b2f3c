"""A source that subscribes at an MQTT broker: each message is one event."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.collect.sources.mqtt.link import READ_BYTES, Ended, Link, Wishes
from penstock.collect.sources.mqtt.packets import LENGTH_MAX, Login
from penstock.collect.sources.mqtt.session import Inbox, Session
from penstock.collect.sources.mqtt.topics import Topics
from penstock.collect.sources.reconnect import Backoff, address_parts, keep_connected, without_secrets
from penstock.contracts import Intake, SourceStatus
from penstock.errors import DeclarationError, SourceFailed

if TYPE_CHECKING:
    from ssl import SSLContext

PORTS = {"mqtt": 1883, "mqtts": 8883}
CLIENT_MAX = 256
WEEK_S = 7 * 24 * 3600
_S_MAX = 2**32 - 1


@dataclass(frozen=True)
class Tls:
    """Whom to trust and how to prove who we are, as PEM files. Without `ca_file`, those whom the system trusts."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)

    def context(self) -> SSLContext:
        """Reads the files, so not in the event loop."""
        import ssl

        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file, self.key_password)
        return context


@dataclass(frozen=True)
class MqttSource:
    """Subscribes to `topics` in a session that goes on across connections, and answers the broker when the disk has
    the event. Implements `contracts.Source`.

    A message of QoS 2 becomes exactly one event, through kill -9 of this process, cut connections, and restarts of a
    broker that keeps its sessions. One of QoS 1 becomes at least one, and exactly one if its event's class has an id.
    One of QoS 0 may be lost. The QoS of a message is the lower of the publisher's and of `qos`.

    Memory: an intake's two buffers, one packet of `packet_bytes_max`, and the answers to `receive_max` packets.
    """

    url: str
    topics: Sequence[str]
    qos: int = 1
    client_id: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    version: int = 5
    receive_max: int = 100
    value: str | None = None
    retained: bool = True
    session_expiry_s: int = WEEK_S
    keep_alive_s: float = 30.0
    packet_bytes_max: int = 8 * 1024 * 1024
    backoff: Backoff = field(default_factory=Backoff)
    open_s: float = 10.0
    close_s: float = 5.0

    def __post_init__(self) -> None:
        _check_address(self)
        _check_numbers(self)
        if self.client_id is not None and not (self.client_id.isprintable() and 0 < len(self.client_id) <= CLIENT_MAX):
            raise DeclarationError(f"an MQTT source's client_id has 1 to {CLIENT_MAX} printable characters")
        if self.version == 3 and self.password is not None and self.username is None:
            raise DeclarationError("MQTT 3.1.1 knows no password without a username")
        assert self._topics

    @property
    def kind(self) -> str:
        return "mqtt"

    @property
    def address(self) -> str:
        return self.url

    async def run(self, intake: Intake, status: SourceStatus) -> None:
        """Pull until cancelled. What was taken by then is durable, and answered, before the cancellation goes on."""
        inboxes: list[Inbox] = []

        async def connection() -> str:
            if not inboxes:
                session = Session(intake.mark, self.client_id)
                retained, low = self.retained, self.receive_max
                inboxes.append(Inbox(intake, status, session, self._topics, retained=retained, low=low))
            return await self._connection(inboxes[0], status)

        await keep_connected(connection, intake, status, self.backoff, self.address)

    async def _connection(self, inbox: Inbox, status: SourceStatus) -> str:
        """One connection from its opening to its end; returns why it ended, for people."""
        try:
            streams = await self._open()
        except (OSError, TimeoutError) as error:
            return f"could not connect: {error or type(error).__name__}"
        link = Link(streams, self._login(inbox), self._wishes(), inbox, list(self._topics.filters), status)
        try:
            await link.run()
        except Ended as error:
            return str(error)
        except OSError as error:
            return f"the connection ended: {error or type(error).__name__}"
        return "the connection ended"

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        context = await self._context() if parts.scheme == "mqtts" else None
        async with asyncio.timeout(self.open_s):
            port = parts.port or PORTS[parts.scheme]
            return await asyncio.open_connection(parts.hostname, port, ssl=context, limit=READ_BYTES)

    async def _context(self) -> SSLContext:
        tls = self.tls or Tls()
        try:
            return await asyncio.to_thread(tls.context)
        except OSError as error:
            files = ", ".join(filter(None, (tls.ca_file, tls.cert_file, tls.key_file)))
            raise SourceFailed(f"the TLS files {files} cannot be used: {error}") from None

    def _login(self, inbox: Inbox) -> Login:
        return Login(
            self.version,
            inbox.session.client_id,
            self.username,
            self.password,
            math.ceil(self.keep_alive_s),
            self.session_expiry_s,
            self.receive_max,
        )

    def _wishes(self) -> Wishes:
        return Wishes(self.qos, self.retained, self.keep_alive_s, self.open_s, self.close_s, self.packet_bytes_max)

    @cached_property
    def _topics(self) -> Topics:
        return Topics(self.topics, self.value)


def mqtt(
    url: str,
    topics: str | Sequence[str],
    *,
    qos: int = MqttSource.qos,
    client_id: str | None = None,
    username: str | None = None,
    password: str | None = None,
    tls: Tls | None = None,
    version: int = MqttSource.version,
    receive_max: int = MqttSource.receive_max,
    value: str | None = None,
    retained: bool = MqttSource.retained,
    session_expiry_s: int = MqttSource.session_expiry_s,
    keep_alive_s: float = MqttSource.keep_alive_s,
    packet_bytes_max: int = MqttSource.packet_bytes_max,
    backoff_s: float = Backoff.first_s,
    backoff_max_s: float = Backoff.most_s,
) -> MqttSource:
    """A subscription of one event a message. See docs/sources/mqtt.md for the options; making one opens nothing."""
    return MqttSource(
        url,
        (topics,) if isinstance(topics, str) else tuple(topics),
        qos=qos,
        client_id=client_id,
        username=username,
        password=password,
        tls=tls,
        version=version,
        receive_max=receive_max,
        value=value,
        retained=retained,
        session_expiry_s=session_expiry_s,
        keep_alive_s=keep_alive_s,
        packet_bytes_max=packet_bytes_max,
        backoff=Backoff(backoff_s, backoff_max_s),
    )


def _check_address(source: MqttSource) -> None:
    if "@" in source.url:
        raise DeclarationError("give username= and password= to an MQTT source, not an address that holds them")
    parts = address_parts(source.url)
    if parts is None or parts.scheme not in PORTS or parts.path.strip("/") or parts.query or parts.fragment:
        shown = without_secrets(source.url)
        raise DeclarationError(f"{shown!r} is not the address of an MQTT broker, such as mqtt://host:1883")
    if source.tls is not None and parts.scheme != "mqtts":
        raise DeclarationError("an MQTT source with tls= has an address that begins with mqtts://")


def _check_numbers(source: MqttSource) -> None:
    for name, least, most in (
        ("qos", 0, 2),
        ("receive_max", 1, 65_535),
        ("session_expiry_s", 0, _S_MAX),
        ("keep_alive_s", 0.01, 65_535),
        ("packet_bytes_max", 1024, LENGTH_MAX),
    ):
        if not least <= getattr(source, name) <= most:
            raise DeclarationError(f"{name} of an MQTT source is from {least} to {most}")
    if source.version not in (3, 5):
        raise DeclarationError("version of an MQTT source is 5, or 3 for MQTT 3.1.1")
