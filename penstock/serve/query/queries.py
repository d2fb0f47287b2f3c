"""Queries of callers: checked, run, and answered; and those that are kept live."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from penstock.access import Caller, RowRule
from penstock.errors import BadParameter, BadQuery, Forbidden, QueryRefused
from penstock.serve.channels.threads import for_reader
from penstock.serve.channels.turns import Turns
from penstock.serve.query.answers import Answer, Format
from penstock.serve.query.check import Checked, check
from penstock.serve.query.live import LiveQueries, QueryChannel
from penstock.serve.query.plan import Plan
from penstock.serve.query.pool import Pool, Request, Wrong
from penstock.serve.query.relations import Relation
from penstock.serve.query.sources import Extract, Source
from penstock.settings import Settings

FORGET_S = 60.0
"""How long the rows of a stream or view are held for the next query."""
LIVE = "live queries/"
"""Who the queries are of that are kept live; no caller has such a name."""
HELD_MAX = 4
"""Together they take at most so many times what one query may read."""
CHECKS_MAX = 2
"""Texts that are parsed at once, in the four threads for readers; callers take turns."""
CHECKS_WAITING_MAX = 1_000
"""Texts that wait to be parsed: all followers of live queries come back at once when the gateway has restarted."""
_quoted = re.compile(r"[\"']([^\"']{1,200})[\"']").findall
_input = re.compile(r"(?:temp\.main\.)?input_(\d+)")


class Queries:
    """What `/v1/query` is answered by. Belongs to one event loop; nothing is started before the first query."""

    def __init__(self, relations: Mapping[str, Relation], settings: Settings) -> None:
        """`relations` is what can be read, by the names that grants are given for."""
        most = settings.query_memory_bytes
        self._sources = {name: Source(name, relation, bytes_max=most) for name, relation in relations.items()}
        self._settings = settings
        self._pool = Pool(settings)
        self._checks = Turns(CHECKS_MAX, CHECKS_WAITING_MAX)
        self._live = LiveQueries(self.run, self._versions, settings)
        self._forgetting: asyncio.TimerHandle | None = None

    async def answer(self, text: str, caller: Caller, format: Format = "json", limit: int | None = None) -> Answer:
        """The answer to a query. Raises what `plan` and `run` do."""
        return await self.run(await self.plan(text, caller, limit), format, caller.name)

    def channel(self, text: str, caller: Caller) -> QueryChannel:
        """The query as something to be followed. Callers who ask for the same share the work. What is wrong with it is
        found when it is followed."""
        return QueryChannel(lambda: self.plan(text, caller), self._live, self._settings.heartbeat_s, caller.name)

    async def plan(self, text: str, caller: Caller, limit: int | None = None) -> Plan:
        """A query that this caller may run: over streams and views that it may read, and the rows that it may see."""
        most = self._settings.query_rows_max
        if limit is not None and not 1 <= limit <= most:
            raise BadParameter(f"limit must be a whole number from 1 to {most}", parameter="limit")
        if len(text) > self._settings.query_text_max:
            raise QueryRefused(f"a query may have {self._settings.query_text_max} characters")
        allowed = [name for name in self._sources if caller.may("consume", name)]

        def resolve(name: str, place: int | None) -> str:
            same = [each for each in allowed if each.lower() == name.lower()]
            if name in same or len(same) == 1:
                return name if name in same else same[0]
            caller.require("consume", name)
            raise BadQuery(f"there is no stream or view {name[:80]!r}{_listed(allowed)}", position=place)

        async with self._checks.one(caller.name):
            checked = await for_reader(caller.name, check, text, resolve, limit or most)
        return Plan(checked, tuple(self._rule(name, caller) for name in checked.reads))

    def _rule(self, name: str, caller: Caller) -> RowRule | None:
        """What the caller sees of the rows. A feed without a rule of its own, of something with one, is not shown."""
        rule, whole = caller.sees(name), self._sources[name].part_of
        if rule is None and whole is not None and caller.sees(whole) is not None:
            raise Forbidden(f"{caller.name} sees some rows of {whole} only; ask for those instead of {name}")
        return rule

    async def run(self, plan: Plan, format: Format = "json", who: str = LIVE) -> Answer:
        """Run a query when it is the caller's turn. What it needs is read then, which does not count as its time."""
        checked = plan.checked
        async with self._pool.turn(who):
            extracts, read_s = await self._extracts(plan, who)
            cursors = _cursors(checked, extracts)
            files = [each.file.descriptor for each in extracts]
            try:
                result = await self._pool.run(Request(checked.sql, checked.rows_max, format, cursors), files)
            except Wrong as error:
                raise _explained(str(error), checked) from None
            return Answer(result.data, cursors, read_s + result.seconds)

    async def _extracts(self, plan: Plan, who: str) -> tuple[list[Extract], float]:
        """The tables of a query, and how long it took to read them."""
        reads, clock = plan.checked.reads, asyncio.get_running_loop().time
        began = clock()
        found = [await self._sources[name].extract(rule, who) for name, rule in zip(reads, plan.rules, strict=True)]
        self._make_room(reads)
        self._forget_later()
        return found, clock() - began

    async def _versions(self, names: tuple[str, ...]) -> tuple[object, ...]:
        return tuple([await self._sources[name].version() for name in names])

    def _make_room(self, used: tuple[str, ...]) -> None:
        """Let go of what was not asked for the longest, while too much is held; and if need be of what is used now,
        which those who use it have still."""
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


def _cursors(checked: Checked, extracts: list[Extract]) -> dict[str, str]:
    return {name: extract.cursor for name, extract in zip(checked.reads, extracts, strict=True)}


def _listed(names: list[str]) -> str:
    return f"; there are {', '.join(names[:20])}" if names else ""


def _table(number: int, checked: Checked) -> str:
    """The client's name of a table. The text may have such a number of its own, which stands for none."""
    return checked.reads[number] if number < len(checked.reads) else "a table"


def _explained(message: str, checked: Checked) -> BadQuery:
    """What the engine says, in the names of the client, and where the name stands that it speaks of."""
    told = message.partition("\n\nLINE ")[0].replace("\n", " ")
    told = _input.sub(lambda found: _table(int(found[1]), checked), told)
    place = next((checked.places[name.lower()] for name in _quoted(told) if name.lower() in checked.places), None)
    return BadQuery(told.partition(" Error: ")[2][:500] or told[:500], position=place)
