"""The result of a query, as sent to the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

Format = Literal["json", "arrow"]


@dataclass(frozen=True)
class QueryResponse:
    """The encoded result of a query, the cursors of its inputs, and the time taken to read the inputs and run the
    query.

    `data` is an Arrow stream, or a JSON object with columns and rows but still without its closing brace. Equal results
    have equal JSON.
    """

    data: bytes
    cursors: Mapping[str, str]
    took_s: float

    @property
    def json_end(self) -> bytes:
        """The end of a query's JSON response, with the closing brace."""
        return b"," + msgspec.json.encode({"cursors": self.cursors, "elapsed_ms": round(self.took_s * 1000)})[1:]
