"""An event can be late for a view of streams, never for a view of views."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from penstock import App, Event
from penstock.core.contracts import StreamSpec
from penstock.core.event_shape import event_spec
from tests.runtime.guarded import running


class Transfer(Event, time="at"):
    account: str
    amount: int
    at: datetime


def bank() -> App:
    """Return an app with a view for which events can be late, and views above it."""
    app = App("bank")
    app.stream("transfers", Transfer, key="account", late_after=timedelta(seconds=10))
    app.sql("balances", "SELECT account, sum(amount) AS balance FROM transfers GROUP BY account", key="account")
    app.sql("rich", "SELECT account, balance FROM balances WHERE balance >= 100", key="account")
    app.sql("richest", "SELECT account, balance FROM rich ORDER BY balance DESC, account LIMIT 1", key="account")
    return app


def test_a_derived_view_has_no_stream_of_late_events(tmp_path: Path) -> None:
    with running(tmp_path, app=(app := bank())) as gateway:
        for stream in app.late.values():  # as the engine does
            gateway.gateway.log.declare(StreamSpec.of(stream.name, event_spec(stream.event), 1))
        description = gateway.get("/v1/app").json()
        assert [view["name"] for view in description["views"]] == ["balances", "rich", "richest"]
        assert [stream["name"] for stream in description["streams"]] == ["transfers", "balances.late"]
        assert gateway.get("/v1/streams/balances.late").status_code == 200
        for name in ("rich.late", "richest.late"):
            answer = gateway.get(f"/v1/streams/{name}")
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
