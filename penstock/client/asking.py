"""What is asked: a target and a position as a request of each transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

ALL = "all"
"""The limit with which a view comes as a whole, and not its first rows."""
EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class Target:
    """What is followed. The name of a query is its text."""

    kind: Literal["stream", "view", "query"]
    name: str
    where: str | None = None
    select: str | None = None

    @property
    def path(self) -> str:
        return f"/v1/{self.kind}s/{quote(self.name, safe='')}"

    def given(self, **more: str | None) -> dict[str, str]:
        """Query parameters: the filter, and those of the others that there are."""
        chosen = {**more, "where": self.where, "select": self.select}
        return {name: value for name, value in chosen.items() if value is not None}

    def live(self, since: str | None) -> tuple[str, dict[str, str]]:
        """Path and parameters for server-sent events."""
        if self.kind == "query":
            return "/v1/query/live", self.given(sql=self.name, since=since)
        return f"{self.path}/live", self.given(since=since)

    def page(self, since: str | None, wait_s: float) -> tuple[str, dict[str, str]]:
        """Path and parameters of the next long poll. Only a cursor can be waited at."""
        limit = ALL if self.kind == "view" else None
        if self.kind == "view" and since in (None, EARLIEST):
            return self.path, self.given(limit=limit)
        if since in (None, EARLIEST, LATEST):
            return self.path, self.given(since=since or LATEST, limit=limit)
        return self.path, self.given(since=since, limit=limit, wait=f"{wait_s:g}")

    def subscription(self, id: str, since: str | None, window: int) -> dict[str, Any]:
        """The message that subscribes to it on a WebSocket."""
        said = {"op": "subscribe", "id": id, self.kind: self.name}
        return {**said, **self.given(since=since), "window": window}
