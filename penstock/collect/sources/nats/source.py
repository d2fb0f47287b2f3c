"""A source that reads a NATS JetStream stream: each message is one event.

**Every event in the stream is stored in the log exactly once and in order, even if either side is killed with kill
-9.** The position, the event's sequence in the stream, is committed with the event; each connection creates a consumer
that starts at that position. If the stream removed events before they could be read, the source reports how many.

Without `durable`, nothing is acknowledged and nothing is left on the server. This mode is for streams that keep events
by age or size. Streams that delete acknowledged events (retention `workqueue` or `interest`) need a named consumer;
`durable` sets its name. The source then acknowledges each event when it is durable here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock.collect.sources.addresses import address_parts, without_secrets
from penstock.collect.sources.nats.consumer import Consumers
from penstock.collect.sources.nats.inbox import ConsumerInterrupted, NatsLimits
from penstock.collect.sources.nats.reader import NatsReader
from penstock.collect.sources.nats.subjects import Shaper, SubjectPattern
from penstock.collect.sources.reconnect import keep_connected
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus, SourceWriter
from penstock.core.errors import DeclarationError, SourceFailed

if TYPE_CHECKING:
    import ssl

    from nats.aio.client import Client

CLOSE_S = 2.0
"""Maximum time for closing a connection."""
_NAME = re.compile(r"[^\s.*>/\\]+")
_REFUSED = ("authorization", "authentication expired", "authentication revoked")


@dataclass(frozen=True)
class NatsLogin:
    """Login credentials for a NATS server: a user and password, a token, or the path to a .creds file in
    `credentials`."""

    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class NatsSource:
    """Reads the JetStream `stream` at `url`. Implements `contracts.Source`. Creating a source opens nothing.

    `url` can name several servers in a cluster, separated by commas. `subjects` filter the stream; a level `{name}`
    matches any word, and becomes the field `name` of the event. A payload that is not a JSON object goes into the field
    named by `value`, if set. A stream that was never read is read from its first event or, with `since="latest"`, from
    now on.

    At most half of `pending_max` events are requested at once, with at most `pending_bytes_max` bytes, or twice the
    server's limit for one event if that is more. At most `pending_max` events are unacknowledged. A server that is
    silent for `silent_s` is considered dead.
    """

    url: str = field(repr=False)
    stream: str
    _: KW_ONLY
    subjects: str | Sequence[str] = ()
    durable: str | None = None
    login: NatsLogin | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    domain: str | None = None
    value: str | None = None
    since: str = "earliest"
    pending_max: int = 2000
    pending_bytes_max: int = 8 * 1024 * 1024
    silent_s: float = 10.0
    open_s: float = 10.0
    backoff_s: float = Backoff.first_s
    backoff_max_s: float = Backoff.most_s

    def __post_init__(self) -> None:
        subjects = (self.subjects,) if isinstance(self.subjects, str) else tuple(self.subjects)
        object.__setattr__(self, "subjects", subjects)
        for server in self._servers:
            parts = address_parts(server)
            if parts is None or parts.scheme not in ("nats", "tls"):
                shown = without_secrets(server)
                raise DeclarationError(f"{shown!r} is not a NATS server address; it must begin with nats:// or tls://")
        for name, what in ((self.stream, "stream"), (self.durable, "consumer"), (self.domain, "domain")):
            if name is not None and not _NAME.fullmatch(name):
                raise DeclarationError(
                    f"{name!r} is not a valid {what} name: dots, spaces, '*' and '>' are not allowed"
                )
        if self.since not in ("earliest", "latest"):
            raise DeclarationError(f"since must be 'earliest' or 'latest', not {self.since!r}")
        if self.pending_max < 1:
            raise DeclarationError("pending_max must be at least 1")
        self._patterns()

    @property
    def kind(self) -> str:
        return "nats"

    @property
    def address(self) -> str:
        return ",".join(map(without_secrets, self._servers)) + f" {self.stream}"

    @property
    def _login(self) -> NatsLogin:
        return self.login or NatsLogin()

    @property
    def _servers(self) -> list[str]:
        return [server.strip() for server in self.url.split(",")]

    def _patterns(self) -> list[SubjectPattern]:
        return [SubjectPattern.parse(subject) for subject in self.subjects]

    async def run(self, source_writer: SourceWriter, status: SourceStatus) -> None:
        """Read the JetStream stream until cancelled. Events read by then are put and settled before the cancellation
        propagates.

        Raises `SourceFailed` if the server refuses access or the stream does not exist, and any error from the source
        writer.
        """
        _require_library()
        if self._login.credentials is not None:
            await asyncio.to_thread(_require_credentials, self._login.credentials)
        patterns = self._patterns()
        filters = tuple(pattern.filter for pattern in patterns)
        consumers = Consumers(self.stream, filters, self.durable, self.pending_max)
        backoff = Backoff(self.backoff_s, self.backoff_max_s)
        limits = NatsLimits(self.pending_max, self.pending_bytes_max, self.silent_s)
        reader = NatsReader(consumers, Shaper(patterns, self.value), limits, self.since, source_writer, status)
        await keep_connected(lambda: self._connection(reader), source_writer, status, backoff, self.address)

    async def _connection(self, reader: NatsReader) -> str:
        """Run one connection to the NATS server. Returns a message that tells users why it ended."""
        from nats.errors import Error
        from nats.js.errors import APIError

        prefix = f"$JS.{self.domain}.API" if self.domain else "$JS.API"
        messages: list[str] = []
        try:
            async with self._connected(messages) as (client, ended):
                await reader.read(client, prefix, ended)
        except ConsumerInterrupted as error:
            self._require_rights(messages)
            return str(error)
        except APIError as error:
            return self._api_trouble(error)
        except (Error, OSError, TimeoutError) as error:
            self._require_rights([str(error), *messages])
            return f"no connection: {(messages or [str(error) or type(error).__name__])[0]}"
        return "the connection ended"

    @asynccontextmanager
    async def _connected(self, messages: list[str]) -> AsyncIterator[tuple[Client, asyncio.Event]]:
        """Yield a connection to a NATS server, and an event that is set when the connection ends. Tries each server
        once: the caller decides whether to retry.

        `messages` receives the library's latest error message.
        """
        from nats.aio.client import Client

        client, ended = Client(), asyncio.Event()

        async def on_error(error: Exception) -> None:
            messages[:] = [str(error) or type(error).__name__]

        async def on_end() -> None:
            ended.set()

        try:
            await client.connect(
                [without_secrets(server) for server in self._servers],
                error_cb=on_error,
                disconnected_cb=on_end,
                closed_cb=on_end,
                name="penstock",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=self.open_s,  # type: ignore[arg-type]
                tls=self.tls,
                **self._secrets(client),
            )
            self._require_tls(client)
            yield client, ended
        finally:
            with suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await client.close()

    def _secrets(self, client: Client) -> dict[str, Any]:
        """Return the NATS credentials. Secrets are returned as functions. If encryption is required, nothing is sent
        before the connection is known to be encrypted. Credentials in the address are used if `login` has none."""
        login, parts = self._login, urlsplit(self._servers[0])
        user, password, token = login.user, login.password, login.token
        if login == NatsLogin() and parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
            if parts.password is None:
                user, password, token = None, None, user
        given = {"user": user, "password": password, "token": token}
        secrets: dict[str, Any] = {
            name: self._guarded(client, text) for name, text in given.items() if text is not None
        }
        if login.credentials is not None:
            secrets["user_credentials"] = login.credentials
        return secrets

    def _guarded(self, client: Client, secret: str) -> Callable[[], str]:
        def give() -> str:
            self._require_tls(client)
            return secret

        return give

    def _require_tls(self, client: Client) -> None:
        """Raise if the source requires TLS and it is not used. The library encrypts only if the server asks for it."""
        wanted = self.tls is not None or any(urlsplit(server).scheme == "tls" for server in self._servers)
        if wanted and not client._server_info.get("tls_required"):
            raise SourceFailed(f"{self.address} does not encrypt its connections; nothing was sent to it")

    def _api_trouble(self, error: Any) -> str:
        """Handle a JetStream error. Raises `SourceFailed` for an invalid request, and returns the reason for an error
        that may be temporary."""
        words = error.description or "JetStream does not respond"
        if error.err_code == 10059:
            raise SourceFailed(f"there is no stream {self.stream!r} at {self.address}: create it, or check the name")
        if error.code == 400:
            raise SourceFailed(f"the server refuses read access to the stream {self.stream!r}: {words}")
        return f"JetStream is not ready: {words}"

    def _require_rights(self, messages: list[str]) -> None:
        """Raise if the NATS server has reported a missing permission."""
        for words in messages:
            if any(phrase in words.lower() for phrase in _REFUSED):
                raise SourceFailed(f"{self.address} refuses the login ({words}): check user, password or credentials")
            if "permissions violation" in words.lower():
                raise SourceFailed(f"{self.address} denied read access ({words}): grant the user read permission")


def _require_library() -> None:
    """Raise `SourceFailed` if either NATS library of the extra is missing. The first one imports the second only if
    there are credentials."""
    if find_spec("nats") is None or find_spec("nkeys") is None:
        raise SourceFailed("the NATS library is missing: pip install 'penstock[nats]'")


def _require_credentials(path: str) -> None:
    """Check the NATS credentials file.

    The library reads the file for each connection, and raises a different error for each fault.
    """
    from nkeys import from_seed  # type: ignore[import-untyped]

    try:
        lines = Path(path).read_bytes().splitlines()
        marks = [number for number, line in enumerate(lines) if b"BEGIN USER NKEY SEED" in line]
        from_seed(bytearray(lines[marks[0] + 1])).wipe()
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else "the file has no user key"
        raise SourceFailed(f"the credentials in {path} cannot be used: {reason}") from None


nats = NatsSource
"""The name that apps use to declare the source."""
