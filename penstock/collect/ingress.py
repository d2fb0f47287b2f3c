"""The entry point of ingestion: one stream ingress per declared stream, each with its dead letters.

Not thread-safe: everything runs in the gateway's event loop. `runtime` creates the `Ingress`, passes it the log, and
closes it before the process ends.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from penstock.app.declared import REJECTED_SUFFIX, Stream
from penstock.app.shed import Shed
from penstock.collect.audit import Audit
from penstock.collect.decode import BodyDecoder
from penstock.collect.group_commit import GroupCommit, Hold, Hooks, IngressReceipt
from penstock.collect.shedding import Shedding, SheddingGroupCommit
from penstock.collect.source_buffer import SourceBuffer
from penstock.collect.stream_clock import StreamTime
from penstock.collect.stream_ingress import StreamIngress
from penstock.collect.validation import Ahead
from penstock.collect.writer import WriteTarget
from penstock.core.contracts import AdmissionLog, Clock, SourceWriter, StreamSpec
from penstock.core.cursor import AckSigner
from penstock.core.errors import DeclarationError, NotFound, PenstockError, Stopping, StorageError, SyncFailed
from penstock.core.event_shape import event_spec
from penstock.core.schema import Rejected
from penstock.core.settings import Settings
from penstock.http.body_threads import BodyThreads


class Ingress:
    """The stream ingresses of all declared streams.

    The constructor blocks, because it declares the streams in the log; no other method blocks.

    `broken` contains the error of each stream whose file is damaged or does not match its declaration. Sending events
    to such a stream raises its error. The other streams are not affected.
    """

    def __init__(
        self,
        streams: Iterable[Stream],
        log: AdmissionLog,
        settings: Settings,
        clock: Clock,
        on_fatal: Callable[[PenstockError], None],
        on_commit: Callable[[str], None],
        signer: AckSigner | None = None,
    ) -> None:
        """`on_commit` is called with the stream's name after each commit, `on_fatal` when writing must stop.

        Both are called in the event loop and must not block. `signer` signs acknowledgements; by default a new signer
        is created, and no other process can read its acknowledgements.
        """
        self._log = log
        self._settings = settings
        self._clock = clock
        self._hooks = Hooks(on_commit, on_fatal)
        self._signer = signer or AckSigner()
        self.threads = BodyThreads(max(settings.pending_bytes_max, settings.body_bytes_max))
        self._closing = False
        self.broken: dict[str, PenstockError] = {}
        self._stream_ingresses: dict[str, StreamIngress] = {}
        for stream in streams:
            try:
                self._stream_ingresses[stream.name] = self._open(stream)
            except SyncFailed:
                raise
            except (StorageError, DeclarationError) as error:
                self.broken[stream.name] = error

    @property
    def streams(self) -> Sequence[str]:
        """The names of the streams that accept events."""
        return list(self._stream_ingresses)

    def stream_ingress(self, stream: str) -> StreamIngress:
        """Return the ingress of a stream.

        Raises `NotFound` if there is no such stream to send events to, the stream's own error if it is broken, and
        `Stopping` after `close`.
        """
        if self._closing:
            raise Stopping("Penstock is stopping and accepts no more events")
        stream_ingress = self._stream_ingresses.get(stream)
        if stream in self.broken:
            raise copy.copy(self.broken[stream])
        if stream_ingress is None:
            raise NotFound(f"there is no stream {stream[:80]!r} to send events to")
        return stream_ingress

    async def post(self, stream: str, body: bytes, *, lines: bool = False, durable: bool = True) -> IngressReceipt:
        """Accept one request body, NDJSON if `lines`; see `StreamIngress.post`."""
        return await self.stream_ingress(stream).post(body, lines=lines, durable=durable)

    def writer_for_source(self, source: str, stream: str) -> SourceWriter:
        """Return a new buffer for one source and one stream. Its marks are stored under the source's name."""
        return SourceBuffer(source, self.stream_ingress(stream), self._settings)

    def hold(self, stream: str, hold: Hold | None) -> None:
        """Make a stream refuse events until this method is called with None. Requests get status 429, and sources
        wait."""
        self.stream_ingress(stream).group_commit.hold(hold)

    def held(self) -> Mapping[str, Hold]:
        """Return the streams whose ingress currently accepts no events."""
        holds = {name: stream_ingress.group_commit.held for name, stream_ingress in self._stream_ingresses.items()}
        return {name: hold for name, hold in holds.items() if hold is not None}

    def shed(self, stream: str, reason: str | None) -> None:
        """Make a stream that is read too slowly shed events, until this method is called with None.

        The stream must be in `may_shed`.
        """
        self._may_shed()[stream].shed(reason)

    @property
    def may_shed(self) -> Sequence[str]:
        """The names of the streams declared with `shed`."""
        return list(self._may_shed())

    def shedding(self) -> Mapping[str, Shedding]:
        """Return the streams that are currently shedding events."""
        sheddings = {name: group_commit.shedding for name, group_commit in self._may_shed().items()}
        return {name: shedding for name, shedding in sheddings.items() if shedding is not None}

    def _may_shed(self) -> dict[str, SheddingGroupCommit]:
        group_commits = {name: stream_ingress.group_commit for name, stream_ingress in self._stream_ingresses.items()}
        return {
            name: group_commit
            for name, group_commit in group_commits.items()
            if isinstance(group_commit, SheddingGroupCommit)
        }

    async def tick(self, stream: str, at: datetime | None = None, event_time: datetime | None = None) -> None:
        """Append one tick to every partition of a stream. Durable on return.

        The tick records that log time has reached `at` (default: now; later if the stream is already past that), and
        that event time has reached `event_time`, if given.
        """
        await self.stream_ingress(stream).group_commit.tick(at, event_time)

    def stream_times(self) -> Mapping[str, StreamTime]:
        """Return how far time has advanced in each stream."""
        return {
            name: stream_ingress.group_commit.stream_clock.stream_time
            for name, stream_ingress in self._stream_ingresses.items()
        }

    def audits(self) -> Mapping[str, Audit]:
        """Return the counters of each declared stream; `rejected` counts its dead letters."""
        return {name: stream_ingress.group_commit.audit for name, stream_ingress in self._stream_ingresses.items()} | {
            name: Audit() for name in self.broken
        }

    async def drain(self) -> None:
        """Wait until every event accepted so far is durable or has failed."""
        await asyncio.gather(*(group_commit.drain() for group_commit in self._group_commits()))

    async def close(self) -> None:
        """Refuse new events, wait until the accepted events are written, and end the threads. Idempotent. Stop the
        sources before calling it."""
        self._closing = True
        for group_commit in self._group_commits():
            group_commit.stop()
        await asyncio.gather(*(group_commit.close() for group_commit in self._group_commits()))
        self.threads.shutdown()

    def _group_commits(self) -> list[GroupCommit]:
        return [
            group_commit
            for stream_ingress in self._stream_ingresses.values()
            for group_commit in (stream_ingress.group_commit, stream_ingress.dead_letters)
        ]

    def _open(self, stream: Stream) -> StreamIngress:
        chosen = self._settings
        ahead = None if stream.ahead is None else Ahead(stream.event, stream.ahead, self._clock)
        decoder = BodyDecoder(
            stream.event, event_bytes_max=chosen.event_bytes_max, events_max=chosen.request_events_max, ahead=ahead
        )
        main = WriteTarget(stream.name, stream.event, stream.key, stream.partitions or chosen.partitions, self._signer)
        dead = WriteTarget(stream.name + REJECTED_SUFFIX, Rejected, None, 1, self._signer)
        group_commits = self._group_commit(main, stream.shed), self._group_commit(dead)
        return StreamIngress(stream.name, decoder, *group_commits, self.threads)

    def _group_commit(self, target: WriteTarget, shed: Shed | None = None) -> GroupCommit:
        unique_ids = self._settings.dedupe_ids_max if target.event is not Rejected else 0
        event, window = event_spec(target.event), self._settings.dedupe_window
        self._log.declare(StreamSpec(target.name, event.schema, target.partitions, unique_ids, window, event))
        if shed is not None:
            return SheddingGroupCommit(target, self._log, self._settings, self._clock, self._hooks, shed)
        return GroupCommit(target, self._log, self._settings, self._clock, self._hooks)
