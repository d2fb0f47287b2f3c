"""Both control channels meet every guarantee of the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.control import ControlChannel, Message
from penstock.runtime.embedded.channel import FileChannel
from penstock.runtime.embedded.directory import DataDirectory
from tests.contracts.control import ControlContract, ControlHome
from tests.control.memory import MemoryChannel


class Memory:
    def __init__(self) -> None:
        self.channel = MemoryChannel()

    def open(self) -> ControlChannel:
        return self.channel

    def write(self, kind: type[Message], data: bytes) -> None:
        self.channel.write(kind, data)

    def fill(self) -> None:
        self.channel.full = True

    def ignored(self) -> list[str]:
        return self.channel.ignored


class Files:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self.directory, self.monkeypatch, self.caplog = DataDirectory(root), monkeypatch, caplog
        self.directory.make()

    def open(self) -> ControlChannel:
        return FileChannel(self.directory)

    def write(self, kind: type[Message], data: bytes) -> None:
        self.directory.control_file(kind.name).write_bytes(data)

    def fill(self) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "no space left on device")

        self.monkeypatch.setattr(Path, "replace", full)

    def ignored(self) -> list[str]:
        assert list(self.directory.run.glob(".*")) == [], "a temporary file stays behind"
        return [record.getMessage() for record in self.caplog.records if record.name == "penstock.control"]


class TestMemoryChannel(ControlContract):
    @pytest.fixture
    def home(self) -> ControlHome:
        return Memory()


class TestFileChannel(ControlContract):
    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> ControlHome:
        return Files(tmp_path, monkeypatch, caplog)
