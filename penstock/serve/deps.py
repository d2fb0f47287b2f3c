"""What the routes are handed by the runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.access import Caller, RowRule
from penstock.contracts import Channel
from penstock.errors import BadExpression, BadParameter, Forbidden, NotFound
from penstock.schema import Event
from penstock.serve.channels.feed import FeedChannel
from penstock.serve.connections import Connections
from penstock.serve.query.queries import Queries
from penstock.settings import Settings

_log = logging.getLogger("penstock.serve")
KeyState = Callable[[str], Awaitable[bytes | None]]


@dataclass(frozen=True)
class Deps:
    """Channels by name, figures, and the event that is set when the gateway begins to stop.

    `describe` is the body of `/v1/app`, `health` of `/v1/health` (`ready` and `reasons`); neither may block. Both
    take `details=False` for a caller who may not see all rows: an error may quote one. `events` are the event classes
    for the OpenAPI document. `states` gives, by handler, the state of a key as a JSON object, or None if it has none;
    `state_inputs` has, by handler, the streams whose events its state is made of. `acks` tells, of an acknowledgement,
    what became of its events. `queries` answers ad-hoc queries. `rollups` has the units of views that are rollups.
    """

    streams: Mapping[str, Channel]
    views: Mapping[str, Channel]
    describe: Callable[..., dict[str, Any]]
    health: Callable[..., dict[str, Any]]
    settings: Settings
    closing: asyncio.Event
    connections: Connections
    events: Mapping[str, type[Event]] = field(default_factory=dict)
    states: Mapping[str, KeyState] = field(default_factory=dict)
    state_inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    acks: Callable[[str, Caller], Awaitable[dict[str, Any]]] | None = None
    queries: Queries | None = None
    rollups: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def channel(self, kind: str, name: str, caller: Caller) -> Channel:
        """The channel of a `stream` or `view`, for someone who may read it, with the rows that they may see; that of a
        `query` by its text. A feed for which there is no rule is made of what they may see of the other."""
        if kind == "query":
            return self.asked.channel(name, caller)
        caller.require("consume", name)
        found = (self.streams if kind == "stream" else self.views).get(name)
        if found is None:
            raise NotFound(f"there is no {kind} {name[:80]!r}")
        if caller.name:
            found = found.asked_by(caller.name)
        rule = caller.sees(name)
        if rule is not None:
            return limited(found, name, rule)
        inherited = caller.sees(found.source) if isinstance(found, FeedChannel) else None
        if isinstance(found, FeedChannel) and inherited is not None:
            return found.made_of(partial(limited, name=found.source, rule=inherited))
        return found

    @property
    def asked(self) -> Queries:
        if self.queries is None:
            raise NotFound("queries are not answered here")
        return self.queries


def limited(channel: Channel, name: str, rule: RowRule) -> Channel:
    """The channel as one sees it who may see some of its rows. A rule that does not fit shows nothing."""
    try:
        return channel.limited(rule.condition, rule.claims)
    except BadExpression as error:
        _log.error("the rows of %s are shown to no one: %s", name, error)
        raise Forbidden(f"the rows of {name[:80]} are limited by a rule that does not fit them") from None


def parameters(given: list[tuple[str, str]], *known: str) -> dict[str, str]:
    """Query parameters by name. One that is not known, or stands twice, raises `BadParameter` with its name."""
    chosen: dict[str, str] = {}
    for name, value in given:
        if name not in known:
            listed = f"use {', '.join(known)}" if known else "there are none here"
            raise BadParameter(f"there is no parameter {name[:80]!r}; {listed}", parameter=name[:80])
        if name in chosen:
            raise BadParameter(f"the parameter {name!r} stands twice", parameter=name)
        chosen[name] = value
    return chosen
