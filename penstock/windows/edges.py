"""The start and end times of a window's events, for windows that are not defined by time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from penstock.windows.clock import EPOCH

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Start:
    """The time of a window's first event, stored in microseconds."""

    column: str | None = None

    def packing(self, hint: Any) -> str | None:
        return "?q"

    def kept(self, hint: Any) -> Any:
        return int | None

    def type(self, hint: Any) -> Any:
        return datetime

    def zero(self) -> Any:
        return None

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        return (at - EPOCH) // _MICROSECOND if kept is None else kept

    def merge(self, older: Any, newer: Any) -> Any:
        return newer if older is None else older

    def result(self, kept: Any) -> Any:
        return EPOCH + kept * _MICROSECOND


class End(Start):
    """The time of a window's last event. Events are added in order of time."""

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        return (at - EPOCH) // _MICROSECOND

    def merge(self, older: Any, newer: Any) -> Any:
        return older if newer is None else newer
