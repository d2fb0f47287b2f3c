"""Runs callers' queries, once or live, after checking them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial

from penstock.core.access import Caller, RowRule
from penstock.core.clock import loop_time
from penstock.core.errors import BadParameter, BadQuery, Forbidden, QueryRefused
from penstock.core.fair_threads import FairThreads
from penstock.core.settings import Settings
from penstock.serve.query.answers import Format, QueryResponse
from penstock.serve.query.check import Checked, check
from penstock.serve.query.live import LiveQueries, QueryChannel
from penstock.serve.query.plan import QueryPlan
from penstock.serve.query.pool import QueryPool, QueryRejected, QueryRequest
from penstock.serve.query.relations import Relation
from penstock.serve.query.sources import Extract, QuerySource

FORGET_S = 60.0
"""Number of seconds for which the rows of a stream or view are kept for the next query."""
LIVE = "live queries/"
"""The caller's name under which live queries take turns. No real caller can have this name."""
HELD_MAX = 4
"""Maximum total size of the rows held, as a multiple of the number of bytes that one query can read."""
CHECKS_MAX = 2
"""Number of queries checked at once, each in a thread. Callers take turns, and a named caller gets at most half of the
threads."""
CHECKS_WAITING_MAX = 1_000
"""Maximum number of queries that wait to be checked.

After a restart of the gateway, all followers of live queries reconnect at once.
"""
_checks = FairThreads(CHECKS_MAX, CHECKS_WAITING_MAX, name="checks", what="queries")
_quoted = re.compile(r"[\"']([^\"']{1,200})[\"']").findall
_input = re.compile(r"(?:temp\.main\.)?input_(\d+)")


class Queries:
    """Runs the queries for `/v1/query`. Starts nothing before the first query. Not thread-safe."""

    def __init__(self, relations: Mapping[str, Relation], settings: Settings) -> None:
        """`relations` are the tables that can be read, keyed by the names used in grants."""
        most = settings.query_memory_bytes
        self._sources = {name: QuerySource(name, relation, bytes_max=most) for name, relation in relations.items()}
        self._settings = settings
        self._pool = QueryPool(settings)
        self._live = LiveQueries(self.run, self._versions, settings)
        self._forgetting: asyncio.TimerHandle | None = None

    async def answer(
        self, text: str, caller: Caller, format: Format = "json", limit: int | None = None
    ) -> QueryResponse:
        """Check and run a query. Raises the same errors as `plan` and `run`."""
        return await self.run(await self.plan(text, caller, limit), format, caller.name)

    def channel(self, text: str, caller: Caller) -> QueryChannel:
        """Return the query as a channel to follow. Callers with the same query share the work.

        Errors in the query are raised when the channel is followed.
        """
        return QueryChannel(lambda: self.plan(text, caller), self._live, self._settings.heartbeat_s, caller.name)

    async def plan(self, text: str, caller: Caller, limit: int | None = None) -> QueryPlan:
        """Check a caller's query, limited to the streams, views and rows that the caller is allowed to read."""
        most = self._settings.query_rows_max
        if limit is not None and not 1 <= limit <= most:
            raise BadParameter(f"limit must be an integer from 1 to {most}", parameter="limit")
        if len(text) > self._settings.query_text_max:
            raise QueryRefused(f"the query is too long; the limit is {self._settings.query_text_max} characters")
        allowed = [name for name in self._sources if caller.may("consume", name)]

        def resolve(name: str, position: int | None) -> str:
            same = [other for other in allowed if other.lower() == name.lower()]
            if name in same or len(same) == 1:
                return name if name in same else same[0]
            caller.require("consume", name)
            raise BadQuery(
                f"there is no stream or view {name[:80]!r}{_allowed_inputs_hint(allowed)}", position=position
            )

        checked = await _checks.run(caller.name, partial(check, text, resolve, limit or most))
        return QueryPlan(checked, tuple(self._rule(name, caller) for name in checked.reads))

    def _rule(self, name: str, caller: Caller) -> RowRule | None:
        """Return the caller's rule for the queried rows, or None.

        Raises `Forbidden` if the rows cannot be shown in part, and for a feed if the caller has a rule for the feed's
        source, but no rule for the feed. The message names the source only if the caller is allowed to read it.
        """
        rule, whole = caller.sees(name), self._sources[name].part_of
        if rule is None and whole is not None and caller.sees(whole) is not None:
            if caller.may("consume", whole):
                raise Forbidden(f"{caller.name} sees only some rows of {whole}; query {whole} instead of {name}")
            raise Forbidden(
                f"{caller.name} sees only some rows of the stream or view behind {name}, and can query {name} only "
                "if it has a row rule of its own"
            )
        if rule is not None:
            rule.require_shown()
        return rule

    async def run(self, plan: QueryPlan, format: Format = "json", who: str = LIVE) -> QueryResponse:
        """Run a query when it is the caller's turn.

        Its inputs are read during the turn. Reading does not count against the query's time limit.
        """
        checked = plan.checked
        async with self._pool.turn(who):
            extracts, read_s = await self._extracts(plan, who)
            cursors = _input_cursors(checked, extracts)
            files = [extract.file.descriptor for extract in extracts]
            try:
                result = await self._pool.run(QueryRequest(checked.sql, checked.rows_max, format, cursors), files)
            except QueryRejected as error:
                raise _explained_query_error(str(error), checked) from None
            return QueryResponse(result.data, cursors, read_s + result.seconds)

    async def _extracts(self, plan: QueryPlan, who: str) -> tuple[list[Extract], float]:
        """Return the tables of a query, and the time it took to read them."""
        reads, began = plan.checked.reads, loop_time()
        extracts = [await self._sources[name].extract(rule, who) for name, rule in zip(reads, plan.rules, strict=True)]
        self._make_room(reads)
        self._forget_later()
        return extracts, loop_time() - began

    async def _versions(self, names: tuple[str, ...]) -> tuple[object, ...]:
        return tuple([await self._sources[name].version() for name in names])

    def _make_room(self, used: tuple[str, ...]) -> None:
        """Drop the least recently used query inputs while too many bytes are held. Running queries keep the rows that
        they use."""
        for name in used:
            self._sources[name] = self._sources.pop(name)
        held = sum(source.held for source in self._sources.values())
        for source in self._sources.values():
            if held <= HELD_MAX * self._settings.query_memory_bytes:
                return
            held -= source.held
            source.forget()

    def _forget_later(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(FORGET_S, self._forget)

    def _forget(self) -> None:
        for source in self._sources.values():
            source.forget()

    def close(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._pool.close()
        self._forget()


def _input_cursors(checked: Checked, extracts: list[Extract]) -> dict[str, str]:
    return {name: extract.cursor for name, extract in zip(checked.reads, extracts, strict=True)}


def _allowed_inputs_hint(names: list[str]) -> str:
    return f"; there are {', '.join(names[:20])}" if names else ""


def _table_name(number: int, checked: Checked) -> str:
    """Return the client's name for a table. If the client's own SQL contains an internal table name, there might be no
    table with that number."""
    return checked.reads[number] if number < len(checked.reads) else "a table"


def _explained_query_error(message: str, checked: Checked) -> BadQuery:
    """Rewrite a DuckDB error with the client's names, and add the position of the name that the error mentions."""
    text = message.partition("\n\nLINE ")[0].replace("\n", " ")
    text = _input.sub(lambda match: _table_name(int(match[1]), checked), text)
    position = next(
        (checked.positions[name.lower()] for name in _quoted(text) if name.lower() in checked.positions), None
    )
    return BadQuery(text.partition(" Error: ")[2][:500] or text[:500], position=position)
