"""The folder in which the state of a handler is rebuilt, and the marker that makes the result take effect."""

from __future__ import annotations

import contextlib
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.core import files
from penstock.core.cursor import Positions
from penstock.core.errors import Damaged, StorageError
from penstock.handlers.shard import Shard
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.storage import PreparedHandler
from penstock.store import ShardFiles

_CRC = struct.Struct("<I")
_ARROW_END = b"ARROW1"
VERSION = 0
"""Version number of the prepared snapshots."""


@dataclass(frozen=True)
class EmbeddedNextHandler:
    """`NextHandler` as a folder next to the handler's state."""

    directory: DataDirectory
    handler: str

    @property
    def folder(self) -> Path:
        return self.directory.handler_next(self.handler)

    @property
    def _marker(self) -> Path:
        return self.folder / "prepared.json"

    @property
    def _taken(self) -> Path:
        return self.folder / "taken"

    @property
    def _rows(self) -> Path:
        return self.folder / "rows.arrow"

    def shard_files(self, number: int) -> ShardFiles:
        return ShardFiles(self.folder / str(number), self.handler, number)

    def read(self) -> PreparedHandler | None:
        try:
            return msgspec.json.decode(self._marker.read_bytes(), type=PreparedHandler)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError:
            raise Damaged(f"{self._marker} is damaged; remove {self.folder}, and rebuild again") from None

    def shards(self, count: int) -> Mapping[int, tuple[Shard, Positions]]:
        shards = {}
        for number in range(count):
            snapshot = next(self.shard_files(number).snapshots(VERSION), None)
            if snapshot is None:
                raise Damaged(f"{self.folder} is incomplete; remove it, and rebuild again")
            shards[number] = snapshot
        return shards

    def rows(self) -> pa.Table | None:
        try:
            data = memoryview(self._rows.read_bytes())
        except FileNotFoundError:
            return None
        content, crc = data[: -_CRC.size], bytes(data[-_CRC.size :])
        if bytes(data[-len(_ARROW_END) :]) == _ARROW_END:  # written by an earlier version, without a checksum
            content, crc = data, _CRC.pack(files.checksum(data))
        with contextlib.suppress(pa.ArrowException):
            if _CRC.pack(files.checksum(content)) == crc:
                return pa.ipc.open_file(pa.py_buffer(content)).read_all()
        raise Damaged(f"{self._rows} is damaged; remove {self.folder}, and rebuild again")

    def write(
        self, prepared: PreparedHandler, shards: Mapping[int, tuple[Shard, Positions]], rows: pa.Table | None
    ) -> None:
        self.require_free()
        self.remove()
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, (shard, position) in shards.items():
            self.shard_files(number).write_snapshot(VERSION, shard, position)
        if rows is not None:
            buffer = pa.BufferOutputStream()
            with pa.ipc.new_file(buffer, rows.schema) as writer:
                writer.write_table(rows)
            content = buffer.getvalue()
            files.write_atomic(self._rows, content.to_pybytes() + _CRC.pack(files.checksum(content)), durable=True)
        files.write_atomic(self._marker, msgspec.json.encode(prepared), durable=True)

    def require_free(self) -> None:
        if self.is_taken():
            raise StorageError(
                f"the app has not finished switching to an earlier rebuild of handler {self.handler}; start the app "
                "to finish that, and then rebuild the handler again"
            )

    def take(self) -> None:
        files.write_atomic(self._taken, b"", durable=True)

    def is_taken(self) -> bool:
        return self._marker.exists() and self._taken.exists()

    def remove(self) -> None:
        if self.folder.exists():
            self._marker.unlink(missing_ok=True)
            files.sync_directory(self.folder)  # the mark must not outlive the state in a power cut
        shutil.rmtree(self.folder, ignore_errors=True)
