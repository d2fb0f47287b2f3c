"""docs/filters.md: each of its examples gives the documented value, and it lists every function and every limit."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.core.columns import json_rows
from penstock.core.errors import BadExpression
from penstock.core.filters import Filter, compiled, limits
from penstock.core.filters.compiler import FUNCTIONS

PAGE = (Path(__file__).parents[2] / "docs/filters.md").read_text()
ZONED = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("vehicle", pa.string()), ("speed", pa.float64()), ("seats", pa.int64()), ("full", pa.bool_()),
     ("note", pa.string()), ("fare", pa.decimal128(38, 18)), ("at", ZONED), ("day", pa.date32()),
     ("window", pa.struct([("start", ZONED), ("end", ZONED)])),
     ("place", pa.struct([("lat", pa.float64()), ("lon", pa.float64()), ("city", pa.string())])),
     ("tags", pa.list_(pa.string())), ("attrs", pa.map_(pa.string(), pa.string())),
     ("stops", pa.list_(pa.struct([("name", pa.string()), ("waiting", pa.int64())])))]
)  # fmt: skip


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def row() -> pa.RecordBatch:
    [text] = blocks("json")
    values = json.loads(text)
    for name in ("at", "day", "fare"):
        values[name] = msgspec.convert(values[name], {"at": Any, "day": Any, "fare": Decimal}[name])
    columns = [_column(values[field.name], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _column(value: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.array([value]).cast(kind)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_column(value[field.name], field.type) for field in kind], fields=list(kind))
    return pa.array([list(value.items()) if pa.types.is_map(kind) else value], kind)


def cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def examples() -> list[tuple[str, str]]:
    """Return each expression of a table with a column "gives", and its documented value."""
    pairs, place = [], None
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            place = None
        elif place is None:
            place = cells(line).index("gives") if "gives" in cells(line) else -1
        elif place > 0 and not line.startswith("|---"):
            pairs.append((cells(line)[0].strip("`"), cells(line)[place].strip("`")))
    return pairs


@pytest.mark.parametrize(("expression", "gives"), examples())
def test_an_example_gives_what_the_page_says(expression: str, gives: str) -> None:
    value = json.loads(json_rows(compiled(SCHEMA, None, f"{expression} AS it").project(row()))[0])["it"]
    wanted = json.loads(gives)
    if isinstance(wanted, float):
        assert value == pytest.approx(wanted, abs=0.1 if wanted > 1_000 else 1e-12)
    assert type(value) is type(wanted)
    assert isinstance(wanted, float) or value == wanted


@pytest.mark.parametrize("where", [text for text, gives in examples() if gives in ("true", "false")])
def test_a_condition_passes_the_row_if_the_page_says_so(where: str) -> None:
    wanted = dict(examples())[where] == "true"
    assert compiled(SCHEMA, where, None).mask(row()).to_pylist() == [wanted]


def test_the_example_at_the_top_passes_the_row() -> None:
    [where] = re.findall(r"^where: +(.*)$", PAGE, re.MULTILINE)
    [select] = re.findall(r"^select: +(.*)$", PAGE, re.MULTILINE)
    both: Filter = compiled(SCHEMA, where, select)
    assert both.mask(row()).to_pylist() == [True]
    assert both.project(row()).to_pylist() == [{"vehicle": "bus-7", "kmh": 45.0, "lat": 41.8781, "first_tag": "night"}]


def test_the_error_on_the_page_is_the_one_that_is_raised() -> None:
    [answer] = re.findall(r"^\{.*bad_expression.*\}$", PAGE, re.MULTILINE)
    problem = json.loads(answer)
    with pytest.raises(BadExpression) as refusal:
        compiled(SCHEMA, "sped > 10", None)
    assert refusal.value.message == problem["detail"]
    assert (refusal.value.part, refusal.value.position) == (problem["part"], problem["position"])


def test_every_function_is_on_the_page() -> None:
    shown = " ".join(expression for expression, _ in examples())
    for name in FUNCTIONS:
        assert f"{name}(" in shown or name == "interval", name


def test_every_limit_is_on_the_page() -> None:
    section = PAGE.split("## Limits")[1]
    shown = {int(number) for number in re.findall(r"\d+", section)}
    for name, value in vars(limits).items():
        if isinstance(value, int) and name not in ("SLICE_ROWS", "SLICE_BYTES"):
            assert value in shown, name
