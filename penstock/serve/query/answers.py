"""The answer to a query, as it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

Format = Literal["json", "arrow"]


@dataclass(frozen=True)
class Answer:
    """What the process of a query has encoded, where the streams and views stood that it read, and how long it took to
    read them and to run it.

    `data` is an Arrow stream; or a JSON object with columns and rows that is left open, the same for results that are
    the same.
    """

    data: bytes
    cursors: Mapping[str, str]
    took_s: float

    @property
    def json_end(self) -> bytes:
        """The rest of a JSON answer, which closes it."""
        return b"," + msgspec.json.encode({"cursors": self.cursors, "elapsed_ms": round(self.took_s * 1000)})[1:]
