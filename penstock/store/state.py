"""The files that contain a handler's state. Each shard has a chain of deltas, with a snapshot from time to time.

A file is written completely, synced and renamed into place, so it is either complete or does not exist. A strong
checksum at its end verifies it. A delta contains the version that it builds on. The ledger determines the current
version. A delta with a later version belongs to a batch that was never committed, and will be written again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import repeat
from pathlib import Path
from typing import ClassVar

import msgspec
import pyarrow as pa

from penstock.core.cursor import Positions
from penstock.core.errors import Damaged, NewerFormat
from penstock.core.files import disk_errors, sync_directory
from penstock.handlers.shard import HASH_BYTES, NO_VERSION, Shard, ShardChanges, merged

FORMAT = 1
ORIGIN = "origin.snapshot"
MAGIC = b"penstock state\n"
CHECKSUM_BYTES = 16
ALIGNMENT = 64
"""Payloads in an outbox begin at multiples of this number, because Arrow expects aligned buffers."""
SNAPSHOT_AFTER_BYTES = 4 * 1024 * 1024
SNAPSHOT_AFTER_RATIO = 4
SNAPSHOT_AFTER_DELTAS = 100
"""A snapshot is due when there are this many deltas since the last snapshot, or when the deltas are large.

Deltas are large if their total size is at least `SNAPSHOT_AFTER_RATIO` times the size of the snapshot, and at least
`SNAPSHOT_AFTER_BYTES`. Snapshots therefore make up a fifth of the bytes written, and a restart reads up to five times
the size of the state.
"""

Record = tuple[str, bytes | None, int | None]


class Content(msgspec.Struct, array_like=True, frozen=True):
    """The contents of a handler shard's file. `base` is the version that a delta builds on.

    `base` is `NO_VERSION` for the first delta and for a snapshot. `start` contains the log positions from which a
    handler continues after a snapshot.
    """

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
    def changes(self) -> ShardChanges:
        records = {key: record for key, record, _ in self.records}
        return ShardChanges(records, {key: due for key, _, due in self.records if due is not None}, self.time)


class ShardFiles:
    """The files of one handler shard. One process writes at a time. Other processes can read the versions in the
    ledger."""

    _decoder: ClassVar[msgspec.msgpack.Decoder[Content]] = msgspec.msgpack.Decoder(Content)

    def __init__(self, folder: Path, handler: str, shard: int) -> None:
        self.folder = folder
        self.handler = handler
        self.shard = shard

    def write_delta(self, version: int, base: int, changes: ShardChanges, digest: int) -> int:
        """Write a delta of the shard durably, and return its size. Writing the same version again replaces the file.

        Raises ValueError if the delta does not build on an earlier version, because the chain would then be endless.
        """
        if base >= version:
            raise ValueError(f"version {version} of a shard cannot build on version {base}")
        due = map(changes.due.get, changes.records) if changes.due else repeat(None, len(changes.records))
        records: list[Record] = list(zip(changes.records, changes.records.values(), due, strict=True))
        return self._write(self._delta(version), version, base, changes.time, digest, records)

    def write_snapshot(self, version: int, shard: Shard, start: Positions) -> int:
        """Write a whole shard durably, with the log positions to continue from, and return the file's size."""
        return self._write_all(self._snapshot(version), version, shard, start)

    def write_origin(self, version: int, shard: Shard, start: Positions) -> int:
        """Write a handler's initial state, as a snapshot that is never deleted, and return its size."""
        self._write_all(self.folder / ORIGIN, version, shard, start)
        return self.write_snapshot(version, shard, start)

    def origin(self) -> Shard:
        """Return the handler's initial state: empty, unless it was carried over from an earlier class."""
        path, shard = self.folder / ORIGIN, Shard()
        if path.exists():
            _apply_chain(shard, [self._read(path)])
        return shard

    def snapshots(self, version: int) -> Iterator[tuple[Shard, Positions]]:
        """Yield the shard's snapshots up to `version`, newest first, each with the log positions to continue from."""
        for file_version in sorted(self._versions(".snapshot"), reverse=True):
            if file_version <= version:
                content, shard = self._read(self._snapshot(file_version)), Shard()
                _apply_chain(shard, [content])
                yield shard, content.start or {}

    def catch_up(self, shard: Shard, held: int, version: int) -> int | None:
        """Bring a shard from version `held` to a later version by applying the deltas in between, and return their
        number.

        Returns None, with the shard unchanged, if the deltas do not connect the two versions.
        """
        chain: list[Content] = []
        wanted = version
        while wanted > held and self._delta(wanted).exists():
            chain.append(self._read_delta(wanted))
            wanted = chain[-1].base
        if wanted != held:
            return None
        _apply_chain(shard, chain)
        return len(chain)

    def load(self, version: int) -> Shard:
        """Load the handler's shard at a version, from the newest snapshot in the version's chain.

        Raises `Damaged` if a file in the chain is damaged or missing.
        """
        chain: list[Content] = []
        while version != NO_VERSION:
            snapshot = self._snapshot(version)
            chain.append(self._read(snapshot) if snapshot.exists() else self._read_delta(version))
            version = NO_VERSION if snapshot.exists() else chain[-1].base
        shard = Shard()
        _apply_chain(shard, chain)
        return shard

    def snapshot_is_due(self, version: int) -> bool:
        """Return whether the chain of files that leads to a version of the shard has grown long enough for a new
        snapshot."""
        deltas = snapshot = count = 0
        for size, is_snapshot in self._chain_sizes(version):
            if is_snapshot:
                snapshot = size
            else:
                deltas, count = deltas + size, count + 1
        return count >= SNAPSHOT_AFTER_DELTAS or deltas >= max(SNAPSHOT_AFTER_RATIO * snapshot, SNAPSHOT_AFTER_BYTES)

    def drop_before(self, version: int) -> None:
        """Delete the shard's files that a snapshot at `version` has made unnecessary.

        The previous snapshot is kept, with the deltas after it. If the newest snapshot is damaged, the state can be
        restored from the previous snapshot.
        """
        snapshots = sorted(file_version for file_version in self._versions(".snapshot") if file_version < version)
        if snapshots:
            for suffix in (".delta", ".snapshot", ".outbox"):
                for file_version in self._versions(suffix):
                    if file_version < snapshots[-1]:
                        (self.folder / f"{file_version}{suffix}").unlink(missing_ok=True)

    def append_outbox(self, version: int, payloads: Sequence[bytes], *, begin: bool) -> list[tuple[int, int]]:
        """Append payloads to the file that holds the shard's output for a batch, and return the start and size of each.
        The file is not synced."""
        path, spans = self._outbox(version), []
        self.folder.mkdir(parents=True, exist_ok=True)
        with disk_errors(path), open(path, "wb" if begin else "ab") as file:
            for payload in payloads:
                spans.append((file.tell(), len(payload)))
                file.write(payload.ljust(-(-len(payload) // ALIGNMENT) * ALIGNMENT, b"\0"))
        return spans

    def read_outbox(self, version: int) -> pa.Buffer:
        """Map the file that holds a batch's output into memory, so that a payload is loaded only when it is read."""
        with pa.memory_map(str(self._outbox(version))) as file:
            return file.read_buffer()

    def drop_outbox(self, version: int) -> None:
        """Delete the file that holds a batch's output."""
        self._outbox(version).unlink(missing_ok=True)

    def _outbox(self, version: int) -> Path:
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
        """Yield the size of each file from the newest snapshot to `version`, and whether it is the snapshot.

        Files are selected by name only: files outside the chain are too small to matter.
        """
        last = max(
            (file_version for file_version in self._versions(".snapshot") if file_version <= version), default=-1
        )
        for suffix in (".delta", ".snapshot"):
            for file_version in self._versions(suffix):
                if (last < file_version <= version) if suffix == ".delta" else file_version == last:
                    yield (self.folder / f"{file_version}{suffix}").stat().st_size, suffix == ".snapshot"

    def _write_all(self, path: Path, version: int, shard: Shard, start: Positions) -> int:
        records: list[Record] = [(key, record, shard.due.get(key)) for key, record in shard.records.items()]
        return self._write(path, version, NO_VERSION, shard.time, shard.digest, records, start)

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
        _write_state_file(path, body)
        return len(body)

    def _read_delta(self, version: int) -> Content:
        content = self._read(self._delta(version))
        if content.base >= version:
            path = self._delta(version)
            raise Damaged(f"{path} builds on version {content.base}, which is not an earlier version", file=str(path))
        return content

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
            raise NewerFormat(f"{path} has format {content.format}, but this version of Penstock reads up to {FORMAT}")
        if (content.handler, content.shard) != (self.handler, self.shard):
            raise Damaged(f"{path} belongs to handler {content.handler}, shard {content.shard}", file=str(path))
        return content


def _apply_chain(shard: Shard, chain: list[Content]) -> None:
    """Apply a chain of files to a shard. The files are in order from the last to the first."""
    if chain:
        changes = merged(content.changes for content in reversed(chain))
        shard.apply(changes, int.from_bytes(chain[0].digest, "little"))


def _write_state_file(path: Path, data: bytes) -> None:
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
