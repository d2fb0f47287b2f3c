"""Requests that follow a target from a position, in the form that each transport needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

ALL = "all"
"""The limit that requests a whole view instead of its first rows."""
EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class FollowTarget:
    """A target that the client follows. The name of a query is its SQL."""

    kind: Literal["stream", "view", "query"]
    name: str
    where: str | None = None
    select: str | None = None

    @property
    def path(self) -> str:
        return f"/v1/{self.kind}s/{quote(self.name, safe='')}"

    def given(self, **more: str | None) -> dict[str, str]:
        """Return the query parameters of the client's request: the filter, and every item of `more` that is not
        None."""
        chosen = {**more, "where": self.where, "select": self.select}
        return {name: value for name, value in chosen.items() if value is not None}

    def live(self, since: str | None) -> tuple[str, dict[str, str]]:
        """Return the path and parameters of the client's request for server-sent events."""
        if self.kind == "query":
            return "/v1/query/live", self.given(sql=self.name, since=since)
        return f"{self.path}/live", self.given(since=since)

    def page(self, since: str | None, wait_s: float) -> tuple[str, dict[str, str]]:
        """Return the path and parameters of the client's next long poll. Only a poll with a cursor waits."""
        limit = ALL if self.kind == "view" else None
        if self.kind == "view" and since in (None, EARLIEST):
            return self.path, self.given(limit=limit)
        if since in (None, EARLIEST, LATEST):
            return self.path, self.given(since=since or LATEST, limit=limit)
        return self.path, self.given(since=since, limit=limit, wait=f"{wait_s:g}")

    def subscription(self, id: str, since: str | None, window: int) -> dict[str, Any]:
        """Return the WebSocket message that subscribes the client to the target."""
        said = {"op": "subscribe", "id": id, self.kind: self.name}
        return {**said, **self.given(since=since), "window": window}
