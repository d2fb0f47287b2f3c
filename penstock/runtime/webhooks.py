"""What webhooks must know of the rest of the gateway."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.access import Gate
from penstock.app import App
from penstock.contracts import LogReader
from penstock.cursor import StreamCursor, ViewCursor, decode
from penstock.errors import PenstockError
from penstock.serve.webhooks.crew import Around
from penstock.serve.webhooks.declared import Declared
from penstock.serve.webhooks.messages import lane_key
from penstock.serve.webhooks.registry import SECRETS_MAX
from penstock.signing import secret_bytes
from penstock.store import LiveTable


def around(
    app: App,
    gate: Gate,
    log: LogReader,
    tables: Mapping[str, LiveTable],
    fatal: Callable[[PenstockError], None],
) -> Around:
    found = _Sources(app, log, tables)
    return Around(gate.standing, found.key, found.behind, fatal)


def declared(app: App, environ: Mapping[str, str] = os.environ) -> list[Declared]:
    """The webhooks of the app, each with its secrets. One whose secret cannot be read says so, and is not sent."""
    views = {view.name for view in app.views}
    views |= {feed.name for feed in app.feeds if feed.of in views}
    found = []
    for each in app.webhooks:
        kind = "view" if each.of in views else "stream"
        made = Declared(each.name, each.url, kind, each.of, each.condition, each.select, each.batch)
        try:
            found.append(replace(made, secrets=_secrets(each.secret, environ)))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            found.append(replace(made, wrong=f"its secret, from {each.secret}, cannot be used: {reason}"))
    return found


def _secrets(where: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    if "/" not in where and where not in environ:
        raise ValueError("there is no such environment variable")
    text = Path(where).read_text() if "/" in where else environ[where]
    found = tuple(text.split()[:SECRETS_MAX])
    for secret in found or ("",):
        secret_bytes(secret)
    return found


@dataclass(frozen=True)
class _Sources:
    app: App
    log: LogReader
    tables: Mapping[str, LiveTable]

    def key(self, kind: str, of: str) -> tuple[str, ...]:
        """The columns that identify what a stream or view tells of; none for a stream without a key. A feed has those
        of what it shows, as far as it shows them."""
        for feed in self.app.feeds:
            if feed.name == of:
                return lane_key(kind, self.key(kind, feed.of), feed.select)
        if kind == "view":
            return next((view.key for view in self.app.views if view.name == of), ())
        keys = [stream.key for stream in self.app.streams if stream.name == of]
        return tuple(key for key in keys if key is not None)

    def behind(self, kind: str, of: str, cursor: str) -> int | None:
        """Events or versions after a cursor, before any filter; None if that cannot be said."""
        name = next((feed.of for feed in self.app.feeds if feed.name == of), of)
        try:
            found = decode(cursor)
            if isinstance(found, StreamCursor) and kind == "stream":
                ends = self.log.ends(name)
                return sum(max(0, end - found.offsets.get(partition, end)) for partition, end in ends.items())
            if isinstance(found, ViewCursor) and kind == "view":
                return max(0, self.tables[name].version - found.version)
        except (PenstockError, KeyError):
            return None
        return None
