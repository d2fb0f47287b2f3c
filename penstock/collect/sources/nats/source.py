"""A source that reads a stream of NATS JetStream: each message is one event.

**Every event of the stream is in the log exactly once and in order, through kill -9 of either side.** The position, the
event's sequence in the stream, is committed with the event; each connection makes a consumer that begins there. If the
stream removed events before they could be read, that is told, with their number.

Without `durable` nothing is acknowledged, and nothing of us stays at the server: that is for streams that keep events
by age or size. Those that delete what was acknowledged (retention `workqueue` or `interest`) need a named consumer,
which `durable` gives: it acknowledges an event once it is durable here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock.collect.sources.nats.consumer import Consumers
from penstock.collect.sources.nats.inbox import Interrupted, Limits
from penstock.collect.sources.nats.reader import Reader
from penstock.collect.sources.nats.subjects import Pattern, Shaper
from penstock.collect.sources.reconnect import Backoff, address_parts, keep_connected, without_secrets
from penstock.contracts import Intake, SourceStatus
from penstock.errors import DeclarationError, SourceFailed

if TYPE_CHECKING:
    import ssl

    from nats.aio.client import Client

CLOSE_S = 2.0
"""How long the end of a connection may take."""
_NAME = re.compile(r"[^\s.*>/\\]+")
_REFUSED = ("authorization", "authentication expired", "authentication revoked")


@dataclass(frozen=True)
class NatsLogin:
    """Who we are to the server: user and password, a token, or `credentials`, the path of a .creds file."""

    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class NatsSource:
    """Reads `stream` at `url`. Implements `contracts.Source`.

    `url` may name several servers of a cluster, with commas. `subjects` choose from the stream; a level `{name}` is any
    word, and becomes the field `name` of the event. A payload that is no JSON object goes into the field `value`, if
    that is given. A stream that was never read is read from its first event, or with `since="latest"` from now on.

    At most half of `pending_max` events are asked for at once, and no more than `pending_bytes_max` of them, or twice
    what one event may have by the server's word; at most `pending_max` are not acknowledged yet. A server that is
    silent for `silent_s` is taken for dead.
    """

    url: str = field(repr=False)
    stream: str
    subjects: tuple[str, ...] = ()
    durable: str | None = None
    login: NatsLogin = NatsLogin()
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    domain: str | None = None
    value: str | None = None
    since: str = "earliest"
    pending_max: int = 2000
    pending_bytes_max: int = 8 * 1024 * 1024
    silent_s: float = 10.0
    open_s: float = 10.0
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        for server in self._servers:
            parts = address_parts(server)
            if parts is None or parts.scheme not in ("nats", "tls"):
                shown = without_secrets(server)
                raise DeclarationError(
                    f"{shown!r} is not the address of a NATS server; it begins with nats:// or tls://"
                )
        for name, what in ((self.stream, "stream"), (self.durable, "consumer"), (self.domain, "domain")):
            if name is not None and not _NAME.fullmatch(name):
                raise DeclarationError(
                    f"{name!r} is not the name of a {what}: dots, spaces, '*' and '>' are not allowed"
                )
        if self.since not in ("earliest", "latest"):
            raise DeclarationError(f"since is 'earliest' or 'latest', not {self.since!r}")
        if self.pending_max < 1:
            raise DeclarationError("pending_max is at least 1")
        self._patterns()

    @property
    def kind(self) -> str:
        return "nats"

    @property
    def address(self) -> str:
        return ",".join(map(without_secrets, self._servers)) + f" {self.stream}"

    @property
    def _servers(self) -> list[str]:
        return [each.strip() for each in self.url.split(",")]

    def _patterns(self) -> list[Pattern]:
        return [Pattern.parse(each) for each in self.subjects]

    async def run(self, intake: Intake, status: SourceStatus) -> None:
        """Read until cancelled. What was read by then is put and settled before the cancellation goes on.

        Raises `SourceFailed` if the server refuses us or there is no such stream, and what the intake raises.
        """
        _require_library()
        if self.login.credentials is not None:
            await asyncio.to_thread(_require_credentials, self.login.credentials)
        patterns = self._patterns()
        filters = tuple(pattern.filter for pattern in patterns)
        consumers = Consumers(self.stream, filters, self.durable, self.pending_max)
        limits = Limits(self.pending_max, self.pending_bytes_max, self.silent_s)
        reader = Reader(consumers, Shaper(patterns, self.value), limits, self.since, intake, status)
        await keep_connected(lambda: self._connection(reader), intake, status, self.backoff, self.address)

    async def _connection(self, reader: Reader) -> str:
        """One connection from its opening to its end; returns why it ended, for people."""
        from nats.errors import Error
        from nats.js.errors import APIError

        prefix = f"$JS.{self.domain}.API" if self.domain else "$JS.API"
        told: list[str] = []
        try:
            async with self._connected(told) as (client, ended):
                await reader.read(client, prefix, ended)
        except Interrupted as error:
            self._require_rights(told)
            return str(error)
        except APIError as error:
            return self._api_trouble(error)
        except (Error, OSError, TimeoutError) as error:
            self._require_rights([str(error), *told])
            return f"no connection: {(told or [str(error) or type(error).__name__])[0]}"
        return "the connection ended"

    @asynccontextmanager
    async def _connected(self, told: list[str]) -> AsyncIterator[tuple[Client, asyncio.Event]]:
        """A connection, and the event of its end. One try for each server: when to try again is decided elsewhere.

        What the library tells of itself is in `told`, the last of it.
        """
        from nats.aio.client import Client

        client, ended = Client(), asyncio.Event()

        async def on_error(error: Exception) -> None:
            told[:] = [str(error) or type(error).__name__]

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
        """What proves who we are. Given by functions, so that nothing is sent before the connection is known to be
        encrypted, if it is to be. What stands in the address counts if nothing else is given."""
        login, parts = self.login, urlsplit(self._servers[0])
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
        """The library encrypts if the server asks for it; if we ask for it and the server does not, it would not."""
        wanted = self.tls is not None or any(urlsplit(server).scheme == "tls" for server in self._servers)
        if wanted and not client._server_info.get("tls_required"):
            raise SourceFailed(f"{self.address} does not encrypt its connections; nothing was sent to it")

    def _api_trouble(self, error: Any) -> str:
        """What JetStream refuses. A wrong request stays wrong; all else may pass."""
        words = error.description or "JetStream does not answer"
        if error.err_code == 10059:
            raise SourceFailed(f"there is no stream {self.stream!r} at {self.address}: make it, or correct its name")
        if error.code == 400:
            raise SourceFailed(f"the server refuses to read the stream {self.stream!r}: {words}")
        return f"JetStream is not ready: {words}"

    def _require_rights(self, told: list[str]) -> None:
        """Raises if the server has said that it is for want of a right."""
        for words in told:
            if any(each in words.lower() for each in _REFUSED):
                raise SourceFailed(f"{self.address} does not let us in ({words}): check user, password or credentials")
            if "permissions violation" in words.lower():
                raise SourceFailed(
                    f"{self.address} does not allow what reading takes ({words}): give the user that right"
                )


def _require_library() -> None:
    """Both are in the extra: the second is for credentials, and the first loads it only when there are any."""
    if find_spec("nats") is None or find_spec("nkeys") is None:
        raise SourceFailed("the library for NATS is missing: pip install 'penstock[nats]'")


def _require_credentials(path: str) -> None:
    """The library reads the file with each connection, and what it raises for a bad one differs from fault to fault."""
    from nkeys import from_seed  # type: ignore[import-untyped]

    try:
        lines = Path(path).read_bytes().splitlines()
        marks = [number for number, line in enumerate(lines) if b"BEGIN USER NKEY SEED" in line]
        from_seed(bytearray(lines[marks[0] + 1])).wipe()
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else "it has no user's key"
        raise SourceFailed(f"the credentials in {path} cannot be used: {reason}") from None


def nats(
    url: str,
    stream: str,
    *,
    subjects: str | Sequence[str] = (),
    durable: str | None = None,
    login: NatsLogin | None = None,
    tls: ssl.SSLContext | None = None,
    domain: str | None = None,
    value: str | None = None,
    since: str = NatsSource.since,
    pending_max: int = NatsSource.pending_max,
    pending_bytes_max: int = NatsSource.pending_bytes_max,
    silent_s: float = NatsSource.silent_s,
    backoff_s: float = Backoff.first_s,
    backoff_max_s: float = Backoff.most_s,
) -> NatsSource:
    """A stream of NATS JetStream. See `NatsSource` for what the options mean; making one opens nothing."""
    return NatsSource(
        url,
        stream,
        subjects=(subjects,) if isinstance(subjects, str) else tuple(subjects),
        durable=durable,
        login=login or NatsLogin(),
        tls=tls,
        domain=domain,
        value=value,
        since=since,
        pending_max=pending_max,
        pending_bytes_max=pending_bytes_max,
        silent_s=silent_s,
        backoff=Backoff(backoff_s, backoff_max_s),
    )
