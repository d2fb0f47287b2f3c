"""A source that subscribes to topics on an MQTT broker: each message is one event."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.collect.sources.addresses import address_parts, without_secrets
from penstock.collect.sources.mqtt.link import READ_BYTES, ConnectionOptions, Ended, MqttConnection
from penstock.collect.sources.mqtt.packets import LENGTH_MAX, Login
from penstock.collect.sources.mqtt.session import MqttInbox, MqttSession
from penstock.collect.sources.mqtt.topics import Topics
from penstock.collect.sources.reconnect import keep_connected
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus, SourceWriter
from penstock.core.errors import DeclarationError, SourceFailed

if TYPE_CHECKING:
    from ssl import SSLContext

PORTS = {"mqtt": 1883, "mqtts": 8883}
CLIENT_MAX = 256
WEEK_S = 7 * 24 * 3600
_S_MAX = 2**32 - 1


@dataclass(frozen=True)
class Tls:
    """The MQTT source's TLS files in PEM format: trusted CAs and our own certificate. Without `ca_file`, the system's
    CAs are trusted."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)

    def context(self) -> SSLContext:
        """Create the TLS context. Blocks: it reads the files, so call it in a thread."""
        import ssl

        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file, self.key_password)
        return context


@dataclass(frozen=True)
class MqttSource:
    """Subscribes to MQTT `topics` in a session that continues across connections. Implements `contracts.Source`.

    A reply is sent to the broker when the event is durable. See docs/sources/mqtt.md for the options. Creating a source
    opens nothing.

    A QoS 2 message becomes exactly one event, even if this process is killed with kill -9, connections are lost, or the
    broker restarts and keeps its sessions. A QoS 1 message becomes at least one event, and exactly one if the event
    class has an id. A QoS 0 message may be lost. The QoS of a message is the lower of the publisher's QoS and `qos`.

    Memory: the two buffers of the source buffer, one packet of `packet_bytes_max`, and the replies to `receive_max`
    packets.
    """

    url: str
    topics: str | Sequence[str]
    _: KW_ONLY
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
    backoff_s: float = Backoff.first_s
    backoff_max_s: float = Backoff.most_s
    open_s: float = 10.0
    close_s: float = 5.0

    def __post_init__(self) -> None:
        topics = (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)
        object.__setattr__(self, "topics", topics)
        _check_address(self)
        _check_numbers(self)
        if self.client_id is not None and not (self.client_id.isprintable() and 0 < len(self.client_id) <= CLIENT_MAX):
            raise DeclarationError(
                f"the client_id of an MQTT source must be 1 to {CLIENT_MAX} printable characters long"
            )
        if self.version == 3 and self.password is not None and self.username is None:
            raise DeclarationError("MQTT 3.1.1 requires a username if there is a password")
        assert self._topics

    @property
    def kind(self) -> str:
        return "mqtt"

    @property
    def address(self) -> str:
        return self.url

    async def run(self, source_writer: SourceWriter, status: SourceStatus) -> None:
        """Pull MQTT messages until cancelled.

        Messages accepted by then are durable and confirmed to the broker before the cancellation propagates.
        """
        inboxes: list[MqttInbox] = []
        backoff = Backoff(self.backoff_s, self.backoff_max_s)

        async def connection() -> str:
            if not inboxes:
                session = MqttSession(source_writer.mark, self.client_id)
                retained, low = self.retained, self.receive_max
                inboxes.append(MqttInbox(source_writer, status, session, self._topics, retained=retained, low=low))
            return await self._connection(inboxes[0], status)

        await keep_connected(connection, source_writer, status, backoff, self.address)

    async def _connection(self, inbox: MqttInbox, status: SourceStatus) -> str:
        """Run one connection to the broker. Returns a message that tells users why it ended."""
        try:
            streams = await self._open()
        except (OSError, TimeoutError) as error:
            return f"could not connect: {error or type(error).__name__}"
        link = MqttConnection(streams, self._login(inbox), self._options(), inbox, list(self._topics.filters), status)
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

    def _login(self, inbox: MqttInbox) -> Login:
        return Login(
            self.version,
            inbox.session.client_id,
            self.username,
            self.password,
            math.ceil(self.keep_alive_s),
            self.session_expiry_s,
            self.receive_max,
        )

    def _options(self) -> ConnectionOptions:
        return ConnectionOptions(
            self.qos, self.retained, self.keep_alive_s, self.open_s, self.close_s, self.packet_bytes_max
        )

    @cached_property
    def _topics(self) -> Topics:
        return Topics(self.topics, self.value)


mqtt = MqttSource
"""The name that apps use to declare the source."""


def _check_address(source: MqttSource) -> None:
    if "@" in source.url:
        raise DeclarationError("pass username= and password= to an MQTT source; its address must not contain them")
    parts = address_parts(source.url)
    if parts is None or parts.scheme not in PORTS or parts.path.strip("/") or parts.query or parts.fragment:
        shown = without_secrets(source.url)
        raise DeclarationError(f"{shown!r} is not an MQTT broker address; use one such as mqtt://host:1883")
    if source.tls is not None and parts.scheme != "mqtts":
        raise DeclarationError("the address of an MQTT source with tls= must begin with mqtts://")


def _check_numbers(source: MqttSource) -> None:
    for name, least, most in (
        ("qos", 0, 2),
        ("receive_max", 1, 65_535),
        ("session_expiry_s", 0, _S_MAX),
        ("keep_alive_s", 0.01, 65_535),
        ("packet_bytes_max", 1024, LENGTH_MAX),
    ):
        if not least <= getattr(source, name) <= most:
            raise DeclarationError(f"the {name} of an MQTT source must be from {least} to {most}")
    if source.version not in (3, 5):
        raise DeclarationError("the version of an MQTT source must be 5, or 3 for MQTT 3.1.1")
