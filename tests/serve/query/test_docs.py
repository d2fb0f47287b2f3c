"""The page on queries is correct."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.core.columns import from_json_rows
from penstock.serve.query.functions import AGGREGATES
from penstock.serve.query.pool import RESULT_BYTES_MAX, WAITING_MAX
from penstock.serve.query.relations import Kind, RelationRows
from penstock.serve.query.worker import SPARE_BYTES
from tests.serve.fakes import run
from tests.serve.query.examples import GROUPS
from tests.serve.query.support import ask, asking, queried

PAGE = (Path(__file__).parents[3] / "docs/query.md").read_text()
EXAMPLE = re.compile(r"```sql\n(?P<sql>.*?)```\n```json\n(?P<rows>.*?)```", re.DOTALL)
TIME = pa.timestamp("us", "UTC")
SCHEMAS = {
    "fixes": pa.schema(
        [
            ("vehicle", pa.string()),
            ("at", TIME),
            ("speed", pa.float64()),
            ("place", pa.struct([("lat", pa.float64()), ("lon", pa.float64())])),
            ("tags", pa.list_(pa.string())),
        ]
    ),
    "by-depot": pa.schema([("depot", pa.string()), ("vehicle", pa.string())]),
}


class Fixed:
    """Rows that never change."""

    kind: Kind = "view"
    part_of: str | None = None

    def __init__(self, rows: list[Any], schema: pa.Schema) -> None:
        self._table = pa.Table.from_batches([from_json_rows([json.dumps(row).encode() for row in rows], schema)])

    def version(self) -> Hashable:
        return 1

    def prepare(self) -> Callable[[], RelationRows]:
        return lambda: RelationRows(self._table, 1, "cursor")


def test_the_examples_are_answered_as_the_page_says() -> None:
    data = json.loads(PAGE.partition("```json\n")[2].partition("```")[0])
    examples = list(EXAMPLE.finditer(PAGE))
    assert len(examples) >= 4

    async def main() -> None:
        async with queried(more={name: Fixed(data[name], SCHEMAS[name]) for name in SCHEMAS}) as deps:
            async with asking(deps) as client:
                for example in examples:
                    assert (await ask(client, example["sql"]))["rows"] == json.loads(example["rows"]), example["sql"]

    run(main())


def test_the_page_lists_every_function() -> None:
    listed = {
        group.strip(): re.findall(r"`(\w+)`", names)
        for group, names in re.findall(r"^\| ([a-z][^|]+)\|( `[^|]+)\|$", PAGE, re.MULTILINE)
    }
    assert listed == {group: list(functions) for group, functions in GROUPS.items()}
    assert sorted(listed["aggregate functions"]) == sorted(AGGREGATES)


def test_the_figures_on_the_page_are_those_of_the_code() -> None:
    assert f"{RESULT_BYTES_MAX // 2**20} MiB" in PAGE
    assert f"{SPARE_BYTES // 2**20} MiB above" in PAGE
    assert f"{WAITING_MAX} more can wait, at most {WAITING_MAX // 2} of them from one caller" in PAGE
