"""Views on views in a running app: correct through crashes, acknowledged and followed like other views."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import RunningApp, running, wait_for

pytestmark = pytest.mark.spark
BANK = Path(__file__).parent.parent.parent / "docs/examples/balances.py"


class Bank:
    """The app of the documentation, and the expected rows of its views."""

    def __init__(self, app: RunningApp) -> None:
        self.app = app
        self.balances: dict[str, int] = {}
        self._numbers = count()

    def send(self, moves: list[tuple[str, int]], **parameters: Any) -> dict[str, Any]:
        events = [{"transfer_id": str(next(self._numbers)), "account": account, "amount": by} for account, by in moves]
        answer = self.app.post("transfers", events, params=parameters).json()
        assert answer["accepted"] == len(moves), answer
        for account, amount in moves:
            self.balances[account] = self.balances.get(account, 0) + amount
        return dict(answer)

    def is_right(self) -> bool:
        total = sum(self.balances.values())
        rich = {account: balance for account, balance in self.balances.items() if balance >= 100}
        shares = {account: balance / total for account, balance in self.balances.items()} if total else {}
        return (
            self._column("balances", "balance") == self.balances
            and self._column("rich", "balance") == rich
            and [row["total"] for row in self.app.view("totals")] == [total]
            and (not total or self._column("shares", "share") == pytest.approx(shares))
        )

    def _column(self, view: str, name: str) -> dict[str, Any]:
        return {row["account"]: row[name] for row in self.app.view(view)}


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    """Run the app; its engine dies once, between a derived view and those above it."""
    data = tmp_path_factory.mktemp("bank") / "data"
    mark = data.parent / "died"
    with running(BANK, data, PENSTOCK_FAILPOINTS=f"derived.after_commit@6=kill:{mark}") as app:
        yield Bank(app.ready())
        assert mark.exists(), "the engine did not die"


def test_a_row_that_no_longer_passes_leaves_and_a_sum_counts_each_row_once(bank: Bank) -> None:
    bank.send([("a", 150), ("b", 10)])
    wait_for(bank.is_right, 120, "the first rows")
    bank.send([("a", -100)])
    wait_for(bank.is_right, 120, "rows that follow, through a crash")
    assert bank.app.view("rich") == []
    assert [row["total"] for row in bank.app.view("totals")] == [60]


def test_a_request_gets_the_row_of_a_derived_view_and_its_acknowledgement_tells_of_all_of_them(bank: Bank) -> None:
    answer = bank.send([("c", 500)], reply="rich", timeout=60)
    assert answer["reply"] == {"rows": [{"account": "c", "balance": 500}]}

    def reported() -> dict[str, Any]:
        return dict(httpx.get(f"{bank.app.url}/v1/acks/{answer['ack']}").json())

    wait_for(lambda: all(node["done"] for node in reported()["processed"]), 60, "all of them")
    assert sorted(node["view"] for node in reported()["processed"]) == ["balances", "rich", "shares", "totals"]
    refused = bank.app.post("transfers", [], params={"reply": "moves"})
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_parameter"), "it reads rich.changes"


def test_each_change_is_in_the_stream_of_changes_once_and_deletes_are_among_them(bank: Bank) -> None:
    wait_for(bank.is_right, 60, "the rows")
    page = httpx.get(f"{bank.app.url}/v1/streams/rich.changes", params={"since": "earliest"}).json()
    changes = [(event["_change"], event["account"], event["balance"]) for event in page["events"]]
    assert changes == [("upsert", "a", 150), ("delete", "a", None), ("upsert", "c", 500)]
    versions = [event["_version"] for event in page["events"]]
    assert versions == sorted(set(versions))
    wait_for(lambda: bank.app.view("moves") == [{"account": "a", "updates": 1}, {"account": "c", "updates": 1}], 60)


def test_lag_and_health_tell_of_derived_views(bank: Bank) -> None:
    def views() -> dict[str, dict[str, Any]]:
        return {view["name"]: view for view in bank.app.describe()["views"]}

    wait_for(lambda: all(view["lag"] == 0 for view in views().values()), 60, "no lag")
    figures = views()
    assert {name: view["derived"] for name, view in figures.items()} == {
        "balances": False, "rich": True, "totals": True, "shares": True, "moves": False,
    }  # fmt: skip
    assert figures["shares"]["reads"] == ["balances", "totals"]
    assert [column["name"] for column in figures["shares"]["columns"]] == ["account", "share"]
    assert figures["rich"]["watermark"] is None
    assert bank.app.health()["ready"]
