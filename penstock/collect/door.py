"""The front door: one entrance for each declared stream, with its dead letters beside it.

Belongs to one event loop. `runtime` makes it, gives it the log, and closes it before the process ends.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from penstock.collect.audit import Audit
from penstock.collect.decode import BodyDecoder
from penstock.collect.entrance import Entrance
from penstock.collect.feed import FeedIntake
from penstock.collect.fitness import Ahead
from penstock.collect.intake import Hold, Hooks, Receipt, StreamIntake
from penstock.collect.reached import Stand
from penstock.collect.shedding import Shedding, SheddingIntake
from penstock.collect.writer import Target
from penstock.contracts import Clock, Intake, Log, StreamSpec
from penstock.cursor import AckSigner
from penstock.declared import Stream
from penstock.errors import DeclarationError, NotFound, PenstockError, Stopping, StorageError, SyncFailed
from penstock.event_shape import event_spec
from penstock.schema import Rejected
from penstock.settings import Settings
from penstock.shed import Shed

REJECTED_SUFFIX = ".rejected"


class FrontDoor:
    """Where events come in. Making it declares the streams in the log, which blocks; nothing else here does.

    A stream whose file is damaged, or does not fit its declaration, is `broken`: events for it are answered with that
    error, and the others are taken as ever.
    """

    def __init__(
        self,
        streams: Iterable[Stream],
        log: Log,
        settings: Settings,
        clock: Clock,
        on_fatal: Callable[[PenstockError], None],
        on_commit: Callable[[str], None],
        signer: AckSigner | None = None,
    ) -> None:
        """`on_commit` is called with a stream's name after each of its commits, `on_fatal` once writing must end.

        Both are called in the event loop and must not block. `signer` signs acknowledgements; without one, nobody can
        read them.
        """
        self._log = log
        self._settings = settings
        self._clock = clock
        self._hooks = Hooks(on_commit, on_fatal)
        self._signer = signer or AckSigner()
        self.threads = ThreadPoolExecutor(1, "penstock-bodies")
        self._closing = False
        self.broken: dict[str, PenstockError] = {}
        self._entrances: dict[str, Entrance] = {}
        for stream in streams:
            try:
                self._entrances[stream.name] = self._open(stream)
            except SyncFailed:
                raise
            except (StorageError, DeclarationError) as error:
                self.broken[stream.name] = error

    @property
    def streams(self) -> Sequence[str]:
        """The names of the streams that events can be sent to."""
        return list(self._entrances)

    def entrance(self, stream: str) -> Entrance:
        """The way into a stream; `NotFound` if it is not one that events can be sent to, `Stopping` after `close`."""
        if self._closing:
            raise Stopping("Penstock is stopping and takes no more events")
        found = self._entrances.get(stream)
        if stream in self.broken:
            raise copy.copy(self.broken[stream])
        if found is None:
            raise NotFound(f"there is no stream {stream[:80]!r} to send events to")
        return found

    async def post(self, stream: str, body: bytes, *, lines: bool = False, durable: bool = True) -> Receipt:
        """Take one request body, NDJSON if `lines`; see `Entrance.post`."""
        return await self.entrance(stream).post(body, lines=lines, durable=durable)

    def intake_for_source(self, source: str, stream: str) -> Intake:
        """Where one source puts its events for a stream. Each source has its own, and its marks go by its name."""
        return FeedIntake(source, self.entrance(stream), self._settings)

    def hold(self, stream: str, hold: Hold | None) -> None:
        """Make a stream take no events until this is called with None: requests are answered 429, sources wait."""
        self.entrance(stream).intake.hold(hold)

    def held(self) -> Mapping[str, Hold]:
        """The streams that take no events."""
        found = {name: entrance.intake.held for name, entrance in self._entrances.items()}
        return {name: hold for name, hold in found.items() if hold is not None}

    def shed(self, stream: str, reason: str | None) -> None:
        """Make a stream shed, because it is read too slowly, until this is called with None. One of those that may."""
        self._may_shed()[stream].shed(reason)

    @property
    def may_shed(self) -> Sequence[str]:
        """The names of the streams that are declared with `shed`."""
        return list(self._may_shed())

    def shedding(self) -> Mapping[str, Shedding]:
        """The streams that shed just now."""
        found = {name: intake.shedding for name, intake in self._may_shed().items()}
        return {name: shedding for name, shedding in found.items() if shedding is not None}

    def _may_shed(self) -> dict[str, SheddingIntake]:
        found = {name: entrance.intake for name, entrance in self._entrances.items()}
        return {name: intake for name, intake in found.items() if isinstance(intake, SheddingIntake)}

    async def tick(self, stream: str, at: datetime | None = None, told: datetime | None = None) -> None:
        """Append one tick to every partition: log time has reached `at`, by default now, or a later time if the stream
        is past that; and event time has reached `told`, if that is given. Durable on return."""
        await self.entrance(stream).intake.tick(at, told)

    def stands(self) -> Mapping[str, Stand]:
        """How far time has come in each stream."""
        return {name: entrance.intake.reached.stand for name, entrance in self._entrances.items()}

    def audits(self) -> Mapping[str, Audit]:
        """The figures of each declared stream; `rejected` counts its dead letters."""
        return {name: entrance.intake.audit for name, entrance in self._entrances.items()} | {
            name: Audit() for name in self.broken
        }

    async def drain(self) -> None:
        """Wait until everything taken so far is durable or has failed."""
        await asyncio.gather(*(intake.drain() for intake in self._intakes()))

    async def close(self) -> None:
        """Refuse new events, wait for those taken, end the threads. May be called again. Sources must end before."""
        self._closing = True
        for intake in self._intakes():
            intake.stop()
        await asyncio.gather(*(intake.close() for intake in self._intakes()))
        self.threads.shutdown()

    def _intakes(self) -> list[StreamIntake]:
        return [intake for each in self._entrances.values() for intake in (each.intake, each.dead_letters)]

    def _open(self, stream: Stream) -> Entrance:
        chosen = self._settings
        ahead = None if stream.ahead is None else Ahead(stream.event, stream.ahead, self._clock)
        decoder = BodyDecoder(
            stream.event, event_bytes_max=chosen.event_bytes_max, events_max=chosen.request_events_max, ahead=ahead
        )
        main = Target(stream.name, stream.event, stream.key, stream.partitions or chosen.partitions, self._signer)
        dead = Target(stream.name + REJECTED_SUFFIX, Rejected, None, 1, self._signer)
        intakes = self._intake(main, stream.shed), self._intake(dead)
        return Entrance(stream.name, decoder, *intakes, self.threads, chosen.pending_bytes_max)

    def _intake(self, target: Target, shed: Shed | None = None) -> StreamIntake:
        unique_ids = self._settings.dedupe_ids_max if target.event is not Rejected else 0
        event, window = event_spec(target.event), self._settings.dedupe_window
        self._log.declare(StreamSpec(target.name, event.schema, target.partitions, unique_ids, window, event))
        if shed is not None:
            return SheddingIntake(target, self._log, self._settings, self._clock, self._hooks, shed)
        return StreamIntake(target, self._log, self._settings, self._clock, self._hooks)
