"""Objects that the runtime passes to the routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.core.access import Caller, RowRule
from penstock.core.contracts import Channel
from penstock.core.errors import BadExpression, BadParameter, Forbidden, NotFound
from penstock.core.schema import Event
from penstock.core.settings import Settings
from penstock.serve.channels.feed import FeedChannel
from penstock.serve.connections import Connections
from penstock.serve.query.queries import Queries

_log = logging.getLogger("penstock.serve")
KeyState = Callable[[str], Awaitable[bytes | None]]


@dataclass(frozen=True)
class Deps:
    """The parts of the runtime that the routes use: channels by name, figures, and an event for the gateway's shutdown.

    `describe` returns the body of `/v1/app`, and `health` the body of `/v1/health` (`ready` and `reasons`). They must
    not block. Both accept `details=False`, for a caller who is not allowed to see all rows, because an error can quote
    a row. `closing` is set when the gateway begins to stop. `events` contains the event classes for the OpenAPI
    document. `states` maps each handler to a function that returns a key's state as a JSON object, or None if the key
    has no state. `state_inputs` maps each handler to the streams that its state is computed from. `acks` returns the
    results for the events in an acknowledgement. `queries` runs ad-hoc queries. `rollups` maps each view that is a
    rollup to its units.
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
        """Return the channel of a stream, view or query, limited to the rows that the caller is allowed to see.

        For a `query`, `name` is its SQL. A feed without its own rule is limited by its source's rule.
        """
        if kind == "query":
            return self.asked.channel(name, caller)
        caller.require("consume", name)
        channel = (self.streams if kind == "stream" else self.views).get(name)
        if channel is None:
            raise NotFound(f"there is no {kind} {name[:80]!r}")
        if caller.name:
            channel = channel.asked_by(caller.name)
        rule = caller.sees(name)
        if rule is not None:
            return limited(channel, name, rule)
        inherited = caller.sees(channel.source) if isinstance(channel, FeedChannel) else None
        if isinstance(channel, FeedChannel) and inherited is not None:
            return channel.over_part(partial(limited, name=channel.source, rule=inherited))
        return channel

    @property
    def asked(self) -> Queries:
        if self.queries is None:
            raise NotFound("queries are not available here")
        return self.queries


def limited(channel: Channel, name: str, rule: RowRule) -> Channel:
    """Limit a channel to the rows that a rule allows. Raises `Forbidden` if the rule does not match the channel's
    columns, or if the rows cannot be shown in part."""
    rule.require_shown()
    try:
        return channel.limited(rule.condition, rule.claims)
    except BadExpression as error:
        _log.error("access to %s is refused: %s", name, error)
        raise Forbidden(f"access to {name[:80]} is refused: the row rule does not match its columns") from None


def parameters(given: list[tuple[str, str]], *known: str) -> dict[str, str]:
    """Return a read request's query parameters by name. Raises `BadParameter` if one is unknown or repeated."""
    chosen: dict[str, str] = {}
    for name, value in given:
        if name not in known:
            listed = f"use {', '.join(known)}" if known else "this endpoint takes no parameters"
            raise BadParameter(f"there is no parameter {name[:80]!r}; {listed}", parameter=name[:80])
        if name in chosen:
            raise BadParameter(f"the parameter {name!r} appears twice", parameter=name)
        chosen[name] = value
    return chosen
