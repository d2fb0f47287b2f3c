"""Webhooks that the app declares: brought into line with what the file knows, each time the gateway starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from penstock.errors import NotFound, PenstockError
from penstock.serve.channels.pieces import EARLIEST, LATEST
from penstock.serve.connections import following
from penstock.serve.webhooks.crew import APP, Crew
from penstock.serve.webhooks.entry import Entry
from penstock.serve.webhooks.model import Hook, Known, Place, State

OWNER = "app"
_log = logging.getLogger("penstock.webhooks")


@dataclass(frozen=True)
class Declared:
    """A webhook of the app. `secrets` sign, the first of them is the newest; `wrong` says why there are none."""

    name: str
    url: str
    kind: str
    of: str
    where: str | None = None
    select: str | None = None
    batch: int = 1
    secrets: tuple[str, ...] = ()
    wrong: str | None = None


async def bring_into_line(crew: Crew, declared: Sequence[Declared]) -> None:
    """Add those that are new, change those that are changed, stop those that the app no longer has."""
    for each in declared:
        try:
            await _bring(crew, each)
        except PenstockError as error:  # a damaged stream must not keep the gateway from starting
            _log.error("the webhook %s, which the app declares, is left out: %s", each.name, error)
    names = {each.name for each in declared}
    for entry in crew.entries.values():
        if entry.hook.declared and entry.hook.id not in names:
            await crew.become(entry, State.STOPPED, "the app does not declare it any more")


async def _bring(crew: Crew, each: Declared) -> None:
    known = crew.entries.get(each.name)
    entry = await _added(crew, each) if known is None else await _changed(crew, known, each)
    entry.given = each.secrets
    if each.wrong is not None:
        await crew.become(entry, State.STOPPED, each.wrong)
    elif entry.hook.state == State.STOPPED:
        await crew.become(entry, State.ACTIVE if entry.hook.verified else State.PENDING, None)


async def _added(crew: Crew, each: Declared) -> Entry:
    hook = Hook(
        each.name, each.url, each.kind, each.of, OWNER, datetime.now(UTC), each.name,
        each.where, each.select, each.batch, declared=True,
    )  # fmt: skip
    entry = Entry(hook, Known(Place(await _latest(crew, each))))
    await crew.office.store.register(hook, entry.at_rest.place)
    crew.entries[hook.id] = entry
    return entry


async def _changed(crew: Crew, entry: Entry, each: Declared) -> Entry:
    """Another address must answer a challenge of its own. Through another filter a stream goes on from where it is, and
    a view comes anew; another stream or view begins now."""
    before = entry.hook
    entry.hook = replace(
        before, url=each.url, kind=each.kind, of=each.of, where=each.where, select=each.select, batch=each.batch
    )
    if before.url != each.url:
        state = State.PENDING if before.state in (State.ACTIVE, State.DISABLED) else before.state
        entry.hook = replace(entry.hook, verified=False, state=state, reason=None)
    cursor = None
    if (before.kind, before.of) != (each.kind, each.of):
        cursor = await _latest(crew, each)
    elif each.kind == "view" and (before.where, before.select) != (each.where, each.select):
        cursor = EARLIEST
    if cursor is not None:
        entry.at_rest = await crew.office.store.move(entry.hook.id, cursor)
    await crew.office.store.save(entry.hook)
    return entry


async def _latest(crew: Crew, each: Declared) -> str:
    """Where the channel ends now. A filter does not matter, and may not be known yet. A stream that a handler has still
    to make has nothing that could come before."""
    try:
        async with following(crew.channel(each.kind, each.of, APP), LATEST) as deliveries:
            return (await anext(deliveries)).cursor
    except NotFound:
        return EARLIEST
