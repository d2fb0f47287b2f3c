"""The files of a handler's state: for each shard a chain of deltas, and now and then a snapshot.

A file is written whole, synced and renamed into its place, so it is there or it is not; a strong checksum at its end
says whether it is what was written. A delta names the version it builds on. Which version counts is the ledger's to
say: a delta above it belongs to a batch that was never committed, and will be written again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from itertools import repeat
from pathlib import Path
from typing import ClassVar

import msgspec

from penstock.cursor import Positions
from penstock.errors import Damaged, NewerFormat
from penstock.files import disk_errors, sync_directory
from penstock.shard import HASH_BYTES, NOTHING, Changes, Shard, merged

FORMAT = 1
ORIGIN = "origin.snapshot"
MAGIC = b"penstock state\n"
CHECKSUM_BYTES = 16
SNAPSHOT_AFTER_BYTES = 4 * 1024 * 1024
SNAPSHOT_AFTER_RATIO = 4
SNAPSHOT_AFTER_DELTAS = 100
"""A snapshot is due when the deltas since the last have this many times its size, and at least so many bytes; or when
there are so many of them. So snapshots are a fifth of what is written, and a restart reads five times the state."""

Record = tuple[str, bytes | None, int | None]


class Content(msgspec.Struct, array_like=True, frozen=True):
    """What a file holds. `base` is the version that a delta builds on, `NOTHING` for the first and for a snapshot.
    `start` is where the log goes on from a snapshot."""

    format: int
    handler: str
    shard: int
    version: int
    base: int
    time: int
    digest: bytes
    records: list[Record]
    start: Positions | None = None

    @property
    def changes(self) -> Changes:
        records = {key: record for key, record, _ in self.records}
        return Changes(records, {key: due for key, _, due in self.records if due is not None}, self.time)


class ShardFiles:
    """The files of one shard. One process writes at a time; others may read what the ledger says is committed."""

    _decoder: ClassVar[msgspec.msgpack.Decoder[Content]] = msgspec.msgpack.Decoder(Content)

    def __init__(self, folder: Path, handler: str, shard: int) -> None:
        self.folder = folder
        self.handler = handler
        self.shard = shard

    def write_delta(self, version: int, base: int, changes: Changes, digest: int) -> int:
        """Make a delta durable; returns its size. Written again, it takes the place of the one before."""
        due = map(changes.due.get, changes.records) if changes.due else repeat(None, len(changes.records))
        records: list[Record] = list(zip(changes.records, changes.records.values(), due, strict=True))
        return self._write(self._delta(version), version, base, changes.time, digest, records)

    def write_snapshot(self, version: int, shard: Shard, start: Positions) -> int:
        """Make all of a shard durable, with where the log goes on; returns its size."""
        return self._write_all(self._snapshot(version), version, shard, start)

    def write_origin(self, version: int, shard: Shard, start: Positions) -> int:
        """The same, for what a handler begins with: it is kept for good, besides."""
        self._write_all(self.folder / ORIGIN, version, shard, start)
        return self.write_snapshot(version, shard, start)

    def origin(self) -> Shard:
        """What the handler began with. Nothing, but for state that was carried over from an earlier class."""
        path, shard = self.folder / ORIGIN, Shard()
        if path.exists():
            _apply(shard, [self._read(path)])
        return shard

    def snapshots(self, version: int) -> Iterator[tuple[Shard, Positions]]:
        """The snapshots at `version` and before, the newest first, each with where the log goes on from it."""
        for each in sorted(self._versions(".snapshot"), reverse=True):
            if each <= version:
                content, shard = self._read(self._snapshot(each)), Shard()
                _apply(shard, [content])
                yield shard, content.start or {}

    def catch_up(self, shard: Shard, held: int, version: int) -> int | None:
        """Bring a shard from the version that it is at to a later one, by the deltas in between: how many there were.
        None, and the shard as it was, if they do not lead there."""
        chain: list[Content] = []
        wanted = version
        while wanted > held and self._delta(wanted).exists():
            chain.append(self._read(self._delta(wanted)))
            wanted = chain[-1].base
        if wanted != held:
            return None
        _apply(shard, chain)
        return len(chain)

    def load(self, version: int) -> Shard:
        """The shard at a version, from the newest snapshot that leads there. `Damaged` if a file of the chain is not as
        written, or is missing."""
        chain: list[Content] = []
        while version != NOTHING:
            snapshot = self._snapshot(version)
            chain.append(self._read(snapshot if snapshot.exists() else self._delta(version)))
            version = NOTHING if snapshot.exists() else chain[-1].base
        shard = Shard()
        _apply(shard, chain)
        return shard

    def snapshot_is_due(self, version: int) -> bool:
        """Whether the chain that leads to a version has grown long."""
        deltas = snapshot = count = 0
        for size, is_snapshot in self._chain_sizes(version):
            if is_snapshot:
                snapshot = size
            else:
                deltas, count = deltas + size, count + 1
        return count >= SNAPSHOT_AFTER_DELTAS or deltas >= max(SNAPSHOT_AFTER_RATIO * snapshot, SNAPSHOT_AFTER_BYTES)

    def drop_before(self, version: int) -> None:
        """Remove what a snapshot at `version` has made needless. The snapshot before it stays, with what follows on it:
        should the newest be damaged, the state can be had from there."""
        snapshots = sorted(each for each in self._versions(".snapshot") if each < version)
        if snapshots:
            for suffix in (".delta", ".snapshot", ".outbox"):
                for each in self._versions(suffix):
                    if each < snapshots[-1]:
                        (self.folder / f"{each}{suffix}").unlink(missing_ok=True)

    def outbox(self, version: int) -> Path:
        return self.folder / f"{version}.outbox"

    def _delta(self, version: int) -> Path:
        return self.folder / f"{version}.delta"

    def _snapshot(self, version: int) -> Path:
        return self.folder / f"{version}.snapshot"

    def _versions(self, suffix: str) -> Iterator[int]:
        for path in self.folder.glob(f"*{suffix}"):
            if path.stem.isdigit():
                yield int(path.stem)

    def _chain_sizes(self, version: int) -> Iterator[tuple[int, bool]]:
        """Sizes of the files from the newest snapshot to `version`. By name only: what lies between is of the chain, or
        so little that it does not matter."""
        last = max((each for each in self._versions(".snapshot") if each <= version), default=-1)
        for suffix in (".delta", ".snapshot"):
            for each in self._versions(suffix):
                if (last < each <= version) if suffix == ".delta" else each == last:
                    yield (self.folder / f"{each}{suffix}").stat().st_size, suffix == ".snapshot"

    def _write_all(self, path: Path, version: int, shard: Shard, start: Positions) -> int:
        records: list[Record] = [(key, record, shard.due.get(key)) for key, record in shard.records.items()]
        return self._write(path, version, NOTHING, shard.time, shard.digest, records, start)

    def _write(
        self,
        path: Path,
        version: int,
        base: int,
        time: int,
        digest: int,
        records: list[Record],
        start: Positions | None = None,
    ) -> int:
        packed = digest.to_bytes(HASH_BYTES, "little")
        content = Content(FORMAT, self.handler, self.shard, version, base, time, packed, records, start)
        body = MAGIC + msgspec.msgpack.encode(content)
        body += blake2b(body, digest_size=CHECKSUM_BYTES).digest()
        self.folder.mkdir(parents=True, exist_ok=True)
        _write_durably(path, body)
        return len(body)

    def _read(self, path: Path) -> Content:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise Damaged(f"{path} is missing", file=str(path)) from None
        body, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
        if not body.startswith(MAGIC) or blake2b(body, digest_size=CHECKSUM_BYTES).digest() != checksum:
            raise Damaged(f"{path} is damaged", file=str(path))
        content = self._decoder.decode(body[len(MAGIC) :])
        if content.format > FORMAT:
            raise NewerFormat(f"{path} has format {content.format}, this Penstock reads up to {FORMAT}")
        if (content.handler, content.shard) != (self.handler, self.shard):
            raise Damaged(f"{path} is of handler {content.handler}, shard {content.shard}", file=str(path))
        return content


def _apply(shard: Shard, chain: list[Content]) -> None:
    """Apply a chain of files, which was read from its end."""
    if chain:
        changes = merged(content.changes for content in reversed(chain))
        shard.apply(changes, int.from_bytes(chain[0].digest, "little"))


def _write_durably(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(path.parent)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
